"""Binance: streams named `symbol@channel`. https://developers.binance.com/docs

Invariant: depth updates are numbered without a gap (`U` is the last `u` + 1, `pu` the last `u`), and the snapshot, which the
recorder fetches over REST and so gets late, falls between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

from ..instrument import Instrument, Kind, Memo, Terms, to_decimal
from ..market import BookEvent, Minute, SampleMarket, SlotBook
from ..seeded_random import key_of, mix
from ._contract import SECOND, Row, Venue, Wants, bundle, bundled_until, seconds, sequence_ids, ticks, trades
from ._listing import compact_date, quarter_ends

_SPOT = ("trade", "aggTrade", "depth", "depthSnapshot", "bookTicker", "ticker")
_DERIVATIVES = (*_SPOT, "markPrice", "forceOrder", "openInterest")
_IDS_PER_MINUTE = 600_000
_DEPTH_EVERY_US = 100_000


def rest_depth(minute: Minute, arrival: int, limit: int) -> str:
    """The book as `GET /depth` answers: that of the last update, under an id that falls inside the next one."""
    words, taken, last = _words(minute.instrument), minute.index * 60 * SECOND, minute.index * _IDS_PER_MINUTE - 1
    following = 0
    for group, identity in _numbered_groups(minute):
        if group.arrival > arrival:
            following = identity
            break
        taken, last = group.arrival, identity
    # Spot goes on with the update that holds the id after the snapshot's, derivatives with the one that holds its own.
    if words.derivative or following > last + 1:
        last += 1
    return _snapshot_data(words, minute.book_at(taken), last, arrival, limit)


def rest_open_interest(market: SampleMarket, instrument: Instrument, second: int) -> str:
    """What `GET /openInterest` answers."""
    return _open_interest_data(_words(instrument), market, instrument, second)


class BinanceVenue(Venue):
    """Spot (binance, binance-us, binance-jersey), margined in USD (binance-futures) or in coin (binance-delivery)."""

    def __init__(self, exchange: str) -> None:
        self.exchange = exchange
        self._list = lru_cache(maxsize=16)(_LISTINGS[exchange])
        self._coin_margined = exchange == "binance-delivery"
        self.channels = _DERIVATIVES if exchange in ("binance-futures", "binance-delivery") else _SPOT
        self.book_channels = ("depth",)

    def instruments(self, minute_index: int) -> Sequence[Instrument]:
        return self._list(self.exchange, quarter_ends(minute_index)[0])

    def symbol(self, channel: str, instrument: Instrument) -> str:
        return instrument.symbol.lower()

    def rows(self, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
        words = _words(minute.instrument)
        if "trade" in channels:
            yield from _trades(minute, words)
        if "aggTrade" in channels:
            yield from _aggregate_trades(minute, words)
        if "depth" in channels:
            yield from _depth(minute, words)
        if "bookTicker" in channels:
            yield from _book_tickers(minute, words)
        if "ticker" in channels:
            yield from _tickers(market, minute, words)
        if "markPrice" in channels:
            yield from _mark_prices(market, minute, words)
        if "forceOrder" in channels:
            yield from _forced_orders(minute, words)
        if "openInterest" in channels:
            yield from _open_interest(market, minute, words)

    def greeting(self, market: SampleMarket, arrival: int, wants: Wants) -> Iterator[Row]:
        index = arrival // (60 * SECOND)
        for instrument in self.instruments(index):
            if wants("depthSnapshot", self.symbol("depthSnapshot", instrument)):
                yield _snapshot(market.minute(instrument, index), arrival)

    def shown(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> SlotBook:
        return minute.book_at(bundled_until(minute, _DEPTH_EVERY_US, arrival))

    def common(self, market: SampleMarket, minute_index: int, wants: Wants) -> Iterable[Row]:
        if self._coin_margined:
            for pair, asset in {_words(each).pair: each.asset for each in self.instruments(minute_index)}.items():
                if wants("indexPrice", pair.lower()):
                    yield from _index_prices(market, minute_index, pair, asset)


class _Words:
    """How an instrument is named, and how its slots and lots read."""

    def __init__(self, instrument: Instrument) -> None:
        spot = instrument.kind == "spot"
        self.symbol = instrument.symbol
        self.pair = instrument.symbol.split("_")[0]
        self.stream = f'{{"stream":"{instrument.symbol.lower()}@'
        self.derivative = not spot
        self.coin_margined = instrument.settled_in_asset
        self.pair_field = f',"ps":"{self.pair}"' if self.coin_margined else ""
        # Spot writes eight decimals, whatever the tick.
        self.zeros = "0" * (8 - instrument.price_decimals) if spot else ""
        self.price = Memo(lambda slot: to_decimal(instrument.price_units(slot), instrument.price_decimals) + self.zeros)
        scale, form = float(10**instrument.size_decimals), "%.8f" if spot else f"%.{instrument.size_decimals}f"
        self.size: Callable[[int], str] = lambda lots: form % (lots / scale)


@lru_cache(maxsize=64)
def _words(instrument: Instrument) -> _Words:
    return _Words(instrument)


def _trades(minute: Minute, words: _Words) -> Iterator[Row]:
    head, price, size, derivative = f'{words.stream}trade","data":{{"e":"trade","E":', words.price, words.size, words.derivative
    for event in trades(minute):
        ms = event.exchange_us // 1_000
        maker = "false" if event.buy else "true"
        for place, (slot, lots) in enumerate(event.fills):
            identity = event.first_id + place
            common = f'"s":"{words.symbol}","t":{identity},"p":"{price[slot]}","q":"{size(lots)}"'
            if derivative:
                message = f'{head}{ms + 1},"T":{ms},{common},"X":"MARKET","m":{maker}}}}}'
            else:
                message = (
                    f'{head}{ms + 1},{common},"b":{identity * 3 + 1},"a":{identity * 3 + 2},"T":{ms},"m":{maker},"M":true}}}}'
                )
            yield event.arrival + place, message


def _aggregate_trades(minute: Minute, words: _Words) -> Iterator[Row]:
    """One for each price that a taker met."""
    head = f'{words.stream}aggTrade","data":{{"e":"aggTrade","E":'
    for event in trades(minute):
        ms = event.exchange_us // 1_000
        maker = "false" if event.buy else "true"
        first = event.first_id
        for slot, fills in groupby(event.fills, itemgetter(0)):
            lots = [lots for _, lots in fills]
            amount = f'"p":"{words.price[slot]}","q":"{words.size(sum(lots))}"'
            ids = f'"f":{first},"l":{first + len(lots) - 1},"T":{ms},"m":{maker}'
            arrival = event.arrival + first - event.first_id
            yield arrival, f'{head}{ms + 1},"s":"{words.symbol}","a":{first},{amount},{ids}}}}}'
            first += len(lots)


def _depth(minute: Minute, words: _Words) -> Iterator[Row]:
    price, size = words.price, words.size
    head = f'{words.stream}depth@100ms","data":{{"e":"depthUpdate","E":'
    previous = minute.index * _IDS_PER_MINUTE - 1
    for group, last in _numbered_groups(minute):
        bids = ",".join([f'["{price[slot]}","{size(lots)}"]' for bid, slot, lots, _ in group.changes if bid])
        asks = ",".join([f'["{price[slot]}","{size(lots)}"]' for bid, slot, lots, _ in group.changes if not bid])
        ms = group.exchange_us // 1_000
        levels = f'"b":[{bids}],"a":[{asks}]}}}}'
        if words.derivative:
            ids = f'"U":{previous + 1},"u":{last},"pu":{previous}'
            yield group.arrival, f'{head}{ms + 2},"T":{ms},"s":"{words.symbol}"{words.pair_field},{ids},{levels}'
        else:
            yield group.arrival, f'{head}{ms},"s":"{words.symbol}","U":{previous + 1},"u":{last},{levels}'
        previous = last


def _numbered_groups(minute: Minute) -> Iterator[tuple[BookEvent, int]]:
    groups = list(bundle(minute.book_events(), _DEPTH_EVERY_US))
    return zip(groups, sequence_ids(minute.index, groups, _IDS_PER_MINUTE), strict=True)


def _snapshot(minute: Minute, arrival: int) -> Row:
    """The book as of the last update before the request is answered; the answer arrives after some more updates."""
    words = _words(minute.instrument)
    asked = arrival + SECOND // 2 + mix(minute.instrument.key, arrival) % (SECOND // 2)
    taken, last, seen = minute.index * 60 * SECOND, minute.index * _IDS_PER_MINUTE - 1, False
    for group, identity in _numbered_groups(minute):
        if group.arrival <= asked:
            taken, last, seen = group.arrival, identity, group.arrival > arrival
    if words.derivative and not seen:
        # Here the update to go on with must hold the snapshot's own id.
        last += 1
    data = _snapshot_data(words, minute.book_at(taken), last, taken)
    return asked + SECOND // 4, f'{words.stream}depthSnapshot","generated":true,"data":{data}}}'


def _snapshot_data(words: _Words, book: SlotBook, last: int, taken: int, limit: int | None = None) -> str:
    price, size = words.price, words.size
    bids = ",".join([f'["{price[slot]}","{size(book.bids[slot])}"]' for slot in sorted(book.bids, reverse=True)[:limit]])
    asks = ",".join([f'["{price[slot]}","{size(book.asks[slot])}"]' for slot in sorted(book.asks)[:limit]])
    times = f'"E":{taken // 10_000 - 5},"T":{taken // 10_000 - 7},' if words.derivative else ""
    names = f'"symbol":"{words.symbol}","pair":"{words.pair}",' if words.coin_margined else ""
    return f'{{"lastUpdateId":{last},{times}{names}"bids":[{bids}],"asks":[{asks}]}}'


def _book_tickers(minute: Minute, words: _Words) -> Iterator[Row]:
    head, price, size, last = f'{words.stream}bookTicker","data":', words.price, words.size, (0, 0, 0, 0)
    for event in minute.book_events():
        best = (event.bid, event.bid_lots, event.ask, event.ask_lots)
        if best != last and event.bid and event.ask:
            last = best
            bid, ask = (
                f'"b":"{price[event.bid]}","B":"{size(event.bid_lots)}"',
                f'"a":"{price[event.ask]}","A":"{size(event.ask_lots)}"',
            )
            common = f'"u":{event.exchange_us // 100},"s":"{words.symbol}"{words.pair_field},{bid},{ask}'
            if words.derivative:
                ms = event.exchange_us // 1_000
                yield event.arrival, f'{head}{{"e":"bookTicker",{common},"T":{ms},"E":{ms + 2}}}}}'
            else:
                yield event.arrival, f"{head}{{{common}}}}}"


def _tickers(market: SampleMarket, minute: Minute, words: _Words) -> Iterator[Row]:
    day, price, size = market.day(minute.instrument, minute.index), words.price, words.size
    decimals = minute.instrument.price_decimals
    opened, high, low = (f"{value:.{decimals}f}{words.zeros}" for value in (day.open, day.high, day.low))
    for tick in ticks(market, minute):
        identity, slot, lots, _ = tick.trade
        change = float(price[slot]) - day.open
        moved = f'"p":"{change:.{decimals}f}{words.zeros}","P":"{100 * change / day.open:.3f}","w":"{opened}"'
        traded = f'"c":"{price[slot]}","Q":"{size(lots)}","o":"{opened}","h":"{high}","l":"{low}","v":"{size(day.lots)}"'
        counts = f'"O":{tick.ms - 86_400_000},"C":{tick.ms},"F":{identity - day.trades + 1},"L":{identity},"n":{day.trades}'
        head = f'{words.stream}ticker","data":{{"e":"24hrTicker","E":{tick.ms},"s":"{words.symbol}"{words.pair_field}'
        yield tick.arrival, f'{head},{moved},{traded},"q":"{size(day.lots)}",{counts}}}}}'


def _mark_prices(market: SampleMarket, minute: Minute, words: _Words) -> Iterator[Row]:
    instrument = minute.instrument
    for arrival, second in seconds(instrument.key, minute.index):
        reference = market.reference(instrument, second)
        if instrument.kind == "perpetual":
            funding = f'"r":"{reference.funding_rate:.8f}","T":{reference.funding_s * 1_000}'
        else:
            funding = '"r":"","T":0' if words.coin_margined else '"r":"0.00000000","T":0'
        index = "" if words.coin_margined else f'"i":"{reference.index:.8f}",'
        head = f'{words.stream}markPrice@1s","data":{{"e":"markPriceUpdate","E":{second * 1_000},"s":"{words.symbol}"'
        yield arrival, f'{head},"p":"{reference.fair:.8f}","P":"{reference.index:.8f}",{index}{funding}}}}}'


def _index_prices(market: SampleMarket, minute_index: int, pair: str, asset: str) -> Iterator[Row]:
    for arrival, second in seconds(key_of(pair), minute_index):
        head = f'{{"stream":"{pair.lower()}@indexPrice@1s","data":{{"e":"indexPriceUpdate","E":{second * 1_000},"i":"{pair}"'
        yield arrival, f'{head},"p":"{market.index(asset, second):.8f}"}}}}'


def _forced_orders(minute: Minute, words: _Words) -> Iterator[Row]:
    for event in trades(minute):
        if event.liquidation:
            ms, size = event.exchange_us // 1_000, words.size(sum(lots for _, lots in event.fills))
            (first, _), (last, lots) = event.fills[0], event.fills[-1]
            order = f'"S":"{"BUY" if event.buy else "SELL"}","o":"LIMIT","f":"IOC","q":"{size}","p":"{words.price[last]}"'
            filled = f'"ap":"{words.price[first]}","X":"FILLED","l":"{words.size(lots)}","z":"{size}","T":{ms}'
            head = (
                f'{words.stream}forceOrder","data":{{"e":"forceOrder","E":{ms + 3},"o":{{"s":"{words.symbol}"{words.pair_field}'
            )
            yield event.arrival + 30, f"{head},{order},{filled}}}}}}}"


def _open_interest(market: SampleMarket, minute: Minute, words: _Words) -> Iterator[Row]:
    head = f'{words.stream}openInterest","generated":true,"data":'
    for arrival, second in seconds(minute.instrument.key, minute.index, every_s=15):
        yield arrival + 5_000, f"{head}{_open_interest_data(words, market, minute.instrument, second)}}}"


def _open_interest_data(words: _Words, market: SampleMarket, instrument: Instrument, second: int) -> str:
    pair = f'"pair":"{words.pair}","contractType":"CURRENT_QUARTER",' if words.coin_margined else ""
    size = words.size(market.reference(instrument, second).open_interest)
    # Fetched over REST by the recorder: the exchange's time is older than the message.
    return f'{{"symbol":"{words.symbol}",{pair}"openInterest":"{size}","time":{second * 1_000 - 800}}}'


def _spot(quote: str) -> Callable[[str, int], tuple[Instrument, ...]]:
    def listing(exchange: str, quarter_us: int) -> tuple[Instrument, ...]:
        return (
            Instrument(exchange, f"BTC{quote}", "BTC", "spot", 2, 1, 5, 80_000, 6_000, 14.0, 60.0, depth=150, spacing=60),
            Instrument(exchange, f"ETH{quote}", "ETH", "spot", 2, 1, 4, 90_000, 6_000, 5.0, 25.0, depth=150, spacing=8),
        )

    return listing


def _usd_margined(exchange: str, quarter_us: int) -> tuple[Instrument, ...]:
    terms = Terms(quarter_us)
    dated = f"BTCUSDT_{compact_date(quarter_us)}"
    return (
        Instrument(exchange, "BTCUSDT", "BTC", "perpetual", 2, 10, 3, 2_500, 200, 16.0, 64.0, depth=150, spacing=60),
        Instrument(exchange, "ETHUSDT", "ETH", "perpetual", 2, 1, 3, 30_000, 2_500, 6.0, 30.0, depth=150, spacing=8),
        Instrument(exchange, dated, "BTC", "future", 1, 1, 3, 600, 50, 0.4, 4.0, depth=50, spacing=9, terms=terms),
    )


def _coin_margined(exchange: str, quarter_us: int) -> tuple[Instrument, ...]:
    def contract(symbol: str, kind: Kind, trades_per_s: float, changes_per_s: float, terms: Terms | None = None) -> Instrument:
        rates = (trades_per_s, changes_per_s)
        return Instrument(exchange, symbol, "BTC", kind, 1, 1, 0, 900, 60, *rates, spacing=6, terms=terms, settled_in_asset=True)

    return (
        contract("BTCUSD_PERP", "perpetual", 6.0, 30.0),
        contract(f"BTCUSD_{compact_date(quarter_us)}", "future", 0.5, 5.0, Terms(quarter_us)),
    )


_LISTINGS: dict[str, Callable[[str, int], tuple[Instrument, ...]]] = {
    "binance": _spot("USDT"),
    "binance-us": _spot("USD"),
    "binance-jersey": _spot("EUR"),
    "binance-futures": _usd_margined,
    "binance-delivery": _coin_margined,
}
