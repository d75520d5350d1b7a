"""What a venue of the sample market is: its instruments, and how it says in its own words what happens to them.

Invariant: what a venue writes depends on the market alone, never on who asks; filters only choose among it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from ..instrument import Instrument
from ..market import MINUTE_US, BookEvent, Change, Market, Minute, TradeEvent
from ..noise import mix

__all__ = ["SECOND", "Row", "Tick", "Venue", "Wants", "bundle", "seconds", "sequence_ids", "ticks", "trades"]

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

    @abstractmethod
    def instruments(self, minute_index: int) -> Sequence[Instrument]:
        """What is listed in a minute since 1970."""

    def symbol(self, channel: str, instrument: Instrument) -> str:
        """What filters call the instrument in a channel."""
        return instrument.symbol

    @abstractmethod
    def rows(self, market: Market, minute: Minute, channels: frozenset[str]) -> Iterable[Row]:
        """A minute of one instrument in these channels, each channel's messages in order of arrival."""

    @abstractmethod
    def greeting(self, market: Market, arrival: int, wants: Wants) -> Iterable[Row]:
        """What the exchange sends to a recorder that connects: answers and snapshots, a clock tick apart, each with the book as
        of its own arrival; what it sends late comes within two seconds."""

    def common(self, market: Market, minute_index: int, wants: Wants) -> Iterable[Row]:
        """Messages of channels that belong to no single instrument."""
        return ()


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


def ticks(market: Market, minute: Minute, every_s: int = 1) -> Iterator[Tick]:
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
        for change in event.changes:
            bid, slot, lots, _ = change
            earlier = changes.get((bid, slot))
            changes[bid, slot] = change if earlier is None else Change(bid, slot, lots, earlier.was)
        last = event
    if last is not None and changes:
        yield _with_changes(last, changes)


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
