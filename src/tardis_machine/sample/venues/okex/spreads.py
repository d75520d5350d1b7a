"""OKX's spread book: two legs traded as one, at the difference of their prices. https://www.okx.com/docs-v5/en/#spread-trading

Invariant: every book message holds the five best levels whole; there are no updates to apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ...instrument import Instrument
from ...market import Minute, SampleMarket, SlotBook
from .._contract import SECOND, Row, Venue, Wants, bundle, bundled_until, ticks, trades
from .._listing import compact_date, quarter_ends
from .listing import words_of

_LEVELS = 5
_EVERY_US = 100_000


class OkexSpreadsVenue(Venue):
    """okex-spreads."""

    exchange = "okex-spreads"
    channels = ("sprd-public-trades", "sprd-bbo-tbt", "sprd-books5", "sprd-tickers")
    book_channels = ("sprd-books5",)

    def instruments(self, minute_index: int) -> Sequence[Instrument]:
        return _instruments(*quarter_ends(minute_index))

    def rows(self, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
        if "sprd-public-trades" in channels:
            yield from _trades(minute)
        if "sprd-books5" in channels:
            yield from _books(minute)
        if "sprd-bbo-tbt" in channels:
            yield from _best(minute)
        if "sprd-tickers" in channels:
            yield from _tickers(market, minute)

    def shown(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> SlotBook:
        book = minute.book_at(bundled_until(minute, _EVERY_US, arrival))
        bids, asks = sorted(book.bids, reverse=True)[:_LEVELS], sorted(book.asks)[:_LEVELS]
        return SlotBook({slot: book.bids[slot] for slot in bids}, {slot: book.asks[slot] for slot in asks})

    def greeting(self, market: SampleMarket, arrival: int, wants: Wants) -> Iterator[Row]:
        index, at = arrival // (60 * SECOND), arrival
        for instrument in self.instruments(index):
            for channel in self.channels:
                if wants(channel, instrument.symbol):
                    yield at, f'{{"event":"subscribe",{_argument(channel, instrument.symbol)}}}'
                    at += 1


@lru_cache(maxsize=16)
def _instruments(near_us: int, far_us: int) -> tuple[Instrument, ...]:
    near, far = (f"BTC-USD-{compact_date(expiry_us)}" for expiry_us in (near_us, far_us))
    return tuple(
        Instrument("okex-spreads", symbol, "BTC-BASIS", "spot", 1, 5, 0, 20_000, 1_500, 0.3, 6.0, depth=20)
        for symbol in (f"BTC-USD-SWAP_{near}", f"{near}_{far}")
    )


def _argument(channel: str, symbol: str) -> str:
    return f'"arg":{{"channel":"{channel}","sprdId":"{symbol}"}}'


def _message(channel: str, symbol: str, data: str) -> str:
    return f'{{{_argument(channel, symbol)},"data":[{{{data}}}]}}'


def _trades(minute: Minute) -> Iterator[Row]:
    symbol, words = minute.instrument.symbol, words_of(minute.instrument)
    for event in trades(minute):
        side, ms = "buy" if event.buy else "sell", event.exchange_us // 1_000
        for place, (slot, lots) in enumerate(event.fills):
            amount = f'"px":"{words.price[slot]}","sz":"{words.size(lots)}","side":"{side}","ts":"{ms}"'
            data = f'"sprdId":"{symbol}","tradeId":"{event.first_id + place}",{amount}'
            yield event.arrival + place, _message("sprd-public-trades", symbol, data)


def _books(minute: Minute) -> Iterator[Row]:
    symbol, book = minute.instrument.symbol, minute.opening.copy()
    for group in bundle(minute.book_events(), _EVERY_US):
        book.apply(group.changes)
        bids = ",".join([_level(minute, slot, book.bids[slot]) for slot in sorted(book.bids, reverse=True)[:_LEVELS]])
        asks = ",".join([_level(minute, slot, book.asks[slot]) for slot in sorted(book.asks)[:_LEVELS]])
        data = f'"bids":[{bids}],"asks":[{asks}],"ts":"{group.exchange_us // 1_000}"'
        yield group.arrival, _message("sprd-books5", symbol, data)


def _best(minute: Minute) -> Iterator[Row]:
    symbol, last = minute.instrument.symbol, (0, 0, 0, 0)
    for event in minute.book_events():
        best = (event.bid, event.bid_lots, event.ask, event.ask_lots)
        if best != last and event.bid and event.ask:
            last = best
            sides = f'"bids":[{_level(minute, event.bid, event.bid_lots)}],"asks":[{_level(minute, event.ask, event.ask_lots)}]'
            yield event.arrival, _message("sprd-bbo-tbt", symbol, f'{sides},"ts":"{event.exchange_us // 1_000}"')


def _level(minute: Minute, slot: int, lots: int) -> str:
    words = words_of(minute.instrument)
    return f'["{words.price[slot]}","{words.size(lots)}","{lots % 9 + 1}"]'


def _tickers(market: SampleMarket, minute: Minute) -> Iterator[Row]:
    symbol, words = minute.instrument.symbol, words_of(minute.instrument)
    for tick in ticks(market, minute):
        _, slot, lots, _ = tick.trade
        ask = f'"askPx":"{words.price[tick.ask]}","askSz":"{words.size(tick.ask_lots)}"'
        bid = f'"bidPx":"{words.price[tick.bid]}","bidSz":"{words.size(tick.bid_lots)}"'
        last = f'"sprdId":"{symbol}","last":"{words.price[slot]}","lastSz":"{words.size(lots)}"'
        yield tick.arrival, _message("sprd-tickers", symbol, f'{last},{ask},{bid},"ts":"{tick.ms}"')
