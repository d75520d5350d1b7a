"""Bybit, in its language of today (v5): topics that end in the symbol. https://bybit-exchange.github.io/docs/v5/ws/connect

Only live. Invariant: the updates of a book are numbered without a gap (`u`), over the ends of minutes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from ..instrument import Instrument, Memo, Terms, to_decimal, to_rounded
from ..market import BookEvent, Minute, Reference, SampleMarket, SlotBook
from ..seeded_random import uuid_of
from ._contract import SECOND, Row, Tick, Venue, Wants, share_out, ticks, trades
from ._listing import STRIKES, quarter_ends, spelled_date
from ._view import best_of, view_changes

_DEPTHS = {"bybit": (50, 200, 500, 1000), "bybit-spot": (50, 200, 1000), "bybit-options": (25, 100)}
_MESSAGES_PER_CHANGE = 0.4


class BybitVenue(Venue):
    """Contracts (bybit), bybit-spot or bybit-options."""

    channels = ()

    def __init__(self, exchange: str) -> None:
        self.exchange = exchange
        self._list = lru_cache(maxsize=16)(_LISTINGS[exchange])
        self.book_channels = tuple(f"orderbook.{depth}" for depth in _DEPTHS[exchange])
        own = {"bybit": ("orderbook.1", "allLiquidation"), "bybit-spot": ("orderbook.1",), "bybit-options": ()}
        self.live_channels = (*self.book_channels, "publicTrade", "tickers", *own[exchange])

    def instruments(self, minute_index: int) -> Sequence[Instrument]:
        return self._list(quarter_ends(minute_index)[0])

    def rows(self, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
        for channel in channels:
            if channel in self.book_channels:
                yield from _book_updates(market, minute, channel)
            elif channel == "orderbook.1":
                yield from _best(minute)
            elif channel == "publicTrade":
                yield from _trades(minute)
            elif channel == "tickers":
                yield from _tickers(market, minute)
            elif channel == "allLiquidation":
                yield from _liquidations(minute)

    def greeting(self, market: SampleMarket, arrival: int, wants: Wants) -> Iterable[Row]:
        return ()

    def opening(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> str | None:
        if channel in self.book_channels:
            taken, number, time_us = _last_message(market, minute, arrival)
            view = best_of(minute.book_at(taken), _depth(channel))
            return _book_message(minute.instrument, channel, "snapshot", view.bids.items(), view.asks.items(), number, time_us)
        if channel == "tickers" and minute.instrument.kind in ("perpetual", "future"):
            tick = [tick for tick in ticks(market, minute) if tick.arrival <= arrival or tick.second % 60 == 0][-1]
            return _contract_ticker(market, minute, tick, "snapshot")
        return None

    def shown(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> SlotBook:
        return best_of(minute.book_at(_last_message(market, minute, arrival)[0]), _depth(channel))


def _depth(channel: str) -> int:
    return int(channel.rpartition(".")[2])


class _Words:
    """How an instrument's slots and lots read."""

    def __init__(self, instrument: Instrument) -> None:
        self.price = Memo(lambda slot: to_decimal(instrument.price_units(slot), instrument.price_decimals))
        self.size: Callable[[int], str] = lambda lots: to_decimal(lots, instrument.size_decimals) if lots else "0"


@lru_cache(maxsize=256)
def _words(instrument: Instrument) -> _Words:
    return _Words(instrument)


def _messages_a_minute(market: SampleMarket, instrument: Instrument) -> int:
    """Fewer than a minute has changes, so that each has something to tell."""
    return max(int(instrument.changes_per_s * market.activity * 60.0 * _MESSAGES_PER_CHANGE), 1)


def _numbered(market: SampleMarket, minute: Minute) -> Iterator[tuple[BookEvent, int]]:
    count = _messages_a_minute(market, minute.instrument)
    groups = share_out(list(minute.book_events()), count)
    return ((group, minute.index * count + place) for place, group in enumerate(groups))


def _last_message(market: SampleMarket, minute: Minute, arrival: int) -> tuple[int, int, int]:
    """Arrival, number and time of a book's last message until then."""
    start = minute.index * 60 * SECOND
    taken, number, time_us = start, minute.index * _messages_a_minute(market, minute.instrument) - 1, start // 10
    for group, identity in _numbered(market, minute):
        if group.arrival > arrival:
            break
        taken, number, time_us = group.arrival, identity, group.exchange_us
    return taken, number, time_us


