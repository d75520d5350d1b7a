"""One connection to a NATS server through nats-py: found among several, authenticated, encrypted, and never silently replaced.

nats-py does the handshake, the protocol's reading side and the requests of the JetStream API. Records go past its `publish`, as whole
buffers of ready protocol lines: that is four times as fast.

Invariant: a connection that is lost stays lost. Nothing is buffered for a later one, so that what was not sent never is.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from ....errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError
from .replies import Replies

__all__ = ["NOT_ALLOWED", "ApiError", "NatsConnection", "NatsEndpoint", "NatsLogin", "open_connection"]

NOT_ALLOWED = -1
"""The code of an ApiError where the user may not even ask."""
CONNECT_TIMEOUT_S = 3
API_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 2.0
# How long a subject that may not be written is left alone: rights change.
_DENIED_FOR_S = 30.0
_DENIED = "permissions violation for publish to "
_DENIED_REPLIES = "permissions violation for subscription to "
# What a server says to a client that it will not have, in lower case.
_REFUSALS = ("authorization violation", "authentication expired", "account authentication", "revoked", "invalid client")
# nats-py would read a file without these for ever.
_CREDS = re.compile(rb"BEGIN NATS USER JWT-+\s+\S+\s.*BEGIN USER NKEY SEED-+\s+(?P<seed>\S+)\s", re.DOTALL)


class ApiError(Exception):
    """The JetStream API said no; `code` is its own number for why."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(description)
        self.code = code


class NatsEndpoint(NamedTuple):
    """Where a server is, and what its URL says of who asks."""

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None
    tls_name: str | None = None
    """What its certificate is made out to, where that is not the host."""

    @classmethod
    def from_url(cls, url: str) -> NatsEndpoint:
        """From `nats://user:password@host:port`."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        user, password = (None if text is None else unquote(text) for text in (parts.username, parts.password))
        return cls(parts.hostname, parts.port or 4222, parts.scheme == "tls", user, password)

    @property
    def address(self) -> str:
        """As messages name it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NatsLogin(NamedTuple):
    """Who asks, where this user may be answered, and how the server is known; of the ways to ask at most one is given."""

    user: str | None = None
    password: str | None = None
    token: str | None = None
    creds: Path | None = None
    nkey: Path | None = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    inbox_prefix: str = "_INBOX"

    def client_options(self, server: NatsEndpoint) -> dict[str, Any]:
        """What nats-py is told; a Terminal error names a file that can't be used."""
        options: dict[str, Any] = {"inbox_prefix": self.inbox_prefix}
        if self.user is not None:
            options |= {"user": self.user, "password": self.password}
        elif self.token is not None:
            options["token"] = self.token
        elif self.creds is not None:
            found = _CREDS.search(_read("--nats-creds", self.creds))
            if found is None or not _is_seed(found["seed"]):
                raise TerminalDeliveryError(f"--nats-creds: {str(self.creds)!r} has no user JWT and seed")
            options["user_credentials"] = str(self.creds)
        elif self.nkey is not None:
            if not _is_seed(_read("--nats-nkey", self.nkey).strip()):
                raise TerminalDeliveryError(f"--nats-nkey: {str(self.nkey)!r} has no seed of a user (SU…)")
            options["nkeys_seed"] = str(self.nkey)
        elif server.password is not None:
            options |= {"user": server.user, "password": server.password}
        elif server.user is not None:
            options["token"] = server.user
        if self.wants_tls(server):
            options |= {"tls": self._ssl_context(), "tls_hostname": server.tls_name or server.host}
        return options

    def wants_tls(self, server: NatsEndpoint) -> bool:
        """Whether the connection has to be encrypted; a server may ask for it even so."""
        return self.tls or server.tls or self.tls_ca is not None or self.tls_cert is not None

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise TerminalDeliveryError(f"--nats-tls-ca: can't read certificates from {str(self.tls_ca)!r}: {error}") from None
        if self.tls_cert is not None:
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key)
            except (OSError, ssl.SSLError) as error:
                files = " and ".join(str(file) for file in (self.tls_cert, self.tls_key) if file is not None)
                reason = f"--nats-tls-cert and --nats-tls-key: can't use {files}: {error}"
                raise TerminalDeliveryError(reason) from None
        return context


