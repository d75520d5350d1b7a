"""Redis commands as bytes, packed in bulk, and what the server's replies say of each record.

All records of a stream in a batch are one transaction: XADDs by themselves fail one by one, and an OOM that begins and ends in the
middle of them would let a later record of a key in before an earlier one. A transaction is stored whole or, where the server can't
take it now, not at all; half of one, cut off with its connection, is never stored.

Invariant: nothing here does I/O, and what a route's records have in common is packed once.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ....errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError
from ...contract import Record, Records, Route

__all__ = [
    "ENTRY_FIELDS",
    "NO_TRIM",
    "ErrorReply",
    "Packer",
    "Redirect",
    "Shipment",
    "Trim",
    "pack_command",
    "refusals_in",
    "to_age_trim",
    "to_error",
    "to_length_trim",
    "to_shipments",
]

ENTRY_FIELDS = ("value", "key")
"""Fields of every entry beside its headers."""

_MULTI = b"*1\r\n$5\r\nMULTI\r\n"
_EXEC = b"*1\r\n$4\r\nEXEC\r\n"
_NEW_ID_AND_VALUE = b"$1\r\n*\r\n$5\r\nvalue\r\n$"
_PACKED_AT_ONCE = 256
_ABORTED = "EXECABORT Transaction discarded because of: "


class ErrorReply(Exception):
    """An error reply; its text is the server's."""


class Trim(NamedTuple):
    """What an XADD says about old entries, packed."""

    words: int
    packed: bytes


NO_TRIM = Trim(0, b"")


def pack_command(*words: str | bytes) -> bytes:
    """One command."""
    return b"*%d\r\n%b" % (len(words), _pack_words(words))


def _pack_words(words: Iterable[str | bytes]) -> bytes:
    encoded = (word if isinstance(word, bytes) else word.encode() for word in words)
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded])


def to_length_trim(max_length: int) -> Trim:
    """Keeps about so many entries: the server drops whole nodes of its tree only, which is cheap."""
    return Trim(3, _pack_words(("MAXLEN", "~", str(max_length))))


def to_age_trim(max_age_s: float, now_s: float) -> Trim:
    """Keeps about the entries that are younger; an entry's ID begins with the milliseconds of its arrival."""
    return Trim(3, _pack_words(("MINID", "~", str(max(int((now_s - max_age_s) * 1000), 0)))))


class _RouteBytes(NamedTuple):
    """What is constant around the value and the event id of a route's records."""

    words: int
    stream: bytes
    between: bytes
    after: bytes
    also: bytes
    """What stands between the event id and the same id once more; empty where there is no second field for it."""


class Packer:
    """Makes XADD commands of records: fields `value`, `key`, then each header by its name."""

    def __init__(self) -> None:
        self._by_route: WeakKeyDictionary[Route, _RouteBytes] = WeakKeyDictionary()

    def pack(self, records: Iterable[Record], trim: Trim) -> bytes:
        """The commands, one after another."""
        pieces: list[bytes] = []
        known: dict[Route, tuple[bytes, bytes, bytes, bytes]] = {}
        columns = Records.of(records)
        for route, event in zip(columns.routes, columns.events, strict=True):
            around = known.get(route)
            if around is None:
                around = known[route] = self._around(route, trim)
            before, between, after, also = around
            value = event.value
            if also:
                between = b"%b%b%b" % (between, hexlify(event.event_id), also)
            pieces += (before, b"%d\r\n" % len(value), value, between, hexlify(event.event_id), after)
        return b"".join(pieces)

    def _around(self, route: Route, trim: Trim) -> tuple[bytes, bytes, bytes, bytes]:
        known = self._by_route.get(route)
        if known is None:
            known = self._by_route[route] = _to_route_bytes(route)
        words, stream, between, after, also = known
        before = b"*%d\r\n%b%b%b" % (words + trim.words, stream, trim.packed, _NEW_ID_AND_VALUE)
        return before, between, after, also


def _to_route_bytes(route: Route) -> _RouteBytes:
    headers_before = [word for header in route.headers_before for word in header]
    headers_after = [word for header in route.headers_after for word in header]
    id_bytes = 32
    also = b"\r\n%b$%d\r\n" % (_pack_words((route.also_id_header,)), id_bytes) if route.also_id_header else b""
    return _RouteBytes(
        # XADD stream * value … key … eventId …
        words=9 + len(headers_before) + len(headers_after) + (2 if also else 0),
        stream=_pack_words(("XADD", route.destination)),
        between=b"\r\n%b$%d\r\n" % (_pack_words(("key", route.key, *headers_before, "eventId")), id_bytes),
        after=b"\r\n%b" % _pack_words(headers_after),
        also=also,
    )


