"""The seeded market: for each instrument a true order book, its trades and what derivatives are marked at.

Invariant: the book at the start of a minute is a function of (seed, instrument, minute), and the last changes of a minute lead to
the book at the start of the next one. So any minute can be made on its own, and all of them join without a seam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import NamedTuple

import msgspec

from .greeks import Greeks, price_option
from .instrument import Instrument, Memo
from .seeded_random import RandomWalk, key_of, mix, unit

__all__ = [
    "EVERYDAY",
    "MINUTE_US",
    "MOSTLY_UPDATES",
    "BookEvent",
    "Change",
    "Day",
    "MessageMix",
    "Minute",
    "Reference",
    "SampleMarket",
    "SlotBook",
    "TradeEvent",
]

MINUTE_US = 60_000_000
_LATENCY_US = 6_000
_JITTER_US = 4_000
# A minute's first events leave room before them for what a recorder writes when it connects.
_OPENING_US = 2_000
# Between two events, as one may become several messages, a clock tick apart.
_TICKS_APART = 40
_HOUR_S = 3_600
_FUNDING_S = 8 * _HOUR_S
_YEAR_S = 365 * 24 * _HOUR_S

_PRICES = {"BTC": 30_000.0, "ETH": 2_000.0, "BTC-BASIS": 320.0}
# Of a second.
_VOLATILITY = {"BTC": 0.00004, "ETH": 0.00005, "BTC-BASIS": 0.00007}


class MessageMix(NamedTuple):
    """What orders do to a book. It decides which share of the messages are inserts, updates, deletes and trades."""

    removals: float
    """How many of the changes to a level behind the best one delete it, 0 to 1. Changes to an empty level insert it."""
    makers: float
    """How many more makers than one the largest taker meets at each level. More makers are fewer takers, as trades are counted by maker."""


EVERYDAY = MessageMix(removals=0.34, makers=4.4)
"""As on a real exchange: of BitMEX's messages for a book and its trades, a third are inserts and deletes, and 7 % are trades."""

MOSTLY_UPDATES = MessageMix(removals=0.15, makers=0.0)
"""Calmer than a real exchange: a sixth are inserts and deletes, and a sixth are trades."""


class Change(NamedTuple):
    """A level that was set; lots 0: deleted, was 0: inserted."""

    bid: bool
    slot: int
    lots: int
    was: int


class BookEvent(msgspec.Struct, gc=False, frozen=True):
    """Levels that changed together, and the best of both sides after it (slot and lots)."""

    arrival: int
    """At the recorder, in 100 ns since 1970."""
    exchange_us: int
    changes: list[Change]
    bid: int
    bid_lots: int
    ask: int
    ask_lots: int


class TradeEvent(msgspec.Struct, gc=False, frozen=True):
    """One taker and the makers it met, best price first; a liquidation when the taker was forced."""

    arrival: int
    exchange_us: int
    first_id: int
    buy: bool
    fills: list[tuple[int, int]]
    liquidation: bool


class SlotBook(msgspec.Struct, gc=False):
    """Both sides as slot to lots."""

    bids: dict[int, int]
    asks: dict[int, int]

    def copy(self) -> SlotBook:
        """A book of its own."""
        return SlotBook(dict(self.bids), dict(self.asks))

    def apply(self, changes: list[Change]) -> None:
        """Sets the levels that changed."""
        for bid, slot, lots, _ in changes:
            side = self.bids if bid else self.asks
            if lots:
                side[slot] = lots
            else:
                side.pop(slot, None)

    def best(self) -> tuple[int, int, int, int]:
        """Slot and lots of the best bid, slot and lots of the best ask; 0 where there is none."""
        bid, ask = max(self.bids, default=0), min(self.asks, default=0)
        return bid, self.bids.get(bid, 0), ask, self.asks.get(ask, 0)

    def levels(self, instrument: Instrument) -> tuple[dict[float, float], dict[float, float]]:
        """Bids and asks as price to amount, best first."""
        bids = {instrument.price(slot): instrument.size(self.bids[slot]) for slot in sorted(self.bids, reverse=True)}
        asks = {instrument.price(slot): instrument.size(self.asks[slot]) for slot in sorted(self.asks)}
        return bids, asks