def _book_updates(market: SampleMarket, minute: Minute, channel: str) -> Iterator[Row]:
    numbers = [number for _, number in _numbered(market, minute)]
    groups = (group for group, _ in _numbered(market, minute))
    views = view_changes(minute.opening, groups, _depth(channel))
    for (group, changes, passed, _), number in zip(views, numbers, strict=True):
        levels = [*passed, *changes]
        bids = [(slot, lots) for bid, slot, lots, _ in levels if bid]
        asks = [(slot, lots) for bid, slot, lots, _ in levels if not bid]
        yield group.arrival, _book_message(minute.instrument, channel, "delta", bids, asks, number, group.exchange_us)


def _book_message(
    instrument: Instrument,
    channel: str,
    kind: str,
    bids: Iterable[tuple[int, int]],
    asks: Iterable[tuple[int, int]],
    number: int,
    time_us: int,
) -> str:
    words, ms = _words(instrument), time_us // 1_000
    sides = [",".join([f'["{words.price[slot]}","{words.size(lots)}"]' for slot, lots in side]) for side in (bids, asks)]
    data = f'{{"s":"{instrument.symbol}","b":[{sides[0]}],"a":[{sides[1]}],"u":{number},"seq":{time_us}}}'
    return f'{{"topic":"{channel}.{instrument.symbol}","type":"{kind}","ts":{ms + 2},"data":{data},"cts":{ms}}}'


def _best(minute: Minute) -> Iterator[Row]:
    last = (0, 0, 0, 0)
    for event in minute.book_events():
        best = (event.bid, event.bid_lots, event.ask, event.ask_lots)
        if best != last and event.bid and event.ask:
            last, number = best, event.exchange_us // 100
            sides = ([(event.bid, event.bid_lots)], [(event.ask, event.ask_lots)])
            yield event.arrival, _book_message(minute.instrument, "orderbook.1", "snapshot", *sides, number, event.exchange_us)


def _trades(minute: Minute) -> Iterator[Row]:
    instrument, words = minute.instrument, _words(minute.instrument)
    # All options of an asset share a topic.
    name = instrument.symbol.partition("-")[0] if instrument.kind == "option" else instrument.symbol
    last = 0
    for event in trades(minute):
        ms, side, fills = event.exchange_us // 1_000, "Buy" if event.buy else "Sell", []
        for place, (slot, lots) in enumerate(event.fills):
            direction, last = "PlusTick" if slot > last else "MinusTick" if slot < last else "ZeroPlusTick", slot
            amount = f'"S":"{side}","v":"{words.size(lots)}","p":"{words.price[slot]}","L":"{direction}"'
            identity = uuid_of(instrument.key, event.first_id + place)
            fills.append(f'{{"T":{ms},"s":"{instrument.symbol}",{amount},"i":"{identity}","BT":false}}')
        yield event.arrival, f'{{"topic":"publicTrade.{name}","type":"snapshot","ts":{ms + 2},"data":[{",".join(fills)}]}}'


def _liquidations(minute: Minute) -> Iterator[Row]:
    symbol, words = minute.instrument.symbol, _words(minute.instrument)
    for event in trades(minute):
        if event.liquidation:
            ms, size = event.exchange_us // 1_000, words.size(sum(lots for _, lots in event.fills))
            # The side is that of the position: who had to buy was short.
            side, price = "Sell" if event.buy else "Buy", words.price[event.fills[-1][0]]
            data = f'{{"T":{ms},"s":"{symbol}","S":"{side}","v":"{size}","p":"{price}"}}'
            yield event.arrival + 30, f'{{"topic":"allLiquidation.{symbol}","type":"snapshot","ts":{ms + 3},"data":[{data}]}}'


def _tickers(market: SampleMarket, minute: Minute) -> Iterator[Row]:
    kind = minute.instrument.kind
    for tick in ticks(market, minute):
        if kind == "spot":
            yield tick.arrival, _spot_ticker(market, minute, tick)
        elif kind == "option":
            yield tick.arrival, _option_ticker(market, minute, tick)
        else:
            yield tick.arrival, _contract_ticker(market, minute, tick, "delta")


def _ticker(symbol: str, kind: str, tick: Tick, fields: str) -> str:
    data = f'{{"symbol":"{symbol}",{fields}}}'
    return f'{{"topic":"tickers.{symbol}","type":"{kind}","data":{data},"cs":{tick.second},"ts":{tick.ms}}}'


def _spot_ticker(market: SampleMarket, minute: Minute, tick: Tick) -> str:
    words, day = _words(minute.instrument), market.day(minute.instrument, minute.index)
    prices = f'"lastPrice":"{words.price[tick.trade[1]]}","highPrice24h":"{day.high:.2f}","lowPrice24h":"{day.low:.2f}"'
    return _ticker(minute.instrument.symbol, "snapshot", tick, f'{prices},"volume24h":"{words.size(day.lots)}"')


