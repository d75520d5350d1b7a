"""Signatures that exchanges ask for: HMAC-SHA256 in base64.

Invariant: pure; the clock is in the text that is signed, and the secret stays here.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256
from hmac import digest

from ..errors import OptionsError

__all__ = ["read_base64_secret", "sign"]


def sign(secret: bytes, text: str) -> str:
    """The signature of a text."""
    return b64encode(digest(secret, text.encode(), sha256)).decode()


def read_base64_secret(name: str, secret: str) -> bytes:
    """The secret of the credential of that name, which its exchange gave out as base64."""
    try:
        return b64decode(secret, validate=True)
    except ValueError:
        raise OptionsError(f"{name}: expected the base64 text that the exchange gave out, got something else") from None
