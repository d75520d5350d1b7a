"""What a venue of the sample market is: its instruments, and how it says in its own words what happens to them.

Invariant: what a venue writes depends on the market alone, never on who asks; filters only choose among it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from ..instrument import Instrument
from ..market import MINUTE_US, BookEvent, Change, Minute, SampleMarket, SlotBook, TradeEvent
from ..seeded_random import mix

__all__ = [
    "SECOND",
    "Row",
    "Tick",
    "Venue",
    "Wants",
    "bundle",
    "bundled_until",
    "last_trade",
    "seconds",
    "sequence_ids",
    "share_out",
    "ticks",
    "trades",
]

SECOND = 10_000_000
"""Of the recorder's clock, which ticks every 100 ns."""

Row = tuple[int, str]
"""Arrival at the recorder (100 ns since 1970) and the message's JSON."""

Wants = Callable[[str, str], bool]
"""Whether a channel of a symbol is asked for."""


class Venue(ABC):
    """One exchange. Holds no state: any minute may be asked for, in any order."""

    exchange: str
    channels: tuple[str, ...]
    """Of its instruments, as the history API names them."""
    live_channels: tuple[str, ...] = ()
    """What only a live client gets: `rows` knows them, recordings have none of them."""
    book_channels: tuple[str, ...] = ()
    """Those that tell how a book changes; the first is the one that most clients take."""

    @abstractmethod
    def instruments(self, minute_index: int) -> Sequence[Instrument]:
        """What is listed in a minute since 1970."""

    def symbol(self, channel: str, instrument: Instrument) -> str:
        """What filters call the instrument in a channel."""
        return instrument.symbol

    @abstractmethod
    def rows(self, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterable[Row]:
        """A minute of one instrument in these channels, each channel's messages in order of arrival."""

    @abstractmethod
    def greeting(self, market: SampleMarket, arrival: int, wants: Wants) -> Iterable[Row]:
        """What the exchange sends to a recorder that connects: answers and snapshots, a clock tick apart, each with the book as
        of its own arrival; what it sends late comes within two seconds."""

    def common(self, market: SampleMarket, minute_index: int, wants: Wants) -> Iterable[Row]:
        """Messages of channels that belong to no single instrument."""
        return ()

    def opening(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> str | None:
        """What a live client of a channel gets first: a snapshot with all that its messages told until then; None: nothing."""
        return None

    def shown(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> SlotBook:
        """The book that a channel's messages had told until then."""
        return minute.book_at(arrival)


class Tick(msgspec.Struct, gc=False, frozen=True):
    """What is known of an instrument when a venue sends something by the clock."""

    arrival: int
    second: int
    trade: tuple[int, int, int, bool]
    """The last one's id, slot and lots, and whether the taker bought."""
    bid: int
    bid_lots: int
    ask: int
    ask_lots: int

    @property
    def ms(self) -> int:
        """The exchange's clock."""
        return self.second * 1_000


def seconds(key: int, minute_index: int, every_s: int = 1) -> Iterator[tuple[int, int]]:
    """Arrival and second of what a venue sends by the clock."""
    for second in range(minute_index * 60, minute_index * 60 + 60):
        if second % every_s == 0:
            yield second * SECOND + 60_000 + mix(key, second) % 40_000, second


def ticks(market: SampleMarket, minute: Minute, every_s: int = 1) -> Iterator[Tick]:
    """The same with the last trade and the best of the book at each of them."""
    best = minute.opening.best()
    trade = (market.trades_before(minute.instrument, minute.index) - 1, best[0] or best[2], 1, False)
    events = iter(minute.events)
    event = next(events, None)
    for arrival, second in seconds(minute.instrument.key, minute.index, every_s):
        while event is not None and event.arrival <= arrival:
            if type(event) is TradeEvent:
                last = len(event.fills) - 1
                trade = (event.first_id + last, *event.fills[last], event.buy)
            elif type(event) is BookEvent:
                best = (event.bid, event.bid_lots, event.ask, event.ask_lots)
            event = next(events, None)
        yield Tick(arrival, second, trade, *best)


def sequence_ids(minute_index: int, events: Sequence[BookEvent], per_minute: int) -> list[int]:
    """A growing number for each book message: a clock's, but the last of a minute always ends it, so that the first of the next
    one knows what came before it: `minute_index * per_minute - 1`."""
    first, start_us = minute_index * per_minute, minute_index * MINUTE_US
    ids, last = [], first - 1
    for event in events:
        clock = first + max(event.exchange_us - start_us, 0) * (per_minute - 1) // MINUTE_US
        last = max(clock, last + 1)
        ids.append(last)
    if ids:
        ids[-1] = first + per_minute - 1
    return ids


def trades(minute: Minute) -> Iterator[TradeEvent]:
    """The trades of a minute, in order."""
    return (event for event in minute.events if type(event) is TradeEvent)


def bundle(events: Iterable[BookEvent], every_us: int) -> Iterator[BookEvent]:
    """Book events merged as by a venue that sends its book every so often: each level once, as it ended."""
    window = -1
    last: BookEvent | None = None
    changes: dict[tuple[bool, int], Change] = {}
    for event in events:
        if event.exchange_us // every_us != window:
            if last is not None and changes:
                yield _with_changes(last, changes)
            window, changes = event.exchange_us // every_us, {}
        _merge(changes, event)
        last = event
    if last is not None and changes:
        yield _with_changes(last, changes)


def bundled_until(minute: Minute, every_us: int, arrival: int) -> int:
    """Arrival of the last bundle until then; before the first one, the start of the minute."""
    sent = minute.index * 60 * SECOND
    for group in bundle(minute.book_events(), every_us):
        if group.arrival > arrival:
            break
        sent = group.arrival
    return sent


def share_out(events: Sequence[BookEvent], messages: int) -> Iterator[BookEvent]:
    """Book events merged into so many messages: where a venue counts its messages without a gap, the number of a minute's first
    one is known for any minute only if each has as many."""
    for place in range(messages):
        share = events[place * len(events) // messages : (place + 1) * len(events) // messages]
        changes: dict[tuple[bool, int], Change] = {}
        for event in share:
            _merge(changes, event)
        yield _with_changes(share[-1], changes)


def last_trade(minute: Minute, arrival: int) -> TradeEvent | None:
    """The last taker of a minute until then."""
    found = None
    for event in trades(minute):
        if event.arrival > arrival:
            break
        found = event
    return found


def _merge(changes: dict[tuple[bool, int], Change], event: BookEvent) -> None:
    for change in event.changes:
        bid, slot, lots, _ = change
        earlier = changes.get((bid, slot))
        changes[bid, slot] = change if earlier is None else Change(bid, slot, lots, earlier.was)


def _with_changes(event: BookEvent, changes: dict[tuple[bool, int], Change]) -> BookEvent:
    return BookEvent(
        event.arrival,
        event.exchange_us,
        [change for change in changes.values() if change.lots or change.was],
        event.bid,
        event.bid_lots,
        event.ask,
        event.ask_lots,
    )
