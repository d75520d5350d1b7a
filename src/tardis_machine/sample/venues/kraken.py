"""Kraken, in both of its languages: arrays with text (v1), objects with numbers (v2). https://docs.kraken.com/api/docs/websocket-v2

Only live: channels are named by version and what was asked for, as `v2/book-1000`.
Invariant: an update's checksum is that of the ten best levels of each side after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from zlib import crc32

from ...messages import to_timestamp
from ..instrument import Instrument, Memo, to_decimal
from ..market import BookEvent, Change, Minute, SampleMarket, SlotBook, TradeEvent
from ._contract import Row, Venue, Wants, last_trade, ticks, trades
from ._view import best_of, view_changes

DEPTHS = (1000, 500, 100, 25, 10)
_CHECKED_LEVELS = 10
_V1_DECIMALS = 5
_LISTED = (
    Instrument("kraken", "BTC/USD", "BTC", "spot", 1, 1, 8, 50_000_000, 4_000_000, 6.0, 40.0, depth=150, spacing=7),
    Instrument("kraken", "ETH/USD", "ETH", "spot", 2, 1, 8, 800_000_000, 60_000_000, 3.0, 20.0, depth=150, spacing=9),
)


class KrakenVenue(Venue):
    """The one exchange of its family."""

    exchange = "kraken"
    channels = ()
    book_channels = tuple(f"v{version}/book-{depth}" for version in (2, 1) for depth in DEPTHS)
    live_channels = (*book_channels, "v1/trade", "v1/spread", "v1/ticker", "v2/trade", "v2/ticker-bbo", "v2/ticker-trades")

    def instruments(self, minute_index: int) -> Sequence[Instrument]:
        return _LISTED

    def symbol(self, channel: str, instrument: Instrument) -> str:
        return _spell(instrument, channel.startswith("v1"))

    def rows(self, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
        for channel in channels:
            words = _words(minute.instrument, channel.startswith("v1"))
            if channel in self.book_channels:
                yield from _book_updates(minute, words, _depth(channel))
            elif channel.endswith("/trade"):
                yield from _trades(minute, words)
            elif channel == "v1/spread":
                yield from _spreads(minute, words)
            elif channel == "v2/ticker-bbo":
                yield from _best(market, minute, words)
            elif channel in ("v1/ticker", "v2/ticker-trades"):
                yield from _tickers(market, minute, words)

    def greeting(self, market: SampleMarket, arrival: int, wants: Wants) -> Iterable[Row]:
        return ()

    def opening(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> str | None:
        words = _words(minute.instrument, channel.startswith("v1"))
        if channel in self.book_channels:
            return _book_snapshot(minute.book_at(arrival), words, _depth(channel), arrival // 10 - 6_000)
        trade = last_trade(minute, arrival) if channel == "v2/trade" else None
        return None if trade is None else _trade(trade, words, "snapshot")

    def shown(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> SlotBook:
        return best_of(minute.book_at(arrival), _depth(channel))


def _spell(instrument: Instrument, old: bool) -> str:
    return instrument.symbol.replace("BTC", "XBT") if old else instrument.symbol


def _depth(channel: str) -> int:
    return int(channel.rpartition("-")[2])


class _Words:
    """How an instrument is named, and how its slots, lots and times read."""

    def __init__(self, instrument: Instrument, old: bool) -> None:
        self.old = old
        self.symbol = _spell(instrument, old)
        zeros = "0" * (_V1_DECIMALS - instrument.price_decimals) if old else ""
        self.price = Memo(lambda slot: to_decimal(instrument.price_units(slot), instrument.price_decimals) + zeros)
        self.size: Callable[[int], str] = lambda lots: to_decimal(lots, instrument.size_decimals)

    def level(self, slot: int, lots: int, time_us: int) -> str:
        """One level."""
        if self.old:
            return f'["{self.price[slot]}","{self.size(lots)}","{_seconds(time_us)}"]'
        return f'{{"price":{self.price[slot]},"qty":{self.size(lots)}}}'

    def checksum(self, book: SlotBook) -> int:
        """CRC-32 of the digits of the best levels, asks first."""
        best = [(slot, book.asks[slot]) for slot in sorted(book.asks)[:_CHECKED_LEVELS]]
        best += [(slot, book.bids[slot]) for slot in sorted(book.bids, reverse=True)[:_CHECKED_LEVELS]]
        return crc32("".join([f"{_digits(self.price[slot])}{_digits(self.size(lots))}" for slot, lots in best]).encode())


def _digits(text: str) -> str:
    return text.replace(".", "").lstrip("0")


def _seconds(time_us: int) -> str:
    return f"{time_us // 1_000_000}.{time_us % 1_000_000:06d}"


@lru_cache(maxsize=16)
def _words(instrument: Instrument, old: bool) -> _Words:
    return _Words(instrument, old)


def _book_updates(minute: Minute, words: _Words, depth: int) -> Iterator[Row]:
    for event, changes, _, book in view_changes(minute.opening, minute.book_events(), depth):
        # What others pushed out of view is not told: clients cut their books themselves.
        if changes:
            yield event.arrival, _book_update(words, depth, event, changes, words.checksum(book))


def _book_update(words: _Words, depth: int, event: BookEvent, changes: list[Change], checksum: int) -> str:
    bids = ",".join([words.level(slot, lots, event.exchange_us) for bid, slot, lots, _ in changes if bid])
    asks = ",".join([words.level(slot, lots, event.exchange_us) for bid, slot, lots, _ in changes if not bid])
    if not words.old:
        time = to_timestamp(event.exchange_us)
        head = f'{{"channel":"book","type":"update","data":[{{"symbol":"{words.symbol}"'
        return f'{head},"bids":[{bids}],"asks":[{asks}],"checksum":{checksum},"timestamp":"{time}"}}]}}'
    sides = [f'"{name}":[{levels}]' for name, levels in (("a", asks), ("b", bids)) if levels]
    sides[-1] += f',"c":"{checksum}"'
    return f'[{depth},{",".join([f"{{{side}}}" for side in sides])},"book-{depth}","{words.symbol}"]'


def _book_snapshot(book: SlotBook, words: _Words, depth: int, time_us: int) -> str:
    view = best_of(book, depth)
    bids = ",".join([words.level(slot, lots, time_us) for slot, lots in view.bids.items()])
    asks = ",".join([words.level(slot, lots, time_us) for slot, lots in view.asks.items()])
    if words.old:
        return f'[{depth},{{"as":[{asks}],"bs":[{bids}]}},"book-{depth}","{words.symbol}"]'
    tail = f'"checksum":{words.checksum(book)},"timestamp":"{to_timestamp(time_us)}"'
    head = f'{{"channel":"book","type":"snapshot","data":[{{"symbol":"{words.symbol}"'
    return f'{head},"bids":[{bids}],"asks":[{asks}],{tail}}}]}}'


def _trades(minute: Minute, words: _Words) -> Iterator[Row]:
    return ((event.arrival, _trade(event, words, "update")) for event in trades(minute))


def _trade(event: TradeEvent, words: _Words, kind: str) -> str:
    """All that a taker met."""
    if words.old:
        side, time = "b" if event.buy else "s", _seconds(event.exchange_us)
        fills = [f'["{words.price[slot]}","{words.size(lots)}","{time}","{side}","m",""]' for slot, lots in event.fills]
        return f'[337,[{",".join(fills)}],"trade","{words.symbol}"]'
    head = f'{{"symbol":"{words.symbol}","side":"{"buy" if event.buy else "sell"}"'
    time = to_timestamp(event.exchange_us)
    fills = []
    for place, (slot, lots) in enumerate(event.fills):
        tail = f'"ord_type":"market","trade_id":{event.first_id + place},"timestamp":"{time}"'
        fills.append(f'{head},"price":{words.price[slot]},"qty":{words.size(lots)},{tail}}}')
    return f'{{"channel":"trade","type":"{kind}","data":[{",".join(fills)}]}}'


def _changes_of_best(minute: Minute) -> Iterator[BookEvent]:
    last = (0, 0, 0, 0)
    for event in minute.book_events():
        best = (event.bid, event.bid_lots, event.ask, event.ask_lots)
        if best != last and event.bid and event.ask:
            last = best
            yield event


def _spreads(minute: Minute, words: _Words) -> Iterator[Row]:
    for event in _changes_of_best(minute):
        prices = f'"{words.price[event.bid]}","{words.price[event.ask]}","{_seconds(event.exchange_us)}"'
        sizes = f'"{words.size(event.bid_lots)}","{words.size(event.ask_lots)}"'
        yield event.arrival, f'[341,[{prices},{sizes}],"spread","{words.symbol}"]'


def _best(market: SampleMarket, minute: Minute, words: _Words) -> Iterator[Row]:
    for event in _changes_of_best(minute):
        best = (event.bid, event.bid_lots, event.ask, event.ask_lots)
        yield event.arrival, _ticker(market, minute, words, best, words.price[event.bid], event.exchange_us)


def _tickers(market: SampleMarket, minute: Minute, words: _Words) -> Iterator[Row]:
    for tick in ticks(market, minute):
        if tick.bid and tick.ask:
            best, last = (tick.bid, tick.bid_lots, tick.ask, tick.ask_lots), words.price[tick.trade[1]]
            yield tick.arrival, _ticker(market, minute, words, best, last, tick.second * 1_000_000)


def _ticker(market: SampleMarket, minute: Minute, words: _Words, best: tuple[int, int, int, int], last: str, time_us: int) -> str:
    bid, bid_lots, ask, ask_lots = best
    day, decimals = market.day(minute.instrument, minute.index), minute.instrument.price_decimals
    if words.old:
        sides = f'"a":["{words.price[ask]}",1,"{words.size(ask_lots)}"],"b":["{words.price[bid]}",1,"{words.size(bid_lots)}"]'
        return f'[340,{{{sides},"c":["{last}","{words.size(1)}"]}},"ticker","{words.symbol}"]'
    sides = f'"bid":{words.price[bid]},"bid_qty":{words.size(bid_lots)},"ask":{words.price[ask]},"ask_qty":{words.size(ask_lots)}'
    stats = f'"volume":{words.size(day.lots)},"low":{day.low:.{decimals}f},"high":{day.high:.{decimals}f}'
    data = f'{{"symbol":"{words.symbol}",{sides},"last":{last},{stats},"timestamp":"{to_timestamp(time_us)}"}}'
    return f'{{"channel":"ticker","type":"update","data":[{data}]}}'