def _is_seed(text: bytes) -> bool:
    import nkeys  # type: ignore[import-untyped]

    try:
        nkeys.from_seed(bytearray(text)).wipe()
    except Exception:  # of several kinds, some of them not its own
        return False
    return text.startswith(b"SU")


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TerminalDeliveryError(f"{option}: can't read {str(path)!r}: {error.strerror}") from None


class _TlsClient(Client):
    """nats-py's client, which would go on in plain text where a server does not ask for TLS."""

    wants_tls = False
    has_certificate = False

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if info.get("tls_verify") and not self.has_certificate:
            raise TerminalDeliveryError("the NATS server requires a certificate; give one with --nats-tls-cert")
        if self.wants_tls and initial_connection and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise TerminalDeliveryError("TLS is required, but the NATS server does not offer it")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


class NatsConnection:
    """A connection that is up, until `lost`. `denied` has subjects that may not be written, and until when that is believed."""

    def __init__(self, server: NatsEndpoint, denied: dict[str, float]) -> None:
        self.server = server
        self.heard = 0
        """Counts replies: whether a server that is slow still works."""
        self.lost: asyncio.Future[DeliveryError] = asyncio.get_running_loop().create_future()
        # In lower case, as nats-py reports them.
        self._denied = denied
        self._waiting: dict[str, Replies] = {}
        self._exchanges = 0
        self._client = _TlsClient()
        self._last_error: Exception | None = None
        self.is_deaf = False
        """The user may not subscribe to replies, so that nothing can be confirmed."""
        self._denials: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open(self, credentials: NatsLogin, options: Mapping[str, Any]) -> None:
        """The handshake, and the subscription to replies; `options` are the credentials as nats-py takes them."""
        self._client.wants_tls = credentials.wants_tls(self.server)
        self._client.has_certificate = credentials.tls_cert is not None
        address = f"nats://{self.server.address}"
        try:
            await self._client.connect(
                [address],
                name="tardis-machine",
                error_cb=self._note_error,
                closed_cb=self._note_loss,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_TIMEOUT_S,
                ping_interval=20,
                **options,
            )
        except DeliveryError:
            raise
        except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
            raise self._explain(error) from error
        self._inbox = f"{self._client.new_inbox()}."
        await self._client.subscribe(f"{self._inbox}>", cb=self._take_reply)
        # nats-py's first ping overtakes the subscription; what the server says to that comes before the answer to the second.
        await self.flush()
        await self.flush()

    def _explain(self, error: Exception) -> DeliveryError:
        cause = self._last_error or error
        said = str(cause).removeprefix("nats: ").strip("'")
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
            said = os.strerror(cause.errno)
        address = self.server.address
        if isinstance(cause, ssl.SSLCertVerificationError):
            return TerminalDeliveryError(f"the certificate of the NATS server {address} is not trusted: {cause.verify_message}")
        if isinstance(cause, ssl.SSLError):
            return TerminalDeliveryError(f"TLS with the NATS server {address} failed: {cause.reason or cause}")
        if any(refusal in said.lower() for refusal in _REFUSALS):
            return TerminalDeliveryError(f"the NATS server {address} refuses the credentials: {said}")
        if isinstance(cause, TimeoutError) and not said:
            said = f"no answer within {CONNECT_TIMEOUT_S} s"
        return TransientDeliveryError(f"the NATS server {address} can't be reached: {said or type(cause).__name__}")

    async def _note_error(self, error: Exception) -> None:
        self._last_error = error
        said = str(error).removeprefix("nats: ")
        if said.startswith(_DENIED_REPLIES):
            self.is_deaf = True
        elif said.startswith(_DENIED):
            subject = said.removeprefix(_DENIED).strip('"')
            if not self._denials.done():
                self._denials.set_result(subject)
            self._denied[subject] = time.monotonic() + _DENIED_FOR_S
            # Of a sequence with a hole nothing more may be heard, so all are sent again, without those that may not be.
            for replies in self._waiting.values():
                replies.fail(TransientDeliveryError(f"the NATS user may not publish to {subject}"))

    async def _note_loss(self) -> None:
        self._lose(str(self._last_error or "").removeprefix("nats: ") or "it was closed")

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(
                TransientDeliveryError(f"the connection to the NATS server {self.server.address} broke: {reason}")
            )

    async def _take_reply(self, msg: Msg) -> None:
        self.heard += 1
        name, _, end = msg.subject[len(self._inbox) :].partition(".")
        replies = self._waiting.get(name)
        if replies is not None:
            replies.take(end, msg)

    @contextmanager
    def expecting(self, replies: Replies) -> Iterator[bytes]:
        """Gives what reply subjects have to begin with, so that their replies are taken as these."""
        self._exchanges += 1
        # Streams know a batch by this token alone: no other connection may have the same.
        name = f"{self._inbox.split('.')[-2]}{self._exchanges}"
        self._waiting[name] = replies
        try:
            yield f"{self._inbox}{name}.".encode()
        finally:
            del self._waiting[name]

    def is_denied(self, subject: str) -> bool:
        """Whether the server said, not long ago, that this user may not publish to it."""
        return bool(self._denied) and self._denied.get(subject.lower(), 0.0) > time.monotonic()

    @property
    def info(self) -> Mapping[str, Any]:
        """What the server said of itself."""
        info: Mapping[str, Any] = self._client._server_info
        return info

    @property
    def siblings(self) -> list[NatsEndpoint]:
        """Further servers of its cluster, which it told of."""
        mine = self.server
        return [
            mine._replace(host=uri.hostname, port=uri.port or 4222, tls_name=mine.tls_name or mine.host)
            for uri in self._client.discovered_servers
            if uri.hostname is not None
        ]

    async def request(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A call of the JetStream API, without its prefix. ApiError is its own no, or that the user may not ask."""
        if self._denials.done():
            self._denials = asyncio.get_running_loop().create_future()
        full = f"$JS.API.{subject}"
        asking = asyncio.ensure_future(self._client.request(full, msgspec.json.encode(body), timeout=API_TIMEOUT_S))
        waits: list[asyncio.Future[Any]] = [asking, self._denials, self.lost]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            was_answered = asking.done()
        finally:
            asking.cancel()
        if not was_answered:
            if self.lost.done():
                raise self.lost.result()
            raise ApiError(NOT_ALLOWED, f"the NATS user may not ask {full}")
        try:
            answer: dict[str, Any] = msgspec.json.decode((await asking).data)
        except nats.errors.NoRespondersError:
            raise TransientDeliveryError(f"JetStream does not answer at {self.server.address}; is it enabled?") from None
        except (nats.errors.Error, TimeoutError) as error:
            raise TransientDeliveryError(f"JetStream did not answer {full}: {str(error).removeprefix('nats: ')}") from error
        if "error" in answer:
            raise ApiError(answer["error"].get("err_code", 0), answer["error"].get("description", "no reason is given"))
        return answer

    async def write(self, lines: bytes) -> None:
        """Whole protocol lines; returns when the socket has room for more."""
        transport = self._client._transport
        if transport is None or self.lost.done():
            raise ConnectionResetError("the connection is closed")
        transport.write(lines)
        await transport.drain()  # type: ignore[no-untyped-call]

    async def flush(self) -> None:
        """Returns when the server has read all that was written."""
        try:
            await self._client.flush(timeout=int(API_TIMEOUT_S))
        except (nats.errors.Error, OSError) as error:
            raise self.lost.result() if self.lost.done() else self._explain(error) from error

    def abort(self) -> None:
        """Drops the connection with all that has not left yet."""
        self._lose("it was dropped")
        writer = getattr(self._client._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def close(self) -> None:
        """Lets go of it; nothing is in flight."""
        self.abort()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._client.close()
        except (nats.errors.Error, OSError, TimeoutError):
            pass  # it is gone, one way or the other


async def open_connection(server: NatsEndpoint, credentials: NatsLogin, denied: dict[str, float]) -> NatsConnection:
    """A connection that is up; what could not be opened is closed."""
    options = credentials.client_options(server)
    connection = NatsConnection(server, denied)
    try:
        await connection.open(credentials, options)
    except BaseException:
        await connection.close()
        raise
    return connection
