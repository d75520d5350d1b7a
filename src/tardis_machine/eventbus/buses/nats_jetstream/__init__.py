"""The NATS bus: JetStream streams, in batches that a stream takes in order or not at all.

A stream that allows batches (`allow_batched`, nats-server 2.14; what `--nats-stream` makes does) gets each batch as one numbered
sequence: the first record that it can't take ends the sequence, and none behind it is stored. One reply confirms all. Other streams
confirm each record by itself. Where such a stream may refuse one record and take the next (several replicas, or a full stream that
discards what is new), a key has one record on its way at a time; else all of a batch are.

Invariant: a record counts as confirmed when its stream said so, and nothing is written to a connection after its `send` ended.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ....errors import DeliveryError, MissingExtraError, SettingsError, TerminalDeliveryError, TransientDeliveryError
from ....settings import Option, Refused, duration, integer, items, path, switch, text, url
from ...contract import Danger, Failure, Limits, Record, Records, Route
from ...options import common_bus_options
from ...routing import Routing
from .lines import HEADER_NAME, HEADROOM_BYTES, IN_FLIGHT_MAX, LineParts, to_parts
from .subjects import any_covers, check_subject, escape_token, producible_subjects, without_covered

if TYPE_CHECKING:
    from .connection import NatsConnection, NatsEndpoint

__all__ = ["OPTIONS", "REQUIRED", "NatsBus", "create_bus", "create_routing"]

_IN_FLIGHT = 4000
_BATCH_BYTES = 16 * 1024**2
_PAYLOAD_BYTES = 1024**2  # what servers take unless told otherwise; each says its own
# The level of the JetStream API from which streams take batches.
_BATCHES_FROM_LEVEL = 3
_NOT_FOUND = 10059

_server_url = url("nats", "tls")


def _read_server(given: str) -> str:
    try:
        return _server_url(given if "://" in given else f"nats://{given}")
    except ValueError:
        raise Refused("expected nats://host:port or tls://host:port, several of them separated by commas") from None


def _read_stream(given: str) -> str:
    if not re.fullmatch(r"[^\s.*>/\\]+", given):
        raise Refused("the name of a stream can't have a space, dot, slash or wildcard")
    return given


def _option(name: str, help_: str, **fields: Any) -> Option:
    return Option(name=f"nats-{name}", help=help_, group="nats", **fields)


OPTIONS = (
    _option("servers", "Servers, tried in turn", parse=items(_read_server, takes="URLs or host:port", metavar="URL,…")),
    _option("subject", "Subject to publish to", parse=text(), metavar="SUBJECT"),
    _option("stream", "Stream that must have every subject; created if it is missing", parse=_read_stream, metavar="NAME"),
    _option("stream-replicas", "Replicas of a stream that is created", parse=integer(1, 5), default=1),
    _option("user", "User", parse=text(), metavar="NAME"),
    _option("password", "Password of the user", parse=text(), metavar="PASSWORD", secret=True, aliases=("nats-pass",)),
    _option("token", "Token instead of a user", parse=text(), metavar="TOKEN", secret=True),
    _option("creds", "Credentials file instead of a user (JWT and seed)", parse=path, metavar="FILE.creds"),
    _option("nkey", "File with an nkey seed instead of a user", parse=path, metavar="FILE.nk"),
    _option("tls", "Require TLS, as tls:// in a URL does", parse=switch, default=False),
    _option("tls-ca", "Certificates to trust instead of the system's", parse=path, metavar="FILE.pem"),
    _option("tls-cert", "Certificate of the client", parse=path, metavar="FILE.pem"),
    _option("tls-key", "Key of the certificate, if it is in another file", parse=path, metavar="FILE.pem"),
    _option("inbox-prefix", "Prefix of subjects for replies, which the user may subscribe to", parse=text(), default="_INBOX"),
    _option("ack-timeout", "How long to wait for a confirmation before a batch is sent again", parse=duration(0.1), default=10.0),
    _option(
        "core", "Publish without JetStream: at most once, to whoever is subscribed at that moment", parse=switch, default=False
    ),
    *common_bus_options(
        "nats",
        destination="subject",
        destination_template="subject-template",
        max_batch_size=_IN_FLIGHT,
        max_batch_size_limit=IN_FLIGHT_MAX,
    ),
)
REQUIRED = ("nats-servers", "nats-subject")


def create_bus(options: Mapping[str, Any]) -> NatsBus:
    """The bus as its options say."""
    if problems := list(_problems(options)):
        raise SettingsError(problems)
    return NatsBus(options)


def create_routing(options: Mapping[str, Any]) -> Routing:
    """Where its records go."""
    return Routing.from_options(options, options["subject"], escape=escape_token)


def _problems(options: Mapping[str, Any]) -> Iterator[str]:
    given = [("--nats-subject", options["subject"])]
    given += [("--nats-subject-routing", subject) for subject in (options["routing"] or {}).values()]
    given.append(("--nats-inbox-prefix", options["inbox_prefix"]))
    if options["destination_template"] is not None:
        given.append(("--nats-subject-template", re.sub(r"\{\{.*?\}\}", "x", options["destination_template"])))
    for option, subject in given:
        if problem := check_subject(subject):
            yield f"{option}: {subject!r} {problem}"
    for name, value in (options["static_headers"] or {}).items():
        if not HEADER_NAME.fullmatch(name) or name.lower().startswith("nats-"):
            yield f"--nats-static-headers: {name!r} can't be the name of a header (names that begin with Nats- can't either)"
        elif not value.isprintable():
            yield f"--nats-static-headers: the value of {name!r} is not one line of text"
    if (prefix := options["meta_headers_prefix"]) and not HEADER_NAME.fullmatch(prefix):
        yield f"--nats-meta-headers-prefix: the name of a header can't begin with {prefix!r}"
    if (options["user"] is None) != (options["password"] is None):
        yield "--nats-user and --nats-password must be given together"
    ways = [f"--nats-{name}" for name in ("user", "token", "creds", "nkey") if options[name] is not None]
    if len(ways) > 1:
        yield f"{' and '.join(ways)} can't be combined; choose one way to log in"
    if options["tls_key"] is not None and options["tls_cert"] is None:
        yield "--nats-tls-key needs --nats-tls-cert"
    if options["core"] and options["stream"] is not None:
        yield "--nats-core and --nats-stream can't be combined: core NATS has no streams"


class _JetStreamInfo(NamedTuple):
    """What counts of a stream."""

    name: str
    subjects: Sequence[str]
    takes_batches: bool
    keeps_order: bool
    """It does not refuse one record and take the next."""
    record_bytes: int

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> _JetStreamInfo:
        config = info["config"]
        return cls(
            config["name"],
            tuple(config.get("subjects") or ()),
            takes_batches=bool(config.get("allow_batched")),
            keeps_order=config.get("num_replicas", 1) == 1 and config.get("discard", "old") == "old",
            record_bytes=config.get("max_msg_size", -1),
        )


class NatsBus:
    """Publishes to subjects, and waits for their streams."""

    name = "nats"

    def __init__(self, options: Mapping[str, Any]) -> None:
        try:
            from .connection import NatsEndpoint, NatsLogin
        except ImportError:
            raise MissingExtraError("the NATS bus", "nats") from None
        self._credentials = NatsLogin(**{name: options[name] for name in NatsLogin._fields})
        # The next to be tried comes first.
        self._servers: deque[NatsEndpoint] = deque(NatsEndpoint.from_url(server) for server in options["servers"])
        self._is_core: bool = options["core"]
        self._stream_name: str | None = options["stream"]
        self._replicas: int = options["stream_replicas"]
        self._ack_timeout_s: float = options["ack_timeout"]
        self._subjects = producible_subjects(options)
        self._headroom_bytes = HEADROOM_BYTES + 4 * len(options["static_headers"] or {})
        self.limits = self._limits(_PAYLOAD_BYTES)
        self._connection: NatsConnection | None = None
        # Empty where they can't be looked at: the most careful way is taken.
        self._streams: list[_JetStreamInfo] = []
        self._parts: WeakKeyDictionary[Route, LineParts] = WeakKeyDictionary()
        # Subjects that may not be written, and until when they are left alone; known to all connections.
        self._denied: dict[str, float] = {}

    def _limits(self, payload_bytes: int) -> Limits:
        return Limits(
            batch_records=IN_FLIGHT_MAX,
            batch_bytes=_BATCH_BYTES,
            record_bytes=payload_bytes - self._headroom_bytes,
            send_timeout_s=self._ack_timeout_s + 30.0,
        )

    async def connect(self) -> None:
        """Finds a server that answers, and the streams that take what can be sent."""
        if self._connection is None or self._connection.lost.done():
            await self.close()
            self._connection = await self._open()
        if not self._is_core:
            if self._connection.is_deaf:
                raise TerminalDeliveryError(
                    "the NATS user may not subscribe to replies; allow --nats-inbox-prefix and everything below it"
                )
            await self._find_streams(self._connection)
        sizes = [self._connection.info.get("max_payload", _PAYLOAD_BYTES)]
        self.limits = self._limits(min(sizes + [stream.record_bytes for stream in self._streams if stream.record_bytes > 0]))

    async def _open(self) -> NatsConnection:
        from .connection import open_connection

        errors: list[DeliveryError] = []
        for _ in range(len(self._servers)):
            try:
                connection = await open_connection(self._servers[0], self._credentials, self._denied)
            except DeliveryError as error:
                errors.append(error)
                self._servers.rotate(-1)
            else:
                known = {server.address for server in self._servers}
                self._servers.extend(server for server in connection.siblings if server.address not in known)
                return connection
        refusals = [error for error in errors if isinstance(error, TerminalDeliveryError)]
        kind = TerminalDeliveryError if refusals else TransientDeliveryError
        raise kind("; ".join(dict.fromkeys(str(error) for error in refusals or errors)))

    async def _find_streams(self, connection: NatsConnection) -> None:
        if self._stream_name is not None:
            self._streams = [await self._made_stream(connection, self._stream_name)]
            return
        from .connection import NOT_ALLOWED, ApiError

        try:
            names = [name for subject in self._subjects for name in await self._names(connection, subject)]
            infos = [await connection.request(f"STREAM.INFO.{name}", {}) for name in dict.fromkeys(names)]
        except ApiError as error:
            if error.code != NOT_ALLOWED:
                raise TransientDeliveryError(f"the streams of the NATS server can't be listed: {error}") from None
            infos = []
        self._streams = [_JetStreamInfo.from_info(info) for info in infos]

    async def _names(self, connection: NatsConnection, subject: str) -> list[str]:
        names: list[str] | None = (await connection.request("STREAM.NAMES", {"subject": subject})).get("streams")
        if not names:
            wanted = "create one, or let --nats-stream create it"
            raise TerminalDeliveryError(f"no stream of the NATS server has the subject {subject}; {wanted}")
        return names

    async def _made_stream(self, connection: NatsConnection, name: str) -> _JetStreamInfo:
        from .connection import ApiError

        try:
            try:
                info = await connection.request(f"STREAM.INFO.{name}", {})
            except ApiError as error:
                if error.code != _NOT_FOUND:
                    raise
                info = await connection.request(f"STREAM.CREATE.{name}", self._stream_config(connection, name))
        except ApiError as error:
            raise TerminalDeliveryError(f"--nats-stream {name} can't be used: {error}") from None
        stream = _JetStreamInfo.from_info(info)
        for subject in self._subjects:
            if not any_covers(stream.subjects, subject):
                takes = ", ".join(stream.subjects) or "none"
                raise TerminalDeliveryError(f"--nats-stream {name} has the subjects {takes}, but not {subject}")
        return stream

    def _stream_config(self, connection: NatsConnection, name: str) -> dict[str, Any]:
        config = {
            "name": name,
            "subjects": without_covered(self._subjects),
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "num_replicas": self._replicas,
        }
        if connection.info.get("api_lvl", 0) >= _BATCHES_FROM_LEVEL:
            config["allow_batched"] = True
        return config

    async def check(self) -> Sequence[str | Danger]:
        """Sentences for `doctor`."""
        await self.connect()
        connection = self._connection
        assert connection is not None
        version, way = connection.info.get("version", "?"), "core NATS, at most once" if self._is_core else "JetStream"
        sentences: list[str | Danger] = [f"the server {connection.server.address} answers (version {version}, {way})"]
        if self._is_core:
            sentences.append(Danger("core NATS confirms nothing (--nats-core)", "remove --nats-core, so that JetStream is used"))
        if not self._streams and not self._is_core:
            sentences.append(
                "the user may not list streams ($JS.API.STREAM.NAMES, .INFO), so each key has one record in flight at a time"
            )
        found = [
            f"the stream {stream.name} has the subjects {', '.join(stream.subjects)}, {_describe_batches(stream)}"
            for stream in self._streams
        ]
        return [*sentences, *found]

    async def close(self) -> None:
        """Drops the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def send(self, batch: Sequence[Record]) -> Sequence[Failure]:
        """Every record to its subject's stream, one stream after the other."""
        connection = self._connection
        if connection is None or connection.lost.done():
            raise TransientDeliveryError("the NATS server is not connected") if connection is None else connection.lost.result()
        try:
            errors = await self._send_all(connection, batch)
        except BaseException:
            # What is still in the buffers must not arrive behind what is sent anew.
            connection.abort()
            self._servers.rotate(-1)
            raise
        # One stream of several may refuse while the others take what is theirs.
        is_local = len(self._streams) > 1
        return [Failure(index, error, is_local) for index, error in sorted(errors.items())]

    async def _send_all(self, connection: NatsConnection, batch: Sequence[Record]) -> dict[int, DeliveryError]:
        from .sending import Sending

        records = Records.of(batch)
        routes = dict.fromkeys(records.routes)
        streams = {route: self._stream_of(route.destination) for route in routes}
        sending = Sending(connection, records, {route: self._parts_of(route) for route in routes}, self._ack_timeout_s)
        errors = sending.denials()
        groups: dict[_JetStreamInfo | None, list[int]] = {}
        if len(set(streams.values())) == 1 and not errors:
            groups[streams[records.routes[0]]] = list(range(len(records)))
        else:
            for index, route in enumerate(records.routes):
                if index not in errors:
                    groups.setdefault(streams[route], []).append(index)
        for stream, indices in groups.items():
            if self._is_core:
                errors |= await sending.unconfirmed(indices)
            elif stream is not None and stream.takes_batches:
                errors |= await sending.in_order(indices)
            else:
                errors |= await sending.singly(indices, at_once=stream is not None and stream.keeps_order)
        return errors

    def _parts_of(self, route: Route) -> LineParts:
        parts = self._parts.get(route)
        if parts is None:
            parts = self._parts[route] = to_parts(route)
        return parts

    def _stream_of(self, subject: str) -> _JetStreamInfo | None:
        return next((stream for stream in self._streams if any_covers(stream.subjects, subject)), None)


def _describe_batches(stream: _JetStreamInfo) -> str:
    if stream.takes_batches:
        return "in batches"
    if stream.keeps_order:
        return "confirming each record (with allow_batched it would take batches, which is faster)"
    return "confirming each record, one of a key at a time (with allow_batched it would take batches, which is much faster)"
