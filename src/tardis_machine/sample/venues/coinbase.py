"""Coinbase Exchange: flat messages with a `type`. https://docs.cdp.coinbase.com/exchange/docs/websocket-overview

Invariant: the side of a match is the maker's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from ...messages import to_timestamp
from ..instrument import Instrument, Memo, to_decimal, to_number
from ..market import BookEvent, Minute, SampleMarket, SlotBook, TradeEvent
from ..seeded_random import uuid_of
from ._contract import SECOND, Row, Venue, Wants, bundle, bundled_until, last_trade, ticks, trades

_BATCH_US = 50_000
_LISTED = (
    Instrument("coinbase", "BTC-USD", "BTC", "spot", 2, 1, 8, 60_000_000, 4_000_000, 12.0, 55.0, depth=200, spacing=70),
    Instrument("coinbase", "ETH-USD", "ETH", "spot", 2, 1, 8, 900_000_000, 70_000_000, 5.0, 25.0, depth=200, spacing=9),
)


class CoinbaseVenue(Venue):
    """The one exchange of its family."""

    exchange = "coinbase"
    channels = ("match", "last_match", "l2update", "snapshot", "ticker")
    live_channels = ("level2_batch", "heartbeat")
    book_channels = ("level2_batch", "l2update")

    def instruments(self, minute_index: int) -> Sequence[Instrument]:
        return _LISTED

    def rows(self, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
        if "match" in channels:
            yield from _matches(minute)
        if "l2update" in channels:
            yield from _updates(minute, minute.book_events())
        if "level2_batch" in channels:
            yield from _updates(minute, bundle(minute.book_events(), _BATCH_US))
        if "heartbeat" in channels:
            yield from _heartbeats(market, minute)
        if "ticker" in channels:
            yield from _tickers(market, minute)

    def greeting(self, market: SampleMarket, arrival: int, wants: Wants) -> Iterator[Row]:
        index = arrival // (60 * SECOND)
        if wants("subscriptions", ""):
            yield arrival, _subscriptions()
        for place, instrument in enumerate(_LISTED, start=1):
            if wants("last_match", instrument.symbol):
                yield arrival + place, _last_match(market, market.minute(instrument, index), arrival)
            if wants("snapshot", instrument.symbol):
                at = arrival + 10 + place
                yield at, _snapshot(market.minute(instrument, index), at, at)

    def opening(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> str | None:
        if channel in self.book_channels:
            return _snapshot(minute, arrival, arrival if channel == "l2update" else bundled_until(minute, _BATCH_US, arrival))
        trade = last_trade(minute, arrival) if channel == "match" else None
        if trade is None:
            return None
        slot, lots = trade.fills[-1]
        identity = trade.first_id + len(trade.fills) - 1
        return _match("last_match", minute.instrument, identity, (slot, lots, trade.buy), trade.exchange_us)

    def shown(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> SlotBook:
        return minute.book_at(arrival if channel == "l2update" else bundled_until(minute, _BATCH_US, arrival))


class _Words:
    """How an instrument's slots and lots read."""

    def __init__(self, instrument: Instrument) -> None:
        self.product = f'"product_id":"{instrument.symbol}"'
        self.price = Memo(lambda slot: to_decimal(instrument.price_units(slot), instrument.price_decimals))
        scale = float(10**instrument.size_decimals)
        self.size: Callable[[int], str] = lambda lots: "%.8f" % (lots / scale)


@lru_cache(maxsize=8)
def _words(instrument: Instrument) -> _Words:
    return _Words(instrument)


def _subscriptions() -> str:
    products = ",".join(f'"{each.symbol}"' for each in _LISTED)
    channels = ",".join(f'{{"name":"{name}","product_ids":[{products}]}}' for name in ("level2", "matches", "ticker"))
    return f'{{"type":"subscriptions","channels":[{channels}]}}'


