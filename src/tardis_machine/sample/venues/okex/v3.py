"""The API in force until 2021-12-23: tables, times as text. https://www.okex.com/docs/en

Invariant: what it says of a minute is what the new API would say of it; only the words differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....messages import to_timestamp
from ...instrument import Instrument, to_rounded
from ...market import Minute, SampleMarket
from ...seeded_random import key_of
from .._contract import SECOND, Row, Wants, bundle, seconds, ticks, trades
from .listing import Checksum, OkexProduct, index_of, words_of

_DEPTHS = {"depth": 100_000, "depth_l2_tbt": 10_000}
"""How often each book table is sent, in microseconds."""


def channels(product: OkexProduct) -> tuple[str, ...]:
    """Those of a product's instruments."""
    own = {"spot": (), "option": ("summary",), "futures": ("mark_price", "liquidation")}
    names = ("trade", *_DEPTHS, "ticker", *own.get(product.prefix, ("mark_price", "liquidation", "funding_rate")))
    return tuple(f"{product.prefix}/{name}" for name in names)


def rows(product: OkexProduct, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
    """A minute of one instrument."""
    tables = {channel.partition("/")[2] for channel in channels if channel.startswith(f"{product.prefix}/")}
    if "trade" in tables:
        yield from _trades(product, minute)
    for table in _DEPTHS:
        if table in tables:
            yield from _depth_updates(product, minute, table)
    if "ticker" in tables:
        yield from _tickers(product, market, minute)
    if "mark_price" in tables:
        yield from _mark_prices(product, market, minute)
    if "funding_rate" in tables:
        yield from _funding_rates(product, market, minute)
    if "liquidation" in tables:
        yield from _liquidations(product, minute)
    if "summary" in tables:
        yield from _summaries(product, market, minute)


def greeting(
    product: OkexProduct, market: SampleMarket, listed: Sequence[Instrument], arrival: int, wants: Wants
) -> Iterator[Row]:
    """Answers to subscriptions, and books."""
    index, at = arrival // (60 * SECOND), arrival
    for instrument in listed:
        for channel in channels(product):
            if wants(channel, instrument.symbol):
                yield at, f'{{"event":"subscribe","channel":"{channel}:{instrument.symbol}"}}'
                at += 1
                if channel.partition("/")[2] in _DEPTHS:
                    yield at, _depth_partial(channel, market.minute(instrument, index), at)
                    at += 1


def common(
    product: OkexProduct, market: SampleMarket, listed: Sequence[Instrument], minute_index: int, wants: Wants
) -> Iterator[Row]:
    """Indexes."""
    if product.kind == "SPOT":
        return
    for index, asset in {index_of(each): each.asset for each in listed}.items():
        if wants("index/ticker", index):
            for arrival, second in seconds(key_of(index), minute_index):
                price = to_rounded(market.index(asset, second), 2)
                stats = f'"last":"{price}","open_24h":"{price}","high_24h":"{price}","low_24h":"{price}"'
                yield arrival, _message("index/ticker", f'{stats},"instrument_id":"{index}","timestamp":"{_time(second)}"')


def _time(second: int) -> str:
    return to_timestamp(second * 1_000_000, milliseconds=True)


def _message(table: str, data: str) -> str:
    return f'{{"table":"{table}","data":[{{{data}}}]}}'


def _trades(product: OkexProduct, minute: Minute) -> Iterator[Row]:
    instrument, words = minute.instrument, words_of(minute.instrument)
    # Futures call a size a quantity.
    size = "qty" if product.kind == "FUTURES" else "size"
    for event in trades(minute):
        side, time = "buy" if event.buy else "sell", to_timestamp(event.exchange_us, milliseconds=True)
        for place, (slot, lots) in enumerate(event.fills):
            amount = f'"price":"{words.price[slot]}","side":"{side}","{size}":"{words.size(lots)}"'
            names = f'"instrument_id":"{instrument.symbol}","timestamp":"{time}","trade_id":"{event.first_id + place}"'
            yield event.arrival + place, _message(f"{product.prefix}/trade", f"{amount},{names}")


def _depth_updates(product: OkexProduct, minute: Minute, table: str) -> Iterator[Row]:
    words = words_of(minute.instrument)
    checksum = Checksum(words, minute.opening)
    head = f'{{"table":"{product.prefix}/{table}","action":"update","data":[{{"instrument_id":"{minute.instrument.symbol}"'
    for group in bundle(minute.book_events(), _DEPTHS[table]):
        checksum.apply(group.changes)
        time = to_timestamp(group.exchange_us, milliseconds=True)
        tail = f'"timestamp":"{time}","checksum":{checksum.value(group.bid, group.ask)}'
        yield group.arrival, f"{head},{words.changed(group.changes)},{tail}}}]}}"


def _depth_partial(channel: str, minute: Minute, arrival: int) -> str:
    """The book as of now: an update that is still being gathered repeats what is in it, which does no harm."""
    words, book = words_of(minute.instrument), minute.book_at(arrival)
    time = to_timestamp(arrival // 10 - 6_000, milliseconds=True)
    bid, _, ask, _ = book.best()
    tail = f'"timestamp":"{time}","checksum":{Checksum(words, book).value(bid, ask)}'
    head = f'{{"table":"{channel}","action":"partial","data":[{{"instrument_id":"{minute.instrument.symbol}"'
    return f"{head},{words.whole(book)},{tail}}}]}}"


def _tickers(product: OkexProduct, market: SampleMarket, minute: Minute) -> Iterator[Row]:
    instrument, words = minute.instrument, words_of(minute.instrument)
    day = market.day(instrument, minute.index)
    opened, high, low = (to_rounded(value, instrument.price_decimals) for value in (day.open, day.high, day.low))
    stats = f'"open_24h":"{opened}","high_24h":"{high}","low_24h":"{low}","volume_24h":"{words.size(day.lots)}"'
    for tick in ticks(market, minute):
        _, slot, lots, _ = tick.trade
        bid = f'"best_bid":"{words.price[tick.bid]}","best_bid_size":"{words.size(tick.bid_lots)}"'
        ask = f'"best_ask":"{words.price[tick.ask]}","best_ask_size":"{words.size(tick.ask_lots)}"'
        last = f'"instrument_id":"{instrument.symbol}","last":"{words.price[slot]}","last_qty":"{words.size(lots)}"'
        interest = f'"open_interest":"{words.size(market.reference(instrument, tick.second).open_interest)}",'
        own = interest if product.kind in ("FUTURES", "OPTION") else ""
        yield (
            tick.arrival,
            _message(f"{product.prefix}/ticker", f'{last},{bid},{ask},{stats},{own}"timestamp":"{_time(tick.second)}"'),
        )


def _mark_prices(product: OkexProduct, market: SampleMarket, minute: Minute) -> Iterator[Row]:
    instrument = minute.instrument
    for arrival, second in seconds(instrument.key, minute.index):
        price = to_rounded(market.reference(instrument, second).fair, instrument.price_decimals + 1)
        data = f'"instrument_id":"{instrument.symbol}","mark_price":"{price}","timestamp":"{_time(second)}"'
        yield arrival + 10, _message(f"{product.prefix}/mark_price", data)


def _funding_rates(product: OkexProduct, market: SampleMarket, minute: Minute) -> Iterator[Row]:
    instrument = minute.instrument
    for arrival, second in seconds(instrument.key, minute.index, every_s=30):
        reference = market.reference(instrument, second)
        rate, following = to_rounded(reference.funding_rate, 8), to_rounded(reference.predicted_funding_rate, 8)
        rates = f'"estimated_rate":"{following}","funding_rate":"{rate}","funding_time":"{_time(reference.funding_s)}"'
        data = f'{rates},"instrument_id":"{instrument.symbol}","interest_rate":"0"'
        yield arrival + 20, _message(f"{product.prefix}/funding_rate", data)


def _liquidations(product: OkexProduct, minute: Minute) -> Iterator[Row]:
    words, symbol = words_of(minute.instrument), minute.instrument.symbol
    for event in trades(minute):
        if event.liquidation:
            size, price = words.size(sum(lots for _, lots in event.fills)), words.price[event.fills[-1][0]]
            # 3: a long position was closed, 4: a short one.
            order = f'"type":"{4 if event.buy else 3}","created_at":"{to_timestamp(event.exchange_us, milliseconds=True)}"'
            data = f'{{"loss":"0","size":"{size}","price":"{price}",{order},"instrument_id":"{symbol}"}}'
            yield event.arrival + 30, f'{{"table":"{product.prefix}/liquidation","generated":true,"data":[{data}]}}'


def _summaries(product: OkexProduct, market: SampleMarket, minute: Minute) -> Iterator[Row]:
    option, words = minute.instrument, words_of(minute.instrument)
    for tick in ticks(market, minute, every_s=2):
        reference = market.reference(option, tick.second)
        greeks, volatility = reference.greeks, reference.volatility
        assert greeks is not None
        bid = f'"best_bid":"{words.price[tick.bid]}","best_bid_size":"{words.size(tick.bid_lots)}"'
        ask = f'"best_ask":"{words.price[tick.ask]}","best_ask_size":"{words.size(tick.ask_lots)}"'
        values = f'"delta":"{to_rounded(greeks.delta, 10)}","gamma":"{to_rounded(greeks.gamma, 10)}"'
        values += f',"theta":"{to_rounded(greeks.theta, 10)}","vega":"{to_rounded(greeks.vega, 10)}"'
        mark, low, high = (to_rounded(volatility + margin, 4) for margin in (0.0, -0.012, 0.012))
        implied = f'"realized_vol":"0","bid_vol":"{low}","ask_vol":"{high}","mark_vol":"{mark}"'
        prices = f'"last":"{words.price[tick.trade[1]]}","mark_price":"{to_rounded(reference.fair, 8)}"'
        head = f'"instrument_id":"{option.symbol}","underlying":"{index_of(option)}"'
        values += f',"open_interest":"{words.size(reference.open_interest)}"'
        data = f'{head},{ask},{bid},{values},{implied},{prices},"timestamp":"{_time(tick.second)}"'
        yield tick.arrival + 50, _message(f"{product.prefix}/summary", data)