def _contract_ticker(market: SampleMarket, minute: Minute, tick: Tick, kind: str) -> str:
    instrument, words = minute.instrument, _words(minute.instrument)
    reference = market.reference(instrument, tick.second)
    fields = f'"lastPrice":"{words.price[tick.trade[1]]}",{_worth(instrument, reference, words)}'
    if tick.bid and tick.ask:
        bid = f'"bid1Price":"{words.price[tick.bid]}","bid1Size":"{words.size(tick.bid_lots)}"'
        fields += f',{bid},"ask1Price":"{words.price[tick.ask]}","ask1Size":"{words.size(tick.ask_lots)}"'
    if instrument.kind == "perpetual" and (kind == "snapshot" or tick.second % 60 == 0):
        rate = to_rounded(reference.funding_rate, 8)
        fields += f',"nextFundingTime":"{reference.funding_s * 1_000}","fundingRate":"{rate}"'
    return _ticker(instrument.symbol, kind, tick, fields)


def _worth(instrument: Instrument, reference: Reference, words: _Words) -> str:
    mark, index = to_rounded(reference.fair, instrument.price_decimals + 2), to_rounded(reference.index, 2)
    return f'"markPrice":"{mark}","indexPrice":"{index}","openInterest":"{words.size(reference.open_interest)}"'


def _option_ticker(market: SampleMarket, minute: Minute, tick: Tick) -> str:
    instrument, words = minute.instrument, _words(minute.instrument)
    reference = market.reference(instrument, tick.second)
    greeks = reference.greeks
    assert greeks is not None
    bid = f'"bidPrice":"{words.price[tick.bid]}","bidSize":"{words.size(tick.bid_lots)}"' if tick.bid else '"bidPrice":"0"'
    ask = f'"askPrice":"{words.price[tick.ask]}","askSize":"{words.size(tick.ask_lots)}"' if tick.ask else '"askPrice":"0"'
    implied = [to_rounded(reference.volatility + margin, 4) for margin in (-0.012, 0.012, 0.0)]
    volatility = f'"bidIv":"{implied[0]}","askIv":"{implied[1]}","markPriceIv":"{implied[2]}"'
    names = ("delta", "gamma", "vega", "theta")
    values = ",".join(f'"{name}":"{to_rounded(getattr(greeks, name), 8)}"' for name in names)
    last = f'"lastPrice":"{words.price[tick.trade[1]]}","underlyingPrice":"{to_rounded(reference.index, 2)}"'
    return _ticker(
        instrument.symbol, "snapshot", tick, f"{bid},{ask},{volatility},{last},{_worth(instrument, reference, words)},{values}"
    )


def _contracts(quarter_us: int) -> tuple[Instrument, ...]:
    dated = f"BTC-{spelled_date(quarter_us)}"
    return (
        Instrument("bybit", "BTCUSDT", "BTC", "perpetual", 2, 10, 3, 2_500, 200, 14.0, 60.0, depth=120, spacing=60),
        Instrument("bybit", "ETHUSDT", "ETH", "perpetual", 2, 1, 2, 3_000, 250, 5.0, 28.0, depth=120, spacing=8),
        Instrument("bybit", dated, "BTC", "future", 2, 50, 3, 600, 50, 0.4, 4.0, depth=40, terms=Terms(quarter_us)),
        Instrument("bybit", "BTCUSD", "BTC", "perpetual", 2, 50, 0, 50_000, 3_000, 4.0, 22.0, depth=80, settled_in_asset=True),
    )


def _spot(quarter_us: int) -> tuple[Instrument, ...]:
    return (
        Instrument("bybit-spot", "BTCUSDT", "BTC", "spot", 2, 1, 6, 800_000, 60_000, 10.0, 50.0, depth=120, spacing=60),
        Instrument("bybit-spot", "ETHUSDT", "ETH", "spot", 2, 1, 5, 900_000, 60_000, 4.0, 24.0, depth=120, spacing=8),
    )


def _options(quarter_us: int) -> tuple[Instrument, ...]:
    def option(strike: int, call: bool) -> Instrument:
        symbol = f"BTC-{spelled_date(quarter_us)}-{strike}-{'C' if call else 'P'}"
        terms = Terms(quarter_us, strike, call)
        return Instrument("bybit-options", symbol, "BTC", "option", 4, 5, 2, 200, 25, 0.02, 1.0, depth=8, terms=terms)

    return tuple(option(strike, call) for strike in STRIKES["BTC"] for call in (True, False))


_LISTINGS: dict[str, Callable[[int], tuple[Instrument, ...]]] = {
    "bybit": _contracts,
    "bybit-spot": _spot,
    "bybit-options": _options,
}