def _match(kind: str, instrument: Instrument, identity: int, trade: tuple[int, int, bool], time_us: int) -> str:
    words = _words(instrument)
    slot, lots, buy = trade
    maker, taker = uuid_of(instrument.key, identity * 2), uuid_of(instrument.key, identity * 2 + 1)
    orders = f'"maker_order_id":"{maker}","taker_order_id":"{taker}"'
    amount = f'"side":"{"sell" if buy else "buy"}","size":"{words.size(lots)}","price":"{words.price[slot]}"'
    tail = f'{words.product},"sequence":{identity * 7},"time":"{to_timestamp(time_us)}"'
    return f'{{"type":"{kind}","trade_id":{identity},{orders},{amount},{tail}}}'


def _matches(minute: Minute) -> Iterator[Row]:
    for event in trades(minute):
        for place, (slot, lots) in enumerate(event.fills):
            message = _match("match", minute.instrument, event.first_id + place, (slot, lots, event.buy), event.exchange_us)
            yield event.arrival + place, message


def _last_match(market: SampleMarket, minute: Minute, arrival: int) -> str:
    identity, slot, lots, buy = next(ticks(market, minute)).trade
    return _match("last_match", minute.instrument, identity, (slot, lots, buy), arrival // 10 - 100_000)


def _updates(minute: Minute, events: Iterable[BookEvent]) -> Iterator[Row]:
    words = _words(minute.instrument)
    price, size, head = words.price, words.size, f'{{"type":"l2update",{words.product},"changes":['
    for event in events:
        rows = ",".join(
            [f'["{"buy" if bid else "sell"}","{price[slot]}","{size(lots)}"]' for bid, slot, lots, _ in event.changes]
        )
        yield event.arrival, f'{head}{rows}],"time":"{to_timestamp(event.exchange_us)}"}}'


def _snapshot(minute: Minute, arrival: int, taken: int) -> str:
    words, book = _words(minute.instrument), minute.book_at(taken)
    price, size = words.price, words.size
    bids = ",".join([f'["{price[slot]}","{size(book.bids[slot])}"]' for slot in sorted(book.bids, reverse=True)])
    asks = ",".join([f'["{price[slot]}","{size(book.asks[slot])}"]' for slot in sorted(book.asks)])
    return f'{{"type":"snapshot",{words.product},"asks":[{asks}],"bids":[{bids}],"time":"{to_timestamp(arrival // 10 - 6_000)}"}}'


def _heartbeats(market: SampleMarket, minute: Minute) -> Iterator[Row]:
    product = _words(minute.instrument).product
    for tick in ticks(market, minute):
        identity = tick.trade[0]
        ids = f'"last_trade_id":{identity},{product},"sequence":{identity * 7}'
        yield tick.arrival, f'{{"type":"heartbeat",{ids},"time":"{to_timestamp(tick.second * 1_000_000)}"}}'


def _tickers(market: SampleMarket, minute: Minute) -> Iterator[Row]:
    """One for each taker, with the book's best at that time."""
    words, day = _words(minute.instrument), market.day(minute.instrument, minute.index)
    price, size = words.price, words.size
    volume = to_number(day.lots, minute.instrument.size_decimals)
    stats = f'"open_24h":"{day.open:.2f}","volume_24h":"{volume}","low_24h":"{day.low:.2f}","high_24h":"{day.high:.2f}"'
    waiting = None
    for event in minute.events:
        if isinstance(event, TradeEvent):
            waiting = event
            continue
        if waiting is None or not event.bid or not event.ask:
            continue
        identity, (slot, lots) = waiting.first_id + len(waiting.fills) - 1, waiting.fills[-1]
        bid = f'"best_bid":"{price[event.bid]}","best_bid_size":"{size(event.bid_lots)}"'
        ask = f'"best_ask":"{price[event.ask]}","best_ask_size":"{size(event.ask_lots)}"'
        traded = f'"side":"{"buy" if waiting.buy else "sell"}","time":"{to_timestamp(waiting.exchange_us)}","trade_id":{identity}'
        head = f'{{"type":"ticker","sequence":{identity * 7},{words.product},"price":"{price[slot]}"'
        yield event.arrival + 5, f'{head},{stats},"volume_30d":"{volume}",{bid},{ask},{traded},"last_size":"{size(lots)}"}}'
        waiting = None