class Shipment:
    """The records of one stream in a batch, and where in the batch they are."""

    __slots__ = ("indexes", "records", "stream")

    def __init__(self, stream: str, records: Records, indexes: Sequence[int]) -> None:
        self.stream = stream
        self.records = records
        self.indexes = indexes

    def __len__(self) -> int:
        return len(self.records)

    @property
    def replies(self) -> int:
        """How many the server gives: one command needs no transaction to be stored whole."""
        return 1 if len(self.records) == 1 else len(self.records) + 2

    def packed(self, packer: Packer, trim: Trim) -> Iterator[bytes]:
        """What goes to the server, a part at a time."""
        records = self.records
        if len(records) == 1:
            yield packer.pack(records, trim)
            return
        opening = _MULTI
        for start in range(0, len(records), _PACKED_AT_ONCE):
            yield opening + packer.pack(records[start : start + _PACKED_AT_ONCE], trim)
            opening = b""
        yield _EXEC


def to_shipments(batch: Sequence[Record]) -> list[Shipment]:
    """The batch by stream, each in its order."""
    records = Records.of(batch)
    streams = {route.destination for route in set(records.routes)}
    if len(streams) == 1:
        return [Shipment(streams.pop(), records, range(len(records)))]
    indexes: dict[str, list[int]] = {}
    for index, route in enumerate(records.routes):
        indexes.setdefault(route.destination, []).append(index)
    return [Shipment(stream, Records.of([records[index] for index in found]), found) for stream, found in indexes.items()]


def refusals_in(replies: Sequence[Any]) -> Mapping[int, str]:
    """What the server said of the records of a shipment that it did not store, by their place in it."""
    if len(replies) == 1:
        return {0: str(replies[0])} if isinstance(replies[0], ErrorReply) else {}
    first, queued, last = replies[0], replies[1:-1], replies[-1]
    if isinstance(first, ErrorReply):
        # No transaction was begun: each command stands for itself.
        return _refusals(queued)
    if not isinstance(last, ErrorReply):
        return _refusals(last)
    reason = next((reply for reply in queued if isinstance(reply, ErrorReply)), last)
    return dict.fromkeys(range(len(queued)), str(reason).removeprefix(_ABORTED))


def _refusals(replies: Sequence[Any]) -> Mapping[int, str]:
    # Nearly always there are none, which this sees in a fifth of the time.
    if ErrorReply not in map(type, replies):
        return {}
    return {place: str(reply) for place, reply in enumerate(replies) if isinstance(reply, ErrorReply)}


class Redirect(NamedTuple):
    """Another server of a cluster has the stream: from now on (MOVED), or for this one request (ASK)."""

    address: tuple[str, int]
    is_lasting: bool

    @classmethod
    def parse(cls, reply: str, asked_host: str) -> Redirect | None:
        """`MOVED 3999 10.0.0.1:6381`; without a host it is the one that was asked, with another port."""
        words = reply.split()
        if len(words) != 3 or words[0] not in ("MOVED", "ASK"):
            return None
        host, _, port = words[2].rpartition(":")
        return cls((host or asked_host, int(port)), words[0] == "MOVED")


_CAUSES: Mapping[str, tuple[type[DeliveryError], str]] = {
    "OOM": (TransientDeliveryError, "the server is out of memory (maxmemory)"),
    "READONLY": (TransientDeliveryError, "the server is a replica"),
    "LOADING": (TransientDeliveryError, "the server still loads its data"),
    "MASTERDOWN": (TransientDeliveryError, "the server is a replica that has lost its master"),
    "NOREPLICAS": (TransientDeliveryError, "the server has too few replicas"),
    "MISCONF": (TransientDeliveryError, "the server can't write its data to disk"),
    "BUSY": (TransientDeliveryError, "the server is busy with a script"),
    "CLUSTERDOWN": (TransientDeliveryError, "the cluster is down"),
    "TRYAGAIN": (TransientDeliveryError, "the cluster is moving the stream"),
    "MOVED": (TransientDeliveryError, "the cluster keeps moving the stream"),
    "ASK": (TransientDeliveryError, "the cluster keeps moving the stream"),
    # Another try is a new connection, and that says what is wrong with the credentials.
    "NOAUTH": (TransientDeliveryError, "the server wants credentials"),
    "NOPERM": (TerminalDeliveryError, "the user may not do that"),
    "WRONGTYPE": (TerminalDeliveryError, "a key of that name holds something else"),
}
_HOPELESS = ("unknown command", "syntax error", "wrong number of arguments", "too large", "exhausted the last possible ID")


def to_error(stream: str, reply: str) -> DeliveryError:
    """The reply as an error of the contract; what is not known to be hopeless may pass."""
    kind, cause = _CAUSES.get(reply.partition(" ")[0], (None, ""))
    if kind is None:
        kind = TerminalDeliveryError if any(sign in reply for sign in _HOPELESS) else TransientDeliveryError
        cause = "the server refused it"
    return kind(f"the Redis stream {stream!r} did not take events, as {cause}: {reply}")
