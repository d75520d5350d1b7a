"""Connections to Redis: one server, the master that Sentinel names, or the nodes of a Cluster.

A cluster needs no map: a server that is asked for a stream which it does not have says who has it, and that is remembered. One
server is a cluster that never says so.

Invariant: a link that failed, or whose reader was cancelled, is aborted at once: nothing that waited to be sent leaves later, and no
late reply is taken for another's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ....errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError
from .commands import ErrorReply, pack_command

if TYPE_CHECKING:
    from redis.asyncio import Connection

__all__ = ["Access", "Address", "Link", "Sentinels", "Servers", "Tls"]

Address: TypeAlias = tuple[str, int]

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 15.0
"""How long a server may say nothing while something is asked of it."""
SILENCE_S = 30.0
"""How long a server that did not answer is left alone, where there are others: they would wait for it at every batch."""
_READ_BYTES = 1 << 20
# What is no reply: the next one is not whole yet.
_NO_REPLY = object()
# The server reads and queues this much while the rest is still being packed.
_WRITE_BYTES = 64 * 1024


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """How servers are to prove who they are, and how we do."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True

    def keywords(self) -> dict[str, Any]:
        """As redis-py takes them."""
        given = {"ssl_ca_certs": self.ca, "ssl_certfile": self.cert, "ssl_keyfile": self.key}
        checked = {"ssl_cert_reqs": "required" if self.verify else "none", "ssl_check_hostname": self.verify}
        return {**checked, **{name: str(path) for name, path in given.items() if path is not None}}


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What every connection is opened with."""

    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: Tls | None = None
    options: str = "--redis-username and --redis-password"
    """Where the user gave the credentials."""

    def __repr__(self) -> str:
        """Without the password."""
        return f"Access(username={self.username!r}, db={self.db})"

    async def open(self, address: Address) -> Link:
        """Connects and signs in."""
        import asyncio
        import ssl

        from redis.asyncio import Connection, SSLConnection
        from redis.exceptions import AuthenticationError, RedisError, ResponseError

        host, port = address
        keywords: dict[str, Any] = {
            "host": host,
            "port": port,
            "username": self.username,
            "password": self.password,
            "db": self.db,
            "protocol": 2,
            # It is Link that reads and bounds; a server may not allow that clients say what they are.
            "socket_timeout": None,
            "driver_info": None,
        }
        connection = Connection(**keywords) if self.tls is None else SSLConnection(**keywords, **self.tls.keywords())
        where = f"Redis at {host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.connect()  # type: ignore[no-untyped-call]
                link = Link(connection, address)
                await self._prove(link, where)
        except TimeoutError as error:
            raise TransientDeliveryError(f"{where} did not answer within {CONNECT_TIMEOUT_S:g} s") from error
        except AuthenticationError as error:
            raise TerminalDeliveryError(f"{where} did not accept {self.options}: {error}") from None
        except ResponseError as error:
            if "DB" in str(error) or "SELECT" in str(error):
                raise TerminalDeliveryError(f"{where} has no database {self.db} (--redis-db): {error}") from None
            raise TransientDeliveryError(f"{where} refused the connection: {error}") from error
        except (RedisError, OSError) as error:
            if isinstance(error.__context__, ssl.SSLError):
                raise TerminalDeliveryError(f"{where} and TLS do not agree (--redis-tls…): {error.__context__}") from error
            raise TransientDeliveryError(f"{where} can't be reached: {error}") from error
        return link

    async def _prove(self, link: Link, where: str) -> None:
        """Shows that the connection may be used: what was not asked for credentials or a certificate yet is asked now."""
        import ssl

        try:
            reply = await link.ask("PING")
        except TransientDeliveryError as error:
            if isinstance(error.__cause__, ssl.SSLError):
                raise TerminalDeliveryError(f"{where} and TLS do not agree (--redis-tls…): {error.__cause__}") from error
            if self.tls is not None and self.tls.cert is None:
                raise TransientDeliveryError(f"{error}; it may want a certificate (--redis-tls-cert)") from error
            raise
        if isinstance(reply, ErrorReply) and str(reply).startswith("NOAUTH"):
            link.abort()
            raise TerminalDeliveryError(f"{where} requires credentials; give {self.options}")


class Link:
    """One connection: commands leave as they are packed, replies come back in bulk."""

    def __init__(self, connection: Connection, address: Address) -> None:
        import hiredis

        assert connection._reader is not None
        assert connection._writer is not None
        self.address = address
        self._connection = connection
        self._reader = connection._reader
        self._writer = connection._writer
        self._replies = hiredis.Reader(protocolError=ErrorReply, replyError=ErrorReply, notEnoughData=_NO_REPLY)
        self.is_open = True

    def write(self, parts: Iterable[bytes]) -> None:
        """Begins to send; whether that succeeds is seen when replies are read."""
        waiting: list[bytes] = []
        size_bytes = 0
        for part in parts:
            waiting.append(part)
            size_bytes += len(part)
            if size_bytes >= _WRITE_BYTES:
                self._write(waiting)
                waiting, size_bytes = [], 0
        self._write(waiting)

    def _write(self, parts: Iterable[bytes]) -> None:
        if not self._writer.is_closing():
            self._writer.write(b"".join(parts))

    async def read(self, count: int) -> list[Any]:
        """The next replies; an ErrorReply is one too."""
        import asyncio

        replies: list[Any] = []
        try:
            while True:
                # One after another, with no step of Python between them.
                replies += islice(iter(self._replies.gets, _NO_REPLY), count - len(replies))
                if len(replies) == count:
                    return replies
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    received = await self._reader.read(_READ_BYTES)
                if not received:
                    raise ConnectionResetError("the server closed it")
                self._replies.feed(received)
        except (OSError, ErrorReply) as error:
            self.abort()
            host, port = self.address
            why = f"no answer within {ANSWER_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else error
            raise TransientDeliveryError(f"the connection to Redis at {host}:{port} was lost: {why}") from error
        except BaseException:
            self.abort()
            raise

    async def ask(self, *words: str | bytes) -> Any:
        """The reply to one command."""
        self.write([pack_command(*words)])
        return (await self.read(1))[0]

    def abort(self) -> None:
        """Ends it; what has not been sent is thrown away, in the kernel too."""
        import socket
        import struct

        if not self.is_open:
            return
        self.is_open = False
        plug = self._writer.get_extra_info("socket")
        if plug is not None and plug.fileno() >= 0:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        self._connection._reader = self._connection._writer = None

    async def close(self) -> None:
        """Ends it in order."""
        if self.is_open:
            self.is_open = False
            await self._connection.disconnect()


class Sentinels:
    """Servers that know which one is the master."""

    def __init__(self, addresses: Sequence[Address], master: str, access: Access) -> None:
        self._addresses = addresses
        self._master = master
        self._access = access

    async def find_master(self) -> Address:
        """As the first sentinel says that knows it."""
        trouble: DeliveryError | None = None
        for address in self._addresses:
            try:
                link = await self._access.open(address)
                try:
                    reply = await link.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._master)
                finally:
                    await link.close()
            except DeliveryError as error:
                trouble = error
                continue
            host, port = address
            if reply is None:
                trouble = TerminalDeliveryError(f"the sentinel at {host}:{port} knows no master {self._master!r}")
            elif isinstance(reply, ErrorReply):
                code = str(reply).partition(" ")[0]
                kind = TerminalDeliveryError if code in ("NOAUTH", "NOPERM") else TransientDeliveryError
                trouble = kind(f"the sentinel at {host}:{port} did not answer ({self._access.options}): {reply}")
            else:
                return (reply[0].decode(), int(reply[1]))
        assert trouble is not None
        raise trouble


class Servers:
    """The servers that take streams, found from those that were given."""

    def __init__(self, seeds: Sequence[Address] | Sentinels, access: Access) -> None:
        self._seeds = seeds
        self._access = access
        self._links: dict[Address, Link] = {}
        # The server to ask for what nobody was named for.
        self._first: Address | None = None
        # Hash slot to the server that has it, where another server said so; and all servers that were ever named.
        self._owners: dict[int, Address] = {}
        self._named: dict[Address, None] = {}
        # Servers that did not answer, and until when they are left alone.
        self._silent: dict[Address, float] = {}

    @property
    def links(self) -> list[Link]:
        """The connections that are open."""
        return [link for link in self._links.values() if link.is_open]

    def has_others(self, address: Address | None) -> bool:
        """Whether a server beside this one is connected."""
        return any(link.address != address for link in self.links)

    async def open(self) -> Link:
        """The first server that answers, connected."""
        if self._first is not None and (link := self._links.get(self._first)) is not None and link.is_open:
            return link
        if isinstance(self._seeds, Sentinels):
            candidates: Sequence[Address] = [await self._seeds.find_master()]
        else:
            # A cluster goes on though all servers that it was begun with are gone; one that is connected is asked first.
            connected = (link.address for link in self.links)
            candidates = list(dict.fromkeys((*connected, *self._seeds, *self._named)))
        trouble: DeliveryError | None = None
        for address in candidates:
            try:
                link = await self._link_to(address)
            except DeliveryError as error:
                trouble = error
            else:
                self._first = address
                return link
        assert trouble is not None
        raise trouble

    async def link_for(self, stream: str) -> Link:
        """A connection to the server that has this stream, as far as is known."""
        owner = self._owners.get(_slot_of(stream)) if self._owners else None
        return await self.open() if owner is None else await self._link_to(owner)

    async def redirected(self, stream: str, address: Address, *, is_lasting: bool) -> Link:
        """A connection to the server that has this stream, as another one said."""
        self._named[address] = None
        if is_lasting:
            self._owners[_slot_of(stream)] = address
        return await self._link_to(address)

    def forget(self, address: Address, error: DeliveryError | None = None) -> None:
        """The server failed: what it had may be elsewhere now."""
        link = self._links.pop(address, None)
        if link is not None:
            link.abort()
        for slot in [slot for slot, owner in self._owners.items() if owner == address]:
            del self._owners[slot]
        if error is not None and isinstance(error.__cause__, TimeoutError):
            self._silent[address] = time.monotonic() + SILENCE_S

    async def close(self) -> None:
        """Ends all connections."""
        for link in self._links.values():
            await link.close()
        self._links.clear()

    async def _link_to(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is None or not link.is_open:
            if self._silent.get(address, 0) > time.monotonic() and self.has_others(address):
                raise TransientDeliveryError(
                    f"Redis at {address[0]}:{address[1]} did not answer, and is not tried again for a while"
                )
            try:
                link = self._links[address] = await self._access.open(address)
            except DeliveryError as error:
                self.forget(address, error)
                raise
            self._silent.pop(address, None)
        return link


def _slot_of(stream: str) -> int:
    from redis.crc import key_slot

    return key_slot(stream.encode())
