"""The API in force since 2021-12-23: `arg` says what the data is of. https://www.okx.com/docs-v5/en/#public-data-websocket

Invariant: a book update names the sequence number before it; its checksum is that of the book after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...instrument import Instrument, to_rounded
from ...market import BookEvent, Minute, SampleMarket, SlotBook
from ...seeded_random import key_of
from .._contract import SECOND, Row, Wants, bundle, bundled_until, seconds, sequence_ids, ticks, trades
from .listing import Checksum, OkexProduct, index_of, words_of

_SPOT = ("trades", "trades-all", "books", "books-l2-tbt", "bbo-tbt", "tickers")
_OPTIONS = (*_SPOT, "mark-price", "open-interest")
_FUTURES = (*_OPTIONS, "funding-rate", "liquidations", "liquidation-orders")
_IDS_PER_MINUTE = 600_000
BOOKS = {"books": 100_000, "books-l2-tbt": 10_000}
"""How often each book channel is sent, in microseconds."""
# 2023-04-10, when liquidations came as a channel of their own and no longer had to be fetched.
_LIQUIDATION_ORDERS_SINCE_MINUTE = 28_018_080


def channels(product: OkexProduct) -> tuple[str, ...]:
    """Those of a product's instruments."""
    return {"SPOT": _SPOT, "OPTION": _OPTIONS}.get(product.kind, _FUTURES)