class Reference(msgspec.Struct, gc=False, frozen=True):
    """What is known of a derivative at a second; funding for perpetuals, greeks for options."""

    index: float
    fair: float
    """What the instrument is worth: its mark price."""
    open_interest: int
    """In lots."""
    funding_rate: float
    predicted_funding_rate: float
    funding_s: int
    """When funding is next paid."""
    volatility: float
    greeks: Greeks | None


class Day(NamedTuple):
    """Statistics of the last 24 hours."""

    open: float
    high: float
    low: float
    trades: int
    lots: int


class Minute(msgspec.Struct, frozen=True):
    """A minute of one instrument, by arrival at the recorder."""

    instrument: Instrument
    index: int
    """Minutes since 1970."""
    opening: SlotBook
    events: list[BookEvent | TradeEvent]

    def book_at(self, arrival: int) -> SlotBook:
        """The book once everything that arrived until then (100 ns) is applied."""
        book = self.opening.copy()
        for event in self.book_events():
            if event.arrival > arrival:
                break
            book.apply(event.changes)
        return book

    def book_events(self) -> Iterator[BookEvent]:
        """Changes of the book, in order."""
        return (event for event in self.events if type(event) is BookEvent)


class SampleMarket:
    """All instruments of one seed. `activity` scales every rate of trades and book changes, `message_mix` says what they are."""

    def __init__(self, seed: int = 1, activity: float = 1.0, message_mix: MessageMix = EVERYDAY) -> None:
        self.seed = seed
        self.activity = activity
        self.message_mix = message_mix
        self._indexes = {asset: RandomWalk(mix(seed, key_of(asset)), volatility) for asset, volatility in _VOLATILITY.items()}
        self._bases: dict[int, RandomWalk] = {}
        self._resting: dict[int, Memo[int]] = {}
        self.index = lru_cache(maxsize=100_000)(self._index)
        self.minute = lru_cache(maxsize=24)(self._minute)
        self.greeks = lru_cache(maxsize=20_000)(self._greeks)
        self.reference = lru_cache(maxsize=20_000)(self._reference)
        self.day = lru_cache(maxsize=1_024)(self._day)

    def _index(self, asset: str, second: int) -> float:
        """The price of an asset, the same on all venues."""
        return _PRICES[asset] * (1.0 + self._indexes[asset].at(second))

    def volatility(self, instrument: Instrument, second: int) -> float:
        """Implied volatility of an option: a smile that drifts."""
        assert instrument.terms is not None
        moneyness = instrument.terms.strike / self.index(instrument.asset, second) - 1.0
        return 0.55 + 0.8 * moneyness * moneyness - 0.1 * moneyness + 20.0 * self._basis(instrument, second)

    def _greeks(self, instrument: Instrument, second: int) -> Greeks:
        """Value and sensitivities of an option at a second."""
        terms = instrument.terms
        assert terms is not None
        return price_option(
            call=terms.call,
            underlying=self.index(instrument.asset, second),
            strike=float(terms.strike),
            years=max(terms.expiry_us / 1_000_000 - second, 60.0) / _YEAR_S,
            volatility=self.volatility(instrument, second),
        )

    def fair_price(self, instrument: Instrument, second: int) -> float:
        """What the instrument is worth at a second, in the unit of its price."""
        index = self.index(instrument.asset, second)
        if instrument.kind == "option":
            return self.greeks(instrument, second).value / index
        carry = 0.0
        if instrument.terms is not None:
            carry = 0.05 * max(instrument.terms.expiry_us / 1_000_000 - second, 0.0) / _YEAR_S
        return index * (1.0 + self._basis(instrument, second) + carry)

    def _reference(self, instrument: Instrument, second: int) -> Reference:
        """Mark, index, open interest and funding at a second."""
        period, key = second // _FUNDING_S, mix(self.seed, instrument.key, 7)
        rate = round(0.0004 * unit(key, period) - 0.0001, 6)
        following = round(0.0004 * unit(key, period + 1) - 0.0001, 6)
        elapsed = (second - period * _FUNDING_S) // 60 * 60 / _FUNDING_S
        return Reference(
            index=self.index(instrument.asset, second),
            fair=self.fair_price(instrument, second),
            open_interest=int(instrument.level_lots * 5_000 * (1.0 + 40.0 * self._basis(instrument, second // 5 * 5))),
            funding_rate=rate,
            predicted_funding_rate=round(rate + (following - rate) * elapsed, 6),
            funding_s=(period + 1) * _FUNDING_S,
            volatility=self.volatility(instrument, second) if instrument.kind == "option" else 0.0,
            greeks=self.greeks(instrument, second) if instrument.kind == "option" else None,
        )

    def _day(self, instrument: Instrument, minute_index: int) -> Day:
        """The 24 hours before a minute since 1970; the extremes are those of full hours."""
        end_s = minute_index * 60
        prices = [self.fair_price(instrument, end_s - hour * _HOUR_S) for hour in range(25)]
        trades = self.trades_before(instrument, minute_index) - self.trades_before(instrument, minute_index - 1_440)
        return Day(prices[-1], max(prices), min(prices), trades, trades * instrument.trade_lots)

    def trades_before(self, instrument: Instrument, index: int) -> int:
        """How many trades there were before a minute since 1970: trade ids are dense, and yet known for any minute."""
        ordinary = instrument.trades_per_s * self.activity * 60.0
        return int(ordinary * (index + 0.5 * unit(self.seed, instrument.key, 3, index)))

    def opening_book(self, instrument: Instrument, index: int) -> SlotBook:
        """The book at the start of a minute since 1970."""
        aim = self.aim(instrument, index * 60)
        resting = self._resting.get(instrument.key)
        if resting is None:
            resting = self._resting[instrument.key] = Memo(lambda slot: _resting_lots(instrument, self.seed, slot))
        bids = range(aim - 1, max(aim - 1 - instrument.depth, 0), -1)
        asks = range(aim, aim + instrument.depth)
        return SlotBook(
            {slot: resting[slot] for slot in bids if resting[slot]}, {slot: resting[slot] for slot in asks if resting[slot]}
        )

    def aim(self, instrument: Instrument, second: int) -> int:
        """The slot that parts bids (below) from asks at a second."""
        return max(int(self.fair_price(instrument, second) * 10**instrument.price_decimals) // instrument.spacing, 6)

    def book_at(self, instrument: Instrument, at_us: int) -> SlotBook:
        """The true book when everything that arrived until then is applied."""
        return self.minute(instrument, at_us // MINUTE_US).book_at(at_us * 10)

    def _minute(self, instrument: Instrument, index: int) -> Minute:
        """A minute since 1970."""
        return Minute(instrument, index, self.opening_book(instrument, index), _Simulation(self, instrument, index).run())

    def _basis(self, instrument: Instrument, second: int) -> float:
        path = self._bases.get(instrument.key)
        if path is None:
            path = self._bases[instrument.key] = RandomWalk(mix(self.seed, instrument.key, 5), 0.000004, shortest_s=16, octaves=8)
        return path.at(second)


def _resting_lots(instrument: Instrument, seed: int, slot: int) -> int:
    drawn = unit(seed, instrument.key, 11, slot)
    # Some slots are empty, but never four in a row: no book opens without a side.
    return 0 if drawn < 0.1 and slot % 4 else 1 + int(instrument.level_lots * 3.0 * drawn * drawn)


class _Simulation:
    """One minute of one instrument, event by event."""

    def __init__(self, market: SampleMarket, instrument: Instrument, index: int) -> None:
        self._market = market
        self._instrument = instrument
        self._index = index
        self._random = Random(mix(market.seed, instrument.key, index)).random
        self._book = market.opening_book(instrument, index)
        self._next_trade_id = market.trades_before(instrument, index)
        self._trades_left = market.trades_before(instrument, index + 1) - self._next_trade_id
        self._events: list[BookEvent | TradeEvent] = []
        self._last_arrival = index * MINUTE_US * 10
        self._bid, _, self._ask, _ = self._book.best()
        # How far from the best an ordinary change may fall.
        self._reach = min(instrument.depth, 30)
        # The slot that the market moves to in this second.
        self._aim = 0
        # What is still to change before the minute ends; None until the closing begins.
        self._closing: list[Change] | None = None

    def run(self) -> list[BookEvent | TradeEvent]:
        random = self._random
        changes = max(int(self._instrument.changes_per_s * self._market.activity * 60.0 * (0.9 + 0.2 * random())), 1)
        left = changes + self._trades_left
        # The closing changes lead to the next minute's opening book.
        closing = max(left // 50, 1)
        for second, count in enumerate(_spread(left, random)):
            self._aim = self._market.aim(self._instrument, self._index * 60 + second + 1)
            start_us = self._index * MINUTE_US + second * 1_000_000 + _OPENING_US - _LATENCY_US
            step_us = (1_000_000 - _OPENING_US - _JITTER_US - 1_000) / count if count else 0.0
            for place in range(count):
                at_us = start_us + int((place + random()) * step_us)
                is_trade = random() * left < self._trades_left
                left -= 1
                if left < closing:
                    if is_trade:
                        self._trade_hidden(at_us)
                    self._close(at_us, left + 1)
                elif is_trade:
                    self._trade(at_us)
                elif random() < 0.4 and not self._bid < self._aim <= self._ask:
                    self._move(at_us)
                else:
                    self._requote(at_us)
        if not any(type(event) is BookEvent for event in self._events):
            self._repeat_best(self._index * MINUTE_US + MINUTE_US // 2)
        return self._events

    def _repeat_best(self, at_us: int) -> None:
        """A level set to what it is: sequence numbers of some venues go on from minute to minute, so none is without a change."""
        bid = self._bid != 0
        slot, lots = (self._bid, self._book.bids[self._bid]) if bid else (self._ask, self._book.asks[self._ask])
        self._emit_changes(at_us, [Change(bid, slot, lots, lots)])

    def _trade(self, at_us: int) -> None:
        """A taker meets the best levels of the other side."""
        random = self._random
        buy = random() < (0.6 if self._aim > self._ask else 0.4 if self._aim <= self._bid else 0.5)
        side, step = (self._book.asks, 1) if buy else (self._book.bids, -1)
        slot = self._ask if buy else self._bid
        size = random()
        lots = 1 + int(self._instrument.trade_lots * 4.0 * size * size * size)
        makers = 1 + int(self._market.message_mix.makers * size)
        fills: list[tuple[int, int]] = []
        changes: list[Change] = []
        room = min(self._trades_left, _TICKS_APART)
        while lots and len(fills) < room:
            resting = side[slot]
            if lots < resting or len(side) == 1:
                # The last level of a side hides more than it shows.
                rest = max(resting - lots, 1)
                side[slot] = rest
                fills += _split(slot, lots, min(makers, room - len(fills)))
                changes.append(Change(not buy, slot, rest, resting))
                break
            lots -= resting
            del side[slot]
            fills += _split(slot, resting, min(makers, room - len(fills)))
            changes.append(Change(not buy, slot, 0, resting))
            while slot not in side:
                slot += step
        if buy:
            self._ask = slot
        else:
            self._bid = slot
        self._emit_trade(at_us, buy, fills)
        self._emit_changes(at_us, changes)

    def _trade_hidden(self, at_us: int) -> None:
        """A trade that leaves the book as it was."""
        buy = self._random() < 0.5
        slot = (self._ask if buy else self._bid) or self._aim
        self._emit_trade(at_us, buy, [(slot, 1 + int(self._instrument.trade_lots * self._random()))])

    def _move(self, at_us: int) -> None:
        """The market moves a slot: the best level of one side goes, the other side takes its place."""
        up = self._aim > self._ask
        losing, gaining = (self._book.asks, self._book.bids) if up else (self._book.bids, self._book.asks)
        if len(losing) == 1:
            self._requote(at_us)
            return
        slot, step = (self._ask, 1) if up else (self._bid, -1)
        was = losing.pop(slot)
        lots = gaining[slot] = self._level_lots()
        following = slot
        while following not in losing:
            following += step
        self._bid, self._ask = (slot, following) if up else (following, slot)
        self._emit_changes(at_us, [Change(not up, slot, 0, was), Change(up, slot, lots, 0)])

    def _requote(self, at_us: int) -> None:
        """A level near the best is placed, changed or taken away."""
        random = self._random
        bid = random() < 0.5
        drawn = random()
        # A gap between the sides is filled first.
        away = int(drawn * drawn * drawn * self._reach) - (self._ask - self._bid > 1)
        side, slot = (self._book.bids, max(self._bid - away, 1)) if bid else (self._book.asks, self._ask + away)
        was = side.get(slot, 0)
        if was and away > 0 and random() < self._market.message_mix.removals:
            del side[slot]
            lots = 0
        else:
            lots = side[slot] = self._level_lots()
            if away < 0:
                if bid:
                    self._bid = slot
                else:
                    self._ask = slot
        self._emit_changes(at_us, [Change(bid, slot, lots, was)])

    def _close(self, at_us: int, events_left: int) -> None:
        """A share of the changes that lead to the next minute's book: first what goes, so that the sides never cross."""
        if self._closing is None:
            self._closing = list(_differences(self._book, self._market.opening_book(self._instrument, self._index + 1)))
        share = -(-len(self._closing) // events_left)
        changes, self._closing = self._closing[:share], self._closing[share:]
        if changes:
            self._book.apply(changes)
            self._bid, _, self._ask, _ = self._book.best()
            self._emit_changes(at_us, changes)

    def _level_lots(self) -> int:
        drawn = self._random()
        return 1 + int(self._instrument.level_lots * 3.0 * drawn * drawn)

    def _emit_trade(self, at_us: int, buy: bool, fills: list[tuple[int, int]]) -> None:
        forced = self._instrument.kind in ("perpetual", "future") and self._random() < 0.002
        self._events.append(TradeEvent(self._arrival(at_us), at_us, self._next_trade_id, buy, fills, forced))
        self._next_trade_id += len(fills)
        self._trades_left -= len(fills)

    def _emit_changes(self, at_us: int, changes: list[Change]) -> None:
        bid, ask, book = self._bid, self._ask, self._book
        self._events.append(
            BookEvent(self._arrival(at_us), at_us, changes, bid, book.bids.get(bid, 0), ask, book.asks.get(ask, 0))
        )

    def _arrival(self, at_us: int) -> int:
        arrival = (at_us + _LATENCY_US) * 10 + int(self._random() * _JITTER_US * 10)
        arrival = max(arrival, self._last_arrival + _TICKS_APART)
        self._last_arrival = arrival
        return arrival


def _split(slot: int, lots: int, makers: int) -> list[tuple[int, int]]:
    """What a taker gets at a level from so many makers, unevenly; fewer makers where there are not lots enough."""
    bounds = [lots * place * (place + 1) // (makers * (makers + 1)) for place in range(makers + 1)]
    return [(slot, end - start) for start, end in pairwise(bounds) if end > start]


def _spread(events: int, random: Callable[[], float]) -> list[int]:
    """Events of each second of a minute: markets are busy and quiet by turns."""
    weights = [0.3 + 1.4 * random() for _ in range(60)]
    whole, total, counts, placed = sum(weights), 0.0, [], 0
    for weight in weights:
        total += weight
        counts.append(int(events * total / whole + 0.5) - placed)
        placed += counts[-1]
    counts[-1] += events - placed
    return counts


def _differences(book: SlotBook, target: SlotBook) -> Iterator[Change]:
    """Deletions, then insertions and updates, that make one book the other."""
    sides = ((True, book.bids, target.bids), (False, book.asks, target.asks))
    for bid, have, want in sides:
        yield from (Change(bid, slot, 0, lots) for slot, lots in have.items() if slot not in want)
    for bid, have, want in sides:
        yield from (Change(bid, slot, lots, have.get(slot, 0)) for slot, lots in want.items() if have.get(slot) != lots)
