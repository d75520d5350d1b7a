"""Events that a lake lacks, as their sources have them still: the dead letters of their bus, own recordings, the history API.

What is replayed is no proof of what was published: a mapper may have begun elsewhere, a recorder may have heard something else. So what
history gives is taken only where it fits what is known: the events on both sides of a hole are among it, as far from each other as their
numbers say, and all that is there then has the digest of the ledger. Reading begins as near to the hole as it can; what does not
fit (mappers remember what came before) is read again from further back.

Invariant: an event that is found has the id and the number of the one that is missing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..bronze.encoding import BronzeEncoder, Origin
from ..bronze.event import DIGEST_MASK, digest_of
from ..errors import DeliveryError, TardisMachineError
from ..eventbus.dead_letters import DeadLetter, read_dead_letters
from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from ..history.client import HistoryClient
from ..pipeline.fetching import fetch_lines
from ..pipeline.replay import NormalizedReplay
from ..pipeline.request import NormalizedRequest

__all__ = ["BY_NAME", "Found", "Hole", "Key", "Lacking", "Promise", "Unfit", "find_refetched", "read_letters"]

_MINUTE_US = 60_000_000
_DAY_US = 1440 * _MINUTE_US
BY_NAME = frozenset({"book_snapshot", "grouped_book_snapshot", "quote", "trade_bar"})
"""Payload cases whose data types are names in the payload."""
_OTHER = "what history has now is not what was published"
_BUSES = {"file": "files"}
"""Whom the lake calls otherwise than the publisher."""


Key = tuple[str, str, str, str, str]
"""What tells series apart: bus, session, exchange, symbol, payload case."""


class Hole(NamedTuple):
    """Numbers of a series that are not there, first to last."""

    first: int
    last: int


class Found(NamedTuple):
    """An event, with its number where it is known."""

    sequence: int
    event_id: bytes
    value: bytes
    local_us: int


class Promise(NamedTuple):
    """What the ledger says of a series."""

    events: int
    first: int
    last: int
    first_us: int
    last_us: int
    digest: int


class Unfit(TardisMachineError):
    """What can't be found again, and why."""


@dataclass
class Lacking:
    """A series that has holes, and what is known of it."""

    bus: str
    session: str
    exchange: str
    symbol: str
    payload_case: str
    holes: list[Hole]
    origin: Origin = "replay"
    source: str = ""
    meta: Mapping[str, str] = field(default_factory=dict)
    symbols: Sequence[str] = ()
    """What a request names: its own, or one of the exchange."""
    names: Sequence[str] = ()
    """The data types that were asked for, where the payload case does not say."""
    neighbours: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """The events beside the holes that are there: id and local time by number."""
    there: tuple[int, int] = (0, 0)
    """How many events are there, each once, and their digest."""
    last_there: int = -1
    started_us: int = 0
    """When the first event of the session was heard, as far as it is known."""
    promise: Promise | None = None

    @property
    def key(self) -> Key:
        """Its series."""
        return self.bus, self.session, self.exchange, self.symbol, self.payload_case

    @property
    def data_types(self) -> Sequence[str]:
        """What a request calls it."""
        return self.names if self.payload_case in BY_NAME or self.payload_case == "disconnect" else (self.payload_case,)

    def lacks(self, sequence: int) -> bool:
        """Whether an event of this number is missing."""
        return any(hole.first <= sequence <= hole.last for hole in self.holes)


def read_letters(folder: Path) -> Iterator[tuple[Key, DeadLetter]]:
    """The dead letters below a folder, each with the series that it is of, as the lake calls it."""
    for path in sorted(folder.rglob("*.jsonl")):
        try:
            for letter in read_dead_letters(path):
                stream = letter.stream
                bus = _BUSES.get(letter.bus, letter.bus)
                yield (bus, stream.session_id, stream.exchange, stream.symbol, stream.payload_case), letter
        except (DeliveryError, OSError) as error:
            raise Unfit(f"the dead letters in {path} can't be read: {error}") from None


async def find_refetched(
    lacking: Lacking, client: HistoryClient, request_of: Callable[[int, int], NormalizedRequest]
) -> list[Found]:
    """What is missing of a series, from history; Unfit where history has something else.

    `request_of` makes a request for a span of time.
    """
    groups = _together(lacking)
    reason = Unfit(_OTHER)
    for start_of in _STARTS:
        for book_changes in ("message", "level") if lacking.payload_case == "book_change" else ("message",):
            try:
                found = [
                    event
                    for holes in groups
                    for event in await _refetch(lacking, holes, client, request_of, start_of, book_changes)
                ]
                _check_digest(lacking, found)
            except Unfit as error:
                reason = error
            else:
                return found
    raise reason


def _check_digest(lacking: Lacking, found: Sequence[Found]) -> None:
    """All that is there and all that was found are what was published, or some of it is not: Unfit."""
    promise = lacking.promise
    if promise is None or promise.last < lacking.last_there:
        # The ledger of a machine that died may know less than what came.
        return
    digest = (lacking.there[1] + digest_of([event.event_id for event in found])) & DIGEST_MASK
    if (lacking.there[0] + len(found), digest) != (promise.events, promise.digest):
        raise Unfit(f"{_OTHER}: its digest is not that of the ledger")