def rows(product: OkexProduct, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
    """A minute of one instrument."""
    for channel in ("trades", "trades-all"):
        if channel in channels:
            yield from _trades(minute, channel)
    for channel in BOOKS:
        if channel in channels:
            yield from _book_updates(minute, channel)
    if "bbo-tbt" in channels:
        yield from _best(minute)
    if "tickers" in channels:
        yield from _tickers(product, market, minute)
    if "mark-price" in channels:
        yield from _mark_prices(product, market, minute)
    if "open-interest" in channels:
        yield from _open_interest(product, market, minute)
    if "funding-rate" in channels and minute.instrument.kind == "perpetual":
        yield from _funding_rates(product, market, minute)
    liquidations = "liquidation-orders" if minute.index >= _LIQUIDATION_ORDERS_SINCE_MINUTE else "liquidations"
    if liquidations in channels:
        yield from _liquidations(product, minute, liquidations)


def greeting(
    product: OkexProduct, market: SampleMarket, listed: Sequence[Instrument], arrival: int, wants: Wants
) -> Iterator[Row]:
    """Answers to subscriptions, books, and the liquidations before."""
    index, at = arrival // (60 * SECOND), arrival
    for instrument in listed:
        for channel in channels(product):
            if wants(channel, instrument.symbol):
                yield at, f'{{"event":"subscribe",{_argument(channel, instrument.symbol)}}}'
                at += 1
                if channel in BOOKS:
                    yield at, _book_snapshot(market.minute(instrument, index), channel, at)
                    at += 1
    liquidated = listed if "liquidation-orders" in channels(product) and index >= _LIQUIDATION_ORDERS_SINCE_MINUTE else ()
    if any(wants("liquidation-orders", each.symbol) for each in liquidated):
        earlier = [
            _liquidation(words_of(each).price[market.aim(each, index * 60)], "1", "sell", index * 60_000 - 1) for each in listed
        ]
        orders = ",".join(_order(product, each, details) for each, details in zip(listed, earlier, strict=True))
        yield at, f'{{"arg":{{"channel":"liquidation-orders","instType":"{product.kind}"}},"data":[{orders}]}}'


def opening(minute: Minute, channel: str, arrival: int) -> str | None:
    """The book that a subscription starts with."""
    return _book_snapshot(minute, channel, arrival) if channel in BOOKS else None


def shown(minute: Minute, channel: str, arrival: int) -> SlotBook:
    """The book as of a channel's last message."""
    return minute.book_at(bundled_until(minute, BOOKS[channel], arrival))


def common(
    product: OkexProduct, market: SampleMarket, listed: Sequence[Instrument], minute_index: int, wants: Wants
) -> Iterator[Row]:
    """Indexes, and the summary of all options."""
    if product.kind == "SPOT":
        return
    for index, asset in {index_of(each): each.asset for each in listed}.items():
        if wants("index-tickers", index):
            yield from _index_tickers(market, minute_index, index, asset)
        if product.kind == "OPTION" and wants("opt-summary", index):
            yield from _option_summaries(market, minute_index, index, [each for each in listed if index_of(each) == index])


def _argument(channel: str, symbol: str) -> str:
    return f'"arg":{{"channel":"{channel}","instId":"{symbol}"}}'


def _message(channel: str, symbol: str, data: str) -> str:
    return f'{{{_argument(channel, symbol)},"data":[{{{data}}}]}}'


def _trades(minute: Minute, channel: str) -> Iterator[Row]:
    symbol, words = minute.instrument.symbol, words_of(minute.instrument)
    for event in trades(minute):
        side, ms = "buy" if event.buy else "sell", event.exchange_us // 1_000
        for place, (slot, lots) in enumerate(event.fills):
            amount = f'"px":"{words.price[slot]}","sz":"{words.size(lots)}","side":"{side}","ts":"{ms}"'
            yield (
                event.arrival + place,
                _message(channel, symbol, f'"instId":"{symbol}","tradeId":"{event.first_id + place}",{amount}'),
            )


def _numbered(minute: Minute, channel: str) -> Iterator[tuple[BookEvent, int]]:
    groups = list(bundle(minute.book_events(), BOOKS[channel]))
    return zip(groups, sequence_ids(minute.index, groups, _IDS_PER_MINUTE), strict=True)


def _book_updates(minute: Minute, channel: str) -> Iterator[Row]:
    words = words_of(minute.instrument)
    checksum = Checksum(words, minute.opening)
    head = f'{{{_argument(channel, minute.instrument.symbol)},"action":"update","data":[{{'
    previous = minute.index * _IDS_PER_MINUTE - 1
    for group, identity in _numbered(minute, channel):
        checksum.apply(group.changes)
        time = f'"ts":"{group.exchange_us // 1_000}"'
        ids = f'{time},"checksum":{checksum.value(group.bid, group.ask)},"seqId":{identity},"prevSeqId":{previous}'
        yield group.arrival, f"{head}{words.changed(group.changes)},{ids}}}]}}"
        previous = identity


def _book_snapshot(minute: Minute, channel: str, arrival: int) -> str:
    """The book as of the last message of that channel, as the next one goes on from there."""
    words = words_of(minute.instrument)
    taken, identity = minute.index * 60 * SECOND, minute.index * _IDS_PER_MINUTE - 1
    for group, group_id in _numbered(minute, channel):
        if group.arrival <= arrival:
            taken, identity = group.arrival, group_id
    book = minute.book_at(taken)
    bid, _, ask, _ = book.best()
    checksum = Checksum(words, book).value(bid, ask)
    tail = f'"ts":"{arrival // 10_000 - 6}","checksum":{checksum},"seqId":{identity},"prevSeqId":-1'
    return f'{{{_argument(channel, minute.instrument.symbol)},"action":"snapshot","data":[{{{words.whole(book)},{tail}}}]}}'


def _best(minute: Minute) -> Iterator[Row]:
    symbol, words, last = minute.instrument.symbol, words_of(minute.instrument), (0, 0, 0, 0)
    for event in minute.book_events():
        best = (event.bid, event.bid_lots, event.ask, event.ask_lots)
        if best != last and event.bid and event.ask:
            last = best
            sides = f'"asks":[{words.level(event.ask, event.ask_lots)}],"bids":[{words.level(event.bid, event.bid_lots)}]'
            times = f'"ts":"{event.exchange_us // 1_000}","seqId":{event.exchange_us // 100}'
            yield event.arrival, _message("bbo-tbt", symbol, f"{sides},{times}")


def _tickers(product: OkexProduct, market: SampleMarket, minute: Minute) -> Iterator[Row]:
    instrument, words = minute.instrument, words_of(minute.instrument)
    day = market.day(instrument, minute.index)
    opened, high, low = (to_rounded(value, instrument.price_decimals) for value in (day.open, day.high, day.low))
    volume = words.size(day.lots)
    stats = f'"open24h":"{opened}","high24h":"{high}","low24h":"{low}","sodUtc0":"{opened}","sodUtc8":"{opened}"'
    for tick in ticks(market, minute):
        _, slot, lots, _ = tick.trade
        ask = f'"askPx":"{words.price[tick.ask]}","askSz":"{words.size(tick.ask_lots)}"' if tick.ask else '"askPx":"","askSz":""'
        bid = f'"bidPx":"{words.price[tick.bid]}","bidSz":"{words.size(tick.bid_lots)}"' if tick.bid else '"bidPx":"","bidSz":""'
        head = f'"instType":"{product.kind}","instId":"{instrument.symbol}","last":"{words.price[slot]}"'
        tail = f'"lastSz":"{words.size(lots)}",{stats},"volCcy24h":"{volume}","vol24h":"{volume}","ts":"{tick.ms}"'
        yield tick.arrival, _message("tickers", instrument.symbol, f"{head},{ask},{bid},{tail}")


def _by_the_clock(
    product: OkexProduct, minute: Minute, channel: str, every_s: int, fields: Callable[[int], str]
) -> Iterator[Row]:
    symbol = minute.instrument.symbol
    for arrival, second in seconds(minute.instrument.key, minute.index, every_s):
        data = f'"instId":"{symbol}","instType":"{product.kind}",{fields(second)},"ts":"{second * 1_000}"'
        yield arrival + len(channel), _message(channel, symbol, data)


def _mark_prices(product: OkexProduct, market: SampleMarket, minute: Minute) -> Iterator[Row]:
    instrument = minute.instrument
    decimals = instrument.price_decimals + (12 if instrument.kind == "option" else 1)

    def fields(second: int) -> str:
        return f'"markPx":"{to_rounded(market.reference(instrument, second).fair, decimals)}"'

    return _by_the_clock(product, minute, "mark-price", 1, fields)


def _open_interest(product: OkexProduct, market: SampleMarket, minute: Minute) -> Iterator[Row]:
    instrument, words = minute.instrument, words_of(minute.instrument)

    def fields(second: int) -> str:
        lots = market.reference(instrument, second).open_interest
        return f'"oi":"{words.size(lots)}","oiCcy":"{to_rounded(lots / 100, 2)}"'

    return _by_the_clock(product, minute, "open-interest", 3, fields)


def _funding_rates(product: OkexProduct, market: SampleMarket, minute: Minute) -> Iterator[Row]:
    instrument = minute.instrument

    def fields(second: int) -> str:
        reference = market.reference(instrument, second)
        rate, following = to_rounded(reference.funding_rate, 8), to_rounded(reference.predicted_funding_rate, 8)
        return f'"fundingRate":"{rate}","fundingTime":"{reference.funding_s * 1_000}","nextFundingRate":"{following}"'

    return _by_the_clock(product, minute, "funding-rate", 30, fields)


def _liquidations(product: OkexProduct, minute: Minute, channel: str) -> Iterator[Row]:
    instrument, words = minute.instrument, words_of(minute.instrument)
    for event in trades(minute):
        if event.liquidation:
            side, ms = "buy" if event.buy else "sell", event.exchange_us // 1_000
            size = words.size(sum(lots for _, lots in event.fills))
            details = _liquidation(words.price[event.fills[-1][0]], size, side, ms)
            if channel == "liquidation-orders":
                argument, data = f'{{"channel":"{channel}","instType":"{product.kind}"}}', _order(product, instrument, details)
            else:
                argument, data = f'{{"channel":"{channel}","instId":"{instrument.symbol}","generated":true}}', details
            yield event.arrival + 30, f'{{"arg":{argument},"data":[{data}]}}'


def _liquidation(price: str, size: str, side: str, ms: int) -> str:
    position = "short" if side == "buy" else "long"
    return f'{{"bkLoss":"0","bkPx":"{price}","ccy":"","posSide":"{position}","side":"{side}","sz":"{size}","ts":"{ms}"}}'


def _order(product: OkexProduct, instrument: Instrument, details: str) -> str:
    family = index_of(instrument)
    names = f'"instFamily":"{family}","instId":"{instrument.symbol}","instType":"{product.kind}","uly":"{family}"'
    return f'{{"details":[{details}],{names}}}'


def _index_tickers(market: SampleMarket, minute_index: int, index: str, asset: str) -> Iterator[Row]:
    for arrival, second in seconds(key_of(index), minute_index):
        price, opened = market.index(asset, second), to_rounded(market.index(asset, second // 86_400 * 86_400), 1)
        stats = f'"open24h":"{opened}","high24h":"{opened}","low24h":"{opened}","sodUtc0":"{opened}","sodUtc8":"{opened}"'
        data = f'"instId":"{index}","idxPx":"{to_rounded(price, 1)}",{stats},"ts":"{second * 1_000}"'
        yield arrival, _message("index-tickers", index, data)


def _option_summaries(market: SampleMarket, minute_index: int, index: str, options: Sequence[Instrument]) -> Iterator[Row]:
    """All options of an underlying in one message."""
    for arrival, second in seconds(key_of(index), minute_index, every_s=2):
        data = ",".join([_option_summary(market, option, index, second) for option in options])
        # After the prices that it is to be read with.
        yield arrival + 100_000, f'{{"arg":{{"channel":"opt-summary","uly":"{index}"}},"data":[{data}]}}'


def _option_summary(market: SampleMarket, option: Instrument, index: str, second: int) -> str:
    reference = market.reference(option, second)
    greeks, volatility = reference.greeks, reference.volatility
    assert greeks is not None
    # Plain greeks are in coin, those of Black and Scholes in dollars.
    in_coin = (
        greeks.delta - reference.fair,
        greeks.gamma * reference.index,
        greeks.vega / reference.index,
        greeks.theta / reference.index,
    )
    in_dollars = (greeks.delta, greeks.gamma, greeks.vega, greeks.theta)
    names = ("delta", "gamma", "vega", "theta")
    values = [f'"{name}":"{to_rounded(value, 10)}"' for name, value in zip(names, in_coin, strict=True)]
    values += [f'"{name}BS":"{to_rounded(value, 10)}"' for name, value in zip(names, in_dollars, strict=True)]
    mark, bid, ask = (to_rounded(volatility + margin, 10) for margin in (0.0, -0.012, 0.012))
    head = f'"instType":"OPTION","instId":"{option.symbol}","uly":"{index}"'
    implied = f'"lever":"{to_rounded(1 / reference.fair, 8)}","markVol":"{mark}","bidVol":"{bid}","askVol":"{ask}","realVol":""'
    return f'{{{head},{",".join(values)},{implied},"ts":"{second * 1_000}"}}'
