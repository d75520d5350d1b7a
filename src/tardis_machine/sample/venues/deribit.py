"""Deribit: JSON-RPC notifications of channels `kind.instrument.interval`. https://docs.deribit.com

Invariant: a book change names the change before it, over the ends of minutes too; only a snapshot names none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from ..greeks import Greeks
from ..instrument import Instrument, Kind, Memo, Terms, to_number, to_rounded
from ..market import BookEvent, Minute, Reference, SampleMarket, SlotBook
from ..seeded_random import key_of
from ._contract import SECOND, Row, Venue, Wants, bundle, bundled_until, seconds, sequence_ids, ticks, trades
from ._listing import STRIKES, quarter_ends, spelled_date

_IDS_PER_MINUTE = 600_000
_BATCH_US = 100_000
_INDEXES = {"btc_usd": "BTC", "eth_usd": "ETH"}


class DeribitVenue(Venue):
    """Perpetuals, a future, and a board of options."""

    exchange = "deribit"
    channels = ("trades", "book", "ticker", "quote", "perpetual")
    live_channels = ("book.100ms",)
    book_channels = ("book.100ms", "book")

    def instruments(self, minute_index: int) -> Sequence[Instrument]:
        return _instruments(quarter_ends(minute_index)[0])

    def rows(self, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
        if "trades" in channels:
            yield from _trades(market, minute)
        if "book" in channels:
            yield from _book_changes(minute, "raw")
        if "book.100ms" in channels:
            yield from _book_changes(minute, "100ms")
        if "ticker" in channels:
            yield from _tickers(market, minute)
        if "quote" in channels:
            yield from _quotes(minute)
        if "perpetual" in channels and minute.instrument.kind == "perpetual":
            yield from _interest(market, minute)

    def greeting(self, market: SampleMarket, arrival: int, wants: Wants) -> Iterator[Row]:
        index = arrival // (60 * SECOND)
        for place, instrument in enumerate(self.instruments(index)):
            if wants("book", instrument.symbol):
                yield arrival + place, _snapshot(market.minute(instrument, index), arrival + place, "raw")

    def opening(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> str | None:
        if channel not in self.book_channels:
            return None
        return _snapshot(minute, arrival, "raw" if channel == "book" else "100ms")

    def shown(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> SlotBook:
        return minute.book_at(arrival if channel == "book" else bundled_until(minute, _BATCH_US, arrival))

    def common(self, market: SampleMarket, minute_index: int, wants: Wants) -> Iterator[Row]:
        for name, asset in _INDEXES.items():
            if wants("deribit_price_index", name):
                for arrival, second in seconds(key_of(name), minute_index):
                    price = to_rounded(market.index(asset, second), 2)
                    data = f'{{"timestamp":{second * 1_000},"price":{price},"index_name":"{name}"}}'
                    yield arrival, _notification(f"deribit_price_index.{name}", data)


@lru_cache(maxsize=16)
def _instruments(quarter_us: int) -> tuple[Instrument, ...]:
    date = spelled_date(quarter_us)

    def inverse(
        symbol: str, asset: str, kind: Kind, decimals: int, lots: tuple[int, int], rates: tuple[float, float], *terms: Terms
    ) -> Instrument:
        own = terms[0] if terms else None
        return Instrument("deribit", symbol, asset, kind, decimals, 5, 0, *lots, *rates, terms=own, settled_in_asset=True)

    def option(strike: int, call: bool) -> Instrument:
        symbol, terms = f"BTC-{date}-{strike}-{'C' if call else 'P'}", Terms(quarter_us, strike, call)
        return Instrument("deribit", symbol, "BTC", "option", 4, 5, 1, 200, 25, 0.02, 1.0, depth=8, terms=terms)

    return (
        inverse("BTC-PERPETUAL", "BTC", "perpetual", 1, (40_000, 3_000), (8.0, 45.0)),
        inverse("ETH-PERPETUAL", "ETH", "perpetual", 2, (30_000, 2_000), (4.0, 20.0)),
        inverse(f"BTC-{date}", "BTC", "future", 1, (9_000, 800), (0.5, 5.0), Terms(quarter_us)),
        *(option(strike, call) for strike in STRIKES["BTC"] for call in (True, False)),
    )


class _Words:
    """How an instrument's slots and lots read."""

    def __init__(self, instrument: Instrument) -> None:
        self.name = f'"instrument_name":"{instrument.symbol}"'
        self.price = Memo(lambda slot: to_number(instrument.price_units(slot), instrument.price_decimals))
        self.size: Callable[[int], str] = lambda lots: to_number(lots, instrument.size_decimals)


