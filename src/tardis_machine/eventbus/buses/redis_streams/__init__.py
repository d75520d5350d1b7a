"""The Redis Streams bus: one server, Sentinel or a Cluster; each record is an entry with the fields `value`, `key` and its headers.

Invariant: the records of one stream in a batch are stored together or, where the server can't take them now, not at all; what the
server confirmed is never sent again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from ....errors import DeliveryError, MissingExtraError, SettingsError, TerminalDeliveryError, TransientDeliveryError
from ....settings import Option, ValueParser, duration, hosts, integer, path, switch, text, url
from ...contract import Danger, Failure, Limits, Record
from ...options import common_bus_options
from ...routing import Routing
from .commands import (
    ENTRY_FIELDS,
    NO_TRIM,
    ErrorReply,
    Packer,
    Redirect,
    Shipment,
    Trim,
    pack_command,
    refusals_in,
    to_age_trim,
    to_error,
    to_length_trim,
    to_shipments,
)
from .servers import Access, Address, Link, Sentinels, Servers, Tls

__all__ = ["OPTIONS", "REQUIRED", "RedisBus", "create_bus", "create_routing", "to_servers"]

_PORT, _SENTINEL_PORT = 6379, 26379


def _read_host(given: str) -> str:
    if not given.strip() or "/" in given or given.count(":") == 1:
        raise ValueError
    return given


def _option(name: str, help_: str, **fields: Any) -> Option:
    return Option(name=f"redis-{name}", help=help_, group="redis", **fields)


OPTIONS = (
    _option("url", "Address as a URL, with user, password and database in it", parse=url("redis", "rediss")),
    _option("host", "Address of the server", parse=ValueParser(_read_host, "a host name; its port is --redis-port", "HOST")),
    _option("port", "Port of the server", parse=integer(1, 65535), default=_PORT),
    _option("cluster-nodes", "Addresses of a Redis Cluster; some of its nodes are enough", parse=hosts(_PORT)),
    _option("sentinels", "Addresses of sentinels, which find the master", parse=hosts(_SENTINEL_PORT)),
    _option(
        "sentinel-master",
        "Name of the master at the sentinels",
        parse=text(),
        aliases=("redis-sentinel-master-name",),
    ),
    _option("sentinel-username", "User at the sentinels", parse=text()),
    _option("sentinel-password", "Password at the sentinels", parse=text(), secret=True),
    _option("username", "User at the servers", parse=text()),
    _option("password", "Password at the servers", parse=text(), secret=True),
    _option("db", "Number of the database", parse=integer(0)),
    _option("tls", "Connect with TLS", parse=switch, default=False),
    _option("tls-ca", "Certificates of authorities to trust in addition to the system's", parse=path),
    _option("tls-cert", "Certificate of the client, if servers require one", parse=path),
    _option("tls-key", "Key of the certificate", parse=path),
    _option("tls-verify", "Check the certificates of servers; --no-redis-tls-verify accepts any", parse=switch, default=True),
    _option("stream", "Base stream", parse=text(), aliases=("redis-stream-name",)),
    _option("wait-replicas", "Replicas that must have an event before it counts as confirmed", parse=integer(0), default=0),
    _option("max-length", "About how many entries a stream keeps; older ones are removed", parse=integer(1)),
    _option("max-age", "Entries older than about this are removed from a stream", parse=duration(0.001)),
    *common_bus_options(
        "redis",
        destination="stream",
        key_option="record-key-template",
        destination_template="stream-template",
        aliases={"stream-template": ("key-template",)},
        max_batch_size=4000,
        max_batch_size_limit=10_000,
    ),
)
REQUIRED = ("redis-url|redis-host|redis-cluster-nodes|redis-sentinels", "redis-stream")

LIMITS = Limits(batch_records=10_000, batch_bytes=16 * 1024**2, record_bytes=512 * 1024**2)
"""A server takes 512 MiB a value, unless its proto-max-bulk-len says otherwise. It does nothing else while it stores a transaction, so
that these are not larger than they need be."""

# A stream of a cluster may be moved while it is written to; more often than this a server is lost in its own map.
_MAX_HOPS = 5
_REPLICAS_TIMEOUT_MS = 5000
# Another connection may lead to another server, or be signed in; after a protocol error the server ends this one.
_RECONNECT = ("READONLY", "MASTERDOWN", "NOAUTH", "ERR Protocol error")


def create_bus(options: Mapping[str, Any]) -> RedisBus:
    """The bus as its options say."""
    problems: list[str] = []
    seeds, access = to_servers(options, problems)
    if problems:
        raise SettingsError(problems)
    streams = list(dict.fromkeys((options["stream"], *(options.get("routing") or {}).values())))
    return RedisBus(
        Servers(seeds, access),
        streams,
        max_length=options.get("max_length"),
        max_age_s=options.get("max_age"),
        wait_replicas=options.get("wait_replicas") or 0,
    )


def create_routing(options: Mapping[str, Any]) -> Routing:
    """Where its records go."""
    for name in options.get("static_headers") or ():
        if name.lower() in ENTRY_FIELDS:
            taken = " and ".join(ENTRY_FIELDS)
            raise SettingsError([f"--redis-static-headers: {name!r} can't be set, as {taken} are fields of every entry"])
    return Routing.from_options(options, options["stream"])


def to_servers(options: Mapping[str, Any], problems: list[str]) -> tuple[Sequence[Address] | Sentinels, Access]:
    """Where the servers are and who asks, for writers and readers; what is wrong is added to `problems`."""
    given = [name for name in ("url", "host", "cluster_nodes", "sentinels") if options.get(name) is not None]
    if len(given) > 1:
        names = " and ".join(f"--redis-{name.replace('_', '-')}" for name in given)
        problems.append(f"{names} can't be combined; choose one address")
    if (options.get("sentinels") is None) != (options.get("sentinel_master") is None):
        problems.append("--redis-sentinels and --redis-sentinel-master must be given together")
    from_url = _read_url(options["url"], problems) if options.get("url") is not None else {}
    merged = {**from_url, **{name: value for name, value in options.items() if value is not None}}
    tls = _to_tls(options, bool(from_url.get("tls") or options.get("tls")), problems)
    access = Access(username=merged.get("username"), password=merged.get("password"), db=merged.get("db") or 0, tls=tls)
    if options.get("sentinels") is not None:
        sentinel_access = Access(
            username=options.get("sentinel_username"),
            password=options.get("sentinel_password"),
            tls=tls,
            options="--redis-sentinel-username and --redis-sentinel-password",
        )
        addresses = [_to_address(host) for host in options["sentinels"]]
        return Sentinels(addresses, options.get("sentinel_master") or "", sentinel_access), access
    if options.get("cluster_nodes") is not None:
        return [_to_address(host) for host in options["cluster_nodes"]], access
    port = from_url.get("port") or options.get("port") or _PORT
    return [(from_url.get("host") or options.get("host") or "", port)], access


def _read_url(given: str, problems: list[str]) -> dict[str, Any]:
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(given)
    db = parts.path.strip("/")
    if parts.query or parts.fragment or not (db.isdecimal() or not db):
        problems.append("--redis-url: expected redis://user:password@host:port/database; other settings have their own options")
        db = ""
    found = {
        "host": parts.hostname,
        "port": parts.port,
        "username": unquote(parts.username or "") or None,
        "password": unquote(parts.password or "") or None,
        "db": int(db) if db else None,
        "tls": parts.scheme == "rediss",
    }
    return {name: value for name, value in found.items() if value is not None}


def _to_tls(options: Mapping[str, Any], is_on: bool, problems: list[str]) -> Tls | None:
    files = {name: options.get(f"tls_{name}") for name in ("ca", "cert", "key")}
    for name, file in files.items():
        if file is not None and not is_on:
            problems.append(f"--redis-tls-{name} needs --redis-tls")
        elif file is not None and not file.is_file():
            problems.append(f"--redis-tls-{name}: {str(file)!r} is not a file")
    if (files["cert"] is None) != (files["key"] is None):
        problems.append("--redis-tls-cert and --redis-tls-key must be given together")
    return Tls(**files, verify=options.get("tls_verify", True)) if is_on else None


def _to_address(host_and_port: str) -> Address:
    host, _, port = host_and_port.rpartition(":")
    return host.strip("[]"), int(port)


class _ShipmentResult(NamedTuple):
    """What became of a shipment at a server: the records that it did not store, by their place, and where to go instead."""

    shipment: Shipment
    address: Address | None
    errors: Mapping[int, DeliveryError]
    redirect: Redirect | None = None


class RedisBus:
    """Sends each batch as a transaction for each of its streams, all of them at once."""

    name = "redis"

    def __init__(
        self,
        servers: Servers,
        streams: Sequence[str],
        *,
        max_length: int | None = None,
        max_age_s: float | None = None,
        wait_replicas: int = 0,
    ) -> None:
        try:
            import hiredis  # noqa: F401
            import redis  # noqa: F401
        except ImportError:
            raise MissingExtraError("the Redis bus", "redis") from None
        self.limits = LIMITS
        self._servers = servers
        # Those that are known before anything is sent; a template may name more.
        self._streams = streams
        self._length_trim = NO_TRIM if max_length is None else to_length_trim(max_length)
        self._max_age_s = max_age_s
        self._was_trimmed_by_age = False
        self._wait_replicas = wait_replicas
        self._packer = Packer()
        self._was_connected = False

    async def connect(self) -> None:
        """Finds a server that answers, and shows that the streams can be written."""
        link = await self._servers.open()
        for stream in self._streams:
            try:
                await self._rehearse(stream)
            except DeliveryError:
                # Later on `send` says so of the records that it concerns, and what other streams and servers take goes on.
                if not self._was_connected or not self._servers.links:
                    raise
        if not self._was_connected:
            await self._read_limits(link)
            self._was_connected = True

    async def _rehearse(self, stream: str) -> Link:
        """Shows that the stream takes entries from this user on this server, adding none: a transaction that is not carried out.

        Returns the connection to the server that has the stream.
        """
        link = await self._servers.link_for(stream)
        for _ in range(_MAX_HOPS):
            reply = await link.ask("MULTI")
            if not isinstance(reply, ErrorReply):
                link.write([pack_command("XADD", stream, "*", "value", ""), pack_command("DISCARD")])
                reply, _ = await link.read(2)
            redirect = Redirect.parse(str(reply), link.address[0]) if isinstance(reply, ErrorReply) else None
            if redirect is None:
                break
            link = await self._servers.redirected(stream, redirect.address, is_lasting=redirect.is_lasting)
            if not redirect.is_lasting:
                return link
        if isinstance(reply, ErrorReply):
            self._leave_if_useless(link.address, str(reply))
            raise to_error(stream, str(reply))
        if self._wait_replicas:
            replicas = await link.ask("WAIT", "0", "1")
            if isinstance(replicas, ErrorReply):
                raise TerminalDeliveryError(f"--redis-wait-replicas can't be met: {replicas}")
            if lack := to_lack(replicas, self._wait_replicas):
                raise lack
        kind = await link.ask("TYPE", stream)
        if isinstance(kind, bytes) and kind not in (b"none", b"stream"):
            raise to_error(stream, f"WRONGTYPE it is a {kind.decode()}")
        return link

    async def _read_limits(self, link: Link) -> None:
        reply = await link.ask("CONFIG", "GET", "proto-max-bulk-len")
        if isinstance(reply, list) and len(reply) == 2:
            self.limits = msgspec.structs.replace(LIMITS, record_bytes=min(LIMITS.record_bytes, int(reply[1])))

    async def check(self) -> Sequence[str | Danger]:
        """Sentences for `doctor`."""
        sentences: list[str | Danger] = []
        for stream in self._streams:
            link = await self._rehearse(stream)
            length = await link.ask("XLEN", stream)
            kept = f"has {length} entries" if isinstance(length, int) and length else "is empty"
            sentences.append(f"the stream {stream!r} {kept}, and XADD, MULTI and EXEC are allowed")
        for link in self._servers.links:
            sentences += to_sentences(link.address, await link.ask("INFO"))
        return sentences

    async def send(self, batch: Sequence[Record]) -> Sequence[Failure]:
        """A transaction for each stream, each to the server that has the stream."""
        trim = self._next_trim()
        failures: list[Failure] = []
        shipments = to_shipments(batch)
        for hops_left in range(_MAX_HOPS, -1, -1):
            answers = await self._ask_servers(shipments, trim)
            shipments = []
            for answer in answers:
                followed: _ShipmentResult | None = answer
                if answer.redirect is not None and hops_left:
                    followed = await self._follow(answer.shipment, answer.redirect, trim)
                if followed is None:
                    shipments.append(answer.shipment)
                elif followed.errors:
                    failures += self._to_failures(followed)
            if not shipments:
                break
        return failures

    async def close(self) -> None:
        """Ends all connections."""
        await self._servers.close()

    def _next_trim(self) -> Trim:
        """An XADD can trim in one way only: where two are asked for, they take turns."""
        if self._max_age_s is None or (self._length_trim is not NO_TRIM and self._was_trimmed_by_age):
            self._was_trimmed_by_age = False
            return self._length_trim
        self._was_trimmed_by_age = True
        return to_age_trim(self._max_age_s, time.time())

    async def _ask_servers(self, shipments: Sequence[Shipment], trim: Trim) -> list[_ShipmentResult]:
        """Sends to all servers at once, and reads what they say of each shipment."""
        answers: list[_ShipmentResult] = []
        by_link: dict[Link, list[Shipment]] = {}
        for shipment in shipments:
            try:
                link = await self._servers.link_for(shipment.stream)
            except DeliveryError as error:
                answers.append(_lost(shipment, None, error))
            else:
                by_link.setdefault(link, []).append(shipment)
        if len(by_link) == 1:
            ((link, of_link),) = by_link.items()
            return answers + await self._ask(link, of_link, trim)
        import asyncio

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(self._ask(link, of_link, trim)) for link, of_link in by_link.items()]
        return answers + [answer for task in asking for answer in task.result()]

    async def _ask(self, link: Link, shipments: Sequence[Shipment], trim: Trim) -> list[_ShipmentResult]:
        answers: list[_ShipmentResult] = []
        link.write(chain.from_iterable(shipment.packed(self._packer, trim) for shipment in shipments))
        for shipment in shipments:
            try:
                replies = await link.read(shipment.replies)
            except DeliveryError as error:
                self._servers.forget(link.address, error)
                return answers + [_lost(left, link.address, error) for left in shipments[len(answers) :]]
            answers.append(self._judge(shipment, link.address, refusals_in(replies)))
        return await self._await_replicas(link, answers)

    async def _await_replicas(self, link: Link, answers: list[_ShipmentResult]) -> list[_ShipmentResult]:
        """The same answers where enough replicas have what the server stored."""
        if not self._wait_replicas or not link.is_open:
            return answers
        try:
            lack = to_lack(await link.ask("WAIT", str(self._wait_replicas), str(_REPLICAS_TIMEOUT_MS)), self._wait_replicas)
        except DeliveryError as error:
            self._servers.forget(link.address, error)
            lack = TransientDeliveryError(str(error))
        if lack is None:
            return answers
        return [
            answer._replace(errors={**dict.fromkeys(range(len(answer.shipment)), lack), **answer.errors}) for answer in answers
        ]

    def _judge(self, shipment: Shipment, address: Address, refusals: Mapping[int, str]) -> _ShipmentResult:
        if not refusals:
            return _ShipmentResult(shipment, address, {})
        errors = {reply: to_error(shipment.stream, reply) for reply in set(refusals.values())}
        for reply in errors:
            self._leave_if_useless(address, reply)
        is_whole = len(refusals) == len(shipment)
        redirect = Redirect.parse(refusals[0], address[0]) if is_whole else None
        return _ShipmentResult(shipment, address, {place: errors[reply] for place, reply in refusals.items()}, redirect)

    def _leave_if_useless(self, address: Address, reply: str) -> None:
        if reply.startswith(_RECONNECT):
            self._servers.forget(address)

    async def _follow(self, shipment: Shipment, redirect: Redirect, trim: Trim) -> _ShipmentResult | None:
        """None where the shipment is to be sent again, now that it is known where to."""
        try:
            link = await self._servers.redirected(shipment.stream, redirect.address, is_lasting=redirect.is_lasting)
        except DeliveryError as error:
            return _lost(shipment, redirect.address, error)
        return None if redirect.is_lasting else await self._send_singly(link, shipment, trim)

    async def _send_singly(self, link: Link, shipment: Shipment, trim: Trim) -> _ShipmentResult:
        """To a server that is just being given the stream, and takes no transactions until it has it: each record by itself, none
        before the one in front of it is stored."""
        errors: dict[int, DeliveryError] = {}
        for place, record in enumerate(shipment.records):
            link.write([pack_command("ASKING"), self._packer.pack([record], trim)])
            try:
                _, reply = await link.read(2)
            except DeliveryError as lost:
                self._servers.forget(link.address, lost)
                error: DeliveryError = TransientDeliveryError(str(lost))
            else:
                if not isinstance(reply, ErrorReply):
                    continue
                error = to_error(shipment.stream, str(reply))
            if isinstance(error, TransientDeliveryError):
                errors |= dict.fromkeys(range(place, len(shipment)), error)
                break
            errors[place] = error
        (answer,) = await self._await_replicas(link, [_ShipmentResult(shipment, link.address, errors)])
        return answer

    def _to_failures(self, answer: _ShipmentResult) -> list[Failure]:
        indexes = answer.shipment.indexes
        # A server of a cluster fails for itself; where there is no other, the bus does.
        is_local = self._servers.has_others(answer.address)
        return [Failure(indexes[place], error, is_local) for place, error in answer.errors.items()]


def _lost(shipment: Shipment, address: Address | None, error: DeliveryError) -> _ShipmentResult:
    """There is no answer. Credentials that are no longer good are the trouble of the bus, not of its records."""
    return _ShipmentResult(shipment, address, dict.fromkeys(range(len(shipment)), TransientDeliveryError(str(error))))


def to_lack(replicas: Any, wanted: int) -> TransientDeliveryError | None:
    """What is wrong with the answer to WAIT."""
    if isinstance(replicas, int) and replicas >= wanted:
        return None
    return TransientDeliveryError(f"of {wanted} replicas (--redis-wait-replicas) those that have the events are: {replicas}")


def to_sentences(address: Address, info: object) -> list[str | Danger]:
    """What a server's INFO says of its readiness to keep events."""
    where = f"Redis at {address[0]}:{address[1]}"
    if not isinstance(info, bytes):
        return [f"{where} answers; this user may not see what it does when its memory is full, or whether it writes to disk"]
    said = dict(line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line)
    sentences: list[str | Danger] = [f"{where} answers, version {said.get('redis_version')}"]
    policy = said.get("maxmemory_policy", "")
    if policy.startswith("allkeys-"):
        says = f"{where} may remove whole streams when its memory is full (maxmemory-policy {policy})"
        sentences.append(Danger(says, "set maxmemory-policy noeviction, so that a full server refuses events and they wait"))
    if said.get("aof_enabled") != "1":
        says = f"{where} loses the last events when it crashes (appendonly no)"
        sentences.append(Danger(says, "set appendonly yes, or --redis-wait-replicas if it has replicas"))
    return sentences
