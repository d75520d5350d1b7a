"""TLS of the server itself.

Invariant: what is wrong with the files is found at the start, in one sentence.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from ..errors import SettingsError

__all__ = ["load_tls"]


def load_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What speaks TLS with a certificate (with those that vouch for it) and its key; None where there is none."""
    if cert is None:
        if key is not None:
            raise SettingsError(["--tls-key needs --tls-cert: give the certificate of this key too"])
        return None
    for option, path in (("--tls-cert", cert), ("--tls-key", key)):
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise SettingsError([f"{option}: {path} can't be read: {error.strerror}"]) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    has_password = False

    def no_password() -> str:
        """Answers in the place of the terminal, where OpenSSL would ask."""
        nonlocal has_password
        has_password = True
        return ""

    try:
        context.load_cert_chain(cert, key, password=no_password)
    except ssl.SSLError as error:
        raise SettingsError([_describe(error.reason or "", cert, key, has_password=has_password)]) from None
    return context


def _describe(reason: str, cert: Path, key: Path | None, *, has_password: bool) -> str:
    if has_password:
        return f"--tls-key: the key in {key or cert} has a password; give one without"
    if reason == "KEY_VALUES_MISMATCH":
        return f"--tls-key: {key or cert} is not the key of the certificate in {cert}"
    said = f" ({reason})" if reason else ""
    if key is None:
        return f"--tls-cert: {cert} is no certificate with its key in PEM; give the key with --tls-key{said}"
    return f"--tls-cert: {cert} and {key} are no certificate and key in PEM{said}"