@lru_cache(maxsize=256)
def _words(instrument: Instrument) -> _Words:
    return _Words(instrument)


def _notification(channel: str, data: str) -> str:
    return f'{{"jsonrpc":"2.0","method":"subscription","params":{{"channel":"{channel}","data":{data}}}}}'


def _trades(market: SampleMarket, minute: Minute) -> Iterator[Row]:
    instrument, words = minute.instrument, _words(minute.instrument)
    channel, last, direction = f"trades.{instrument.symbol}.raw", 0, 1
    for event in trades(minute):
        reference = market.reference(instrument, event.exchange_us // 1_000_000)
        side, ms = "buy" if event.buy else "sell", event.exchange_us // 1_000
        forced = '"liquidation":"T",' if event.liquidation else ""
        volatility = f'"iv":{to_rounded(100 * reference.volatility, 2)},' if reference.greeks else ""
        index = to_rounded(reference.index, 2)
        head, tail = f'"timestamp":{ms},{forced}{volatility}{words.name}', f'"index_price":{index},"direction":"{side}"'
        rows = []
        for place, (slot, lots) in enumerate(event.fills):
            # 0 plus, 1 zero-plus, 2 minus, 3 zero-minus tick
            direction = direction | 1 if slot == last else 0 if slot > last else 2
            last, identity = slot, event.first_id + place
            ids = f'"trade_seq":{identity},"trade_id":"{identity * 3 + 1}","tick_direction":{direction}'
            prices = f'"price":{words.price[slot]},"mark_price":{_mark(instrument, reference)},"amount":{words.size(lots)}'
            rows.append(f"{{{ids},{head},{prices},{tail}}}")
        yield event.arrival, _notification(channel, f"[{','.join(rows)}]")


def _mark(instrument: Instrument, reference: Reference) -> str:
    return to_rounded(reference.fair, instrument.price_decimals + 1)


def _numbered(minute: Minute, interval: str) -> Iterator[tuple[BookEvent, int]]:
    events = list(minute.book_events() if interval == "raw" else bundle(minute.book_events(), _BATCH_US))
    return zip(events, sequence_ids(minute.index, events, _IDS_PER_MINUTE), strict=True)


def _book_changes(minute: Minute, interval: str) -> Iterator[Row]:
    words = _words(minute.instrument)
    price, size, channel = words.price, words.size, f"book.{minute.instrument.symbol}.{interval}"
    previous = minute.index * _IDS_PER_MINUTE - 1
    for event, identity in _numbered(minute, interval):
        bids: list[str] = []
        asks: list[str] = []
        for bid, slot, lots, was in event.changes:
            action = "delete" if not lots else "change" if was else "new"
            (bids if bid else asks).append(f'["{action}",{price[slot]},{size(lots)}]')
        ids = f'"prev_change_id":{previous},{words.name},"change_id":{identity}'
        levels = f'"bids":[{",".join(bids)}],"asks":[{",".join(asks)}]'
        data = f'{{"type":"change","timestamp":{event.exchange_us // 1_000},{ids},{levels}}}'
        yield event.arrival, _notification(channel, data)
        previous = identity


def _snapshot(minute: Minute, arrival: int, interval: str) -> str:
    words, price, size = _words(minute.instrument), _words(minute.instrument).price, _words(minute.instrument).size
    taken, identity = minute.index * 60 * SECOND, minute.index * _IDS_PER_MINUTE - 1
    for event, event_id in _numbered(minute, interval):
        if event.arrival <= arrival:
            taken, identity = event.arrival, event_id
    book = minute.book_at(taken)
    bids = ",".join([f'["new",{price[slot]},{size(book.bids[slot])}]' for slot in sorted(book.bids, reverse=True)])
    asks = ",".join([f'["new",{price[slot]},{size(book.asks[slot])}]' for slot in sorted(book.asks)])
    head = f'{{"type":"snapshot","timestamp":{arrival // 10_000 - 6},{words.name},"change_id":{identity}'
    return _notification(f"book.{minute.instrument.symbol}.{interval}", f'{head},"bids":[{bids}],"asks":[{asks}]}}')


def _quotes(minute: Minute) -> Iterator[Row]:
    words, channel, last = _words(minute.instrument), f"quote.{minute.instrument.symbol}", (0, 0, 0, 0)
    for event in minute.book_events():
        best = (event.bid, event.bid_lots, event.ask, event.ask_lots)
        if best != last:
            last = best
            data = f'{{"timestamp":{event.exchange_us // 1_000},{words.name},{_best(words, *best)}}}'
            yield event.arrival + 1, _notification(channel, data)


def _best(words: _Words, bid: int, bid_lots: int, ask: int, ask_lots: int) -> str:
    bids = f'"best_bid_price":{words.price[bid]},"best_bid_amount":{words.size(bid_lots)}'
    return f'{bids},"best_ask_price":{words.price[ask]},"best_ask_amount":{words.size(ask_lots)}'


def _tickers(market: SampleMarket, minute: Minute) -> Iterator[Row]:
    instrument, words = minute.instrument, _words(minute.instrument)
    day = market.day(instrument, minute.index)
    decimals = instrument.price_decimals
    volume, low, high = words.size(day.lots), to_rounded(day.low, decimals), to_rounded(day.high, decimals)
    stats = f'"stats":{{"volume":{volume},"price_change":null,"low":{low},"high":{high}}}'
    for tick in ticks(market, minute):
        reference = market.reference(instrument, tick.second)
        index = to_rounded(reference.index, 2)
        lowest, highest = to_rounded(0.985 * reference.fair, decimals), to_rounded(1.015 * reference.fair, decimals)
        prices = f'"mark_price":{_mark(instrument, reference)},"last_price":{words.price[tick.trade[1]]},"index_price":{index}'
        band = f'"min_price":{lowest},"max_price":{highest},"estimated_delivery_price":{index}'
        own = ""
        if reference.greeks is not None:
            own = _greeks(instrument, reference, reference.greeks)
        elif instrument.kind == "perpetual":
            own = _funding(reference)
        best = _best(words, tick.bid, tick.bid_lots, tick.ask, tick.ask_lots)
        head = (
            f'{{"timestamp":{tick.ms},{stats},"state":"open","open_interest":{words.size(reference.open_interest)},{words.name}'
        )
        yield tick.arrival, _notification(f"ticker.{instrument.symbol}.raw", f"{head},{band},{prices},{own}{best}}}")


def _funding(reference: Reference) -> str:
    current, predicted = to_rounded(reference.funding_rate, 8), to_rounded(reference.predicted_funding_rate, 8)
    return f'"funding_8h":{predicted},"current_funding":{current},"interest_value":{current},'


def _greeks(instrument: Instrument, reference: Reference, greeks: Greeks) -> str:
    names = ("vega", "theta", "rho", "gamma", "delta")
    values = ",".join(f'"{name}":{to_rounded(getattr(greeks, name), 5)}' for name in names)
    mark, bid, ask = (to_rounded(100 * reference.volatility + margin, 2) for margin in (0.0, -1.2, 1.2))
    future = instrument.symbol.rsplit("-", 2)[0]
    underlying = f'"underlying_price":{to_rounded(reference.index, 2)},"underlying_index":"{future}"'
    return f'{underlying},"mark_iv":{mark},"bid_iv":{bid},"ask_iv":{ask},"interest_rate":0,"greeks":{{{values}}},'


def _interest(market: SampleMarket, minute: Minute) -> Iterator[Row]:
    for arrival, second in seconds(minute.instrument.key, minute.index):
        reference = market.reference(minute.instrument, second)
        rate, index = to_rounded(reference.funding_rate, 8), to_rounded(reference.index, 2)
        data = f'{{"timestamp":{second * 1_000},"interest":{rate},"index_price":{index}}}'
        yield arrival + 2, _notification(f"perpetual.{minute.instrument.symbol}.raw", data)