def _together(lacking: Lacking) -> list[list[Hole]]:
    """Holes, together where they lie in the same minutes."""
    groups: list[list[Hole]] = []
    end_us = -1
    for hole in sorted(lacking.holes):
        first_us, last_us = _span(lacking, [hole])
        if groups and first_us <= end_us:
            groups[-1].append(hole)
        else:
            groups.append([hole])
        end_us = _floor(last_us, _MINUTE_US) + _MINUTE_US
    return groups


def _span(lacking: Lacking, holes: Sequence[Hole]) -> tuple[int, int]:
    """From the event before holes to that after them; where there is none, from or to what the ledger says."""
    before, after = lacking.neighbours.get(holes[0].first - 1), lacking.neighbours.get(holes[-1].last + 1)
    promise = lacking.promise
    if (before is None or after is None) and promise is None:
        raise Unfit("the session has no ledger, so nobody knows when its first event was")
    first_us = before[1] if before is not None else promise.first_us  # type: ignore[union-attr]
    last_us = after[1] if after is not None else promise.last_us  # type: ignore[union-attr]
    # Where a clock stepped back, the later number may have the earlier time.
    return min(first_us, last_us), max(first_us, last_us)


async def _refetch(
    lacking: Lacking,
    holes: Sequence[Hole],
    client: HistoryClient,
    request_of: Callable[[int, int], NormalizedRequest],
    start_of: Callable[[Lacking, int], int],
    book_changes: str,
) -> list[Found]:
    first_us, last_us = _span(lacking, holes)
    start_us = start_of(lacking, _floor(first_us, _MINUTE_US))
    request = request_of(start_us, _floor(last_us, _MINUTE_US) + _MINUTE_US)
    replayed = [event async for event in _replay(lacking, request, client, book_changes)]
    return _place(lacking, holes, replayed, start_us)


def _near(_: Lacking, minute_us: int) -> int:
    return minute_us


def _session(lacking: Lacking, minute_us: int) -> int:
    return min(minute_us, _floor(lacking.started_us, _MINUTE_US))


def _day(lacking: Lacking, minute_us: int) -> int:
    # Before a live session nobody listened.
    return _session(lacking, minute_us) if lacking.origin == "realtime" else _floor(minute_us, _DAY_US)


_STARTS = (_near, _session, _day)
"""Where reading begins: what is near costs little; mappers that remember what came before need the session, or the day's snapshots."""


def _floor(instant_us: int, length_us: int) -> int:
    return instant_us - instant_us % length_us


async def _replay(
    lacking: Lacking, request: NormalizedRequest, client: HistoryClient, book_changes: str
) -> AsyncGenerator[Found, None]:
    """The events of the series that a replay gives, numbered from 0."""
    encoder = BronzeEncoder(
        session_id=lacking.session,
        origin=lacking.origin,
        meta=lacking.meta,
        source=lacking.source,
        book_changes=book_changes,  # type: ignore[arg-type]
        include=frozenset({lacking.payload_case}),
    )
    replay = NormalizedReplay(request, keep_disconnects=True)
    async with aclosing(fetch_lines(client, request, replay.periods())) as source:
        async for period, lines in source:
            bundle = encoder.encode(replay.feed(period, lines))
            events = [
                event for event in bundle if (event.stream.exchange, event.stream.symbol) == (lacking.exchange, lacking.symbol)
            ]
            for event in events:
                yield Found(event.sequence, event.event_id, event.value, event.local_ts_us)


def _place(lacking: Lacking, holes: Sequence[Hole], replayed: Sequence[Found], start_us: int) -> list[Found]:
    """What fills holes, with its numbers; Unfit where it does not fit what is beside them."""
    places: dict[bytes, int] = {}
    for place, event in enumerate(replayed):
        places.setdefault(event.event_id, place)
    beside = [sequence for hole in holes for sequence in (hole.first - 1, hole.last + 1) if sequence in lacking.neighbours]
    offsets = set()
    for sequence in beside:
        event_id, local_us = lacking.neighbours[sequence]
        if event_id in places:
            offsets.add(sequence - places[event_id])
        elif local_us >= start_us:
            raise Unfit(f"{_OTHER}: it lacks an event that the lake has")
    if not beside and lacking.promise is not None:
        # Nothing of the series is there: it begins when the ledger says.
        first = next((place for place, event in enumerate(replayed) if event.local_us >= lacking.promise.first_us), 0)
        offsets.add(lacking.promise.first - first)
    if len(offsets) != 1:
        raise Unfit(f"{_OTHER}: it has another number of events")
    [offset] = offsets
    wanted = [sequence for hole in holes for sequence in range(hole.first, hole.last + 1)]
    if wanted[0] < offset or wanted[-1] - offset >= len(replayed):
        raise Unfit(f"{_OTHER}: it has fewer events")
    return [_numbered(replayed[sequence - offset], sequence) for sequence in wanted]


def _numbered(event: Found, sequence: int) -> Found:
    if event.sequence == sequence:
        return event
    value = NormalizedEvent.FromString(event.value)
    value.sequence = sequence
    return event._replace(sequence=sequence, value=value.SerializeToString(deterministic=True))
