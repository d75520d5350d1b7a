"""An operator of the tests' own: signs accounts and users, as `nsc` would, for servers that take decentralised credentials."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]


class Operator:
    """One operator with one account, whose users may use JetStream."""

    def __init__(self) -> None:
        self._key = _new_key(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = _new_key(nkeys.PREFIX_BYTE_ACCOUNT)
        self._operator_jwt = _sign(self._key, self._key, "operator", {})
        limits = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "imports": -1, "exports": -1, "leaf": -1, "wildcards": True}
        storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        self._account_jwt = _sign(self._key, self._account, "account", {"limits": limits | storage})
        self._system = _new_key(nkeys.PREFIX_BYTE_ACCOUNT)
        self._system_jwt = _sign(self._key, self._system, "account", {"limits": limits})

    @property
    def server_config(self) -> str:
        """What makes a server trust it."""
        account, system = self._account.public_key.decode(), self._system.public_key.decode()
        known = f"{{ {account}: {self._account_jwt}, {system}: {self._system_jwt} }}"
        return f"operator: {self._operator_jwt}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload: {known}\n"

    def write_creds(self, path: Path) -> Path:
        """A file with the credentials of a new user."""
        user = _new_key(nkeys.PREFIX_BYTE_USER)
        jwt = _sign(self._account, user, "user", {"subs": -1, "data": -1, "payload": -1})
        seed = bytes(user.seed).decode()
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
        return path


def new_user_seed() -> tuple[str, str]:
    """A user's seed, and the public key that a server knows it by."""
    key = _new_key(nkeys.PREFIX_BYTE_USER)
    return bytes(key.seed).decode(), key.public_key.decode()


def _new_key(kind: int) -> Any:
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), kind)))


def _sign(issuer: Any, subject: Any, kind: str, claims: dict[str, Any]) -> str:
    body = {
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": f"tests' {kind}",
        "nats": {"type": kind, "version": 2, **claims},
    }
    body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
    parts = [_encode(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
    return ".".join([*parts, _encode(issuer.sign(".".join(parts).encode()))])


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
