"""BitMEX: tables of rows that are inserted, updated and deleted. https://www.bitmex.com/app/wsAPI

Invariant: a level's id is a function of its price, so that updates and deletes name it without the price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ...messages import to_timestamp
from ..instrument import Instrument, Memo, Terms, to_number, to_rounded
from ..market import Change, Minute, SampleMarket
from ..seeded_random import uuid_of
from ._contract import SECOND, Row, Venue, Wants, seconds, trades
from ._listing import quarter_ends

_MONTH_LETTERS = {3: "H", 6: "M", 9: "U", 12: "Z"}


class BitmexVenue(Venue):
    """The one exchange of its family."""

    exchange = "bitmex"
    channels = ("trade", "orderBookL2", "quote", "instrument", "liquidation", "funding")
    book_channels = ("orderBookL2",)

    def instruments(self, minute_index: int) -> Sequence[Instrument]:
        return _instruments(quarter_ends(minute_index)[0])

    def rows(self, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
        if "trade" in channels:
            yield from _trades(minute)
        if "orderBookL2" in channels:
            yield from _book_changes(minute)
        if "quote" in channels:
            yield from _quotes(minute)
        if "instrument" in channels:
            yield from _instrument_updates(market, minute)
        if "liquidation" in channels:
            yield from _liquidations(minute)
        if "funding" in channels and minute.instrument.kind == "perpetual":
            yield from _funding(market, minute)

    def greeting(self, market: SampleMarket, arrival: int, wants: Wants) -> Iterator[Row]:
        index, second = arrival // (60 * SECOND), arrival // SECOND
        listed = self.instruments(index)
        for place, channel in enumerate(("trade", "liquidation", "funding", "quote")):
            if any(wants(channel, each.symbol) for each in listed):
                yield arrival + place, f'{{"table":"{channel}","action":"partial","keys":[],"filter":{{}},"data":[]}}'
        if any(wants("instrument", each.symbol) for each in listed):
            rows = ",".join(_instrument_row(market, each, second) for each in listed)
            yield arrival + 10, f'{{"table":"instrument","action":"partial","keys":["symbol"],"filter":{{}},"data":[{rows}]}}'
        for place, each in enumerate(listed):
            if wants("orderBookL2", each.symbol):
                yield arrival + 20 + place, _book_partial(market.minute(each, index), arrival + 20 + place)

    def opening(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> str:
        if channel == "orderBookL2":
            return _book_partial(minute, arrival)
        symbol, keys, data = minute.instrument.symbol, "", ""
        if channel == "instrument":
            keys, data = '"symbol"', _instrument_row(market, minute.instrument, arrival // SECOND)
        head = f'{{"table":"{channel}","action":"partial","keys":[{keys}]'
        return f'{head},"filter":{{"symbol":"{symbol}"}},"data":[{data}]}}'


@lru_cache(maxsize=16)
def _instruments(quarter_us: int) -> tuple[Instrument, ...]:
    code = to_timestamp(quarter_us)
    dated = f"XBT{_MONTH_LETTERS[int(code[5:7])]}{code[2:4]}"
    return (
        Instrument("bitmex", "XBTUSD", "BTC", "perpetual", 1, 5, 0, 50_000, 3_000, 20.0, 62.0, depth=200, settled_in_asset=True),
        Instrument("bitmex", "ETHUSD", "ETH", "perpetual", 2, 5, 0, 8_000, 600, 3.0, 14.0, depth=100),
        Instrument(
            "bitmex",
            dated,
            "BTC",
            "future",
            1,
            5,
            0,
            9_000,
            500,
            0.5,
            4.0,
            depth=60,
            terms=Terms(quarter_us),
            settled_in_asset=True,
        ),
    )


class _Words:
    """How an instrument's slots read: memorized, as they recur."""

    def __init__(self, instrument: Instrument) -> None:
        decimals = instrument.price_decimals
        # As the exchange does: a range of ids for each instrument, counting down with the price.
        top = 100_000_000 * (88 + instrument.key % 300)
        hundredths = 10 ** (2 - decimals)
        self.price = Memo(lambda slot: to_number(instrument.price_units(slot), decimals))
        self.head = Memo(
            lambda slot: f'{{"symbol":"{instrument.symbol}","id":{top - instrument.price_units(slot) * hundredths},"side":'
        )


@lru_cache(maxsize=64)
def _words(instrument: Instrument) -> _Words:
    return _Words(instrument)


def _trades(minute: Minute) -> Iterator[Row]:
    instrument = minute.instrument
    symbol, price = instrument.symbol, _words(instrument).price
    key, last, direction = instrument.key, 0, "ZeroPlusTick"
    for event in trades(minute):
        side = "Buy" if event.buy else "Sell"
        time = to_timestamp(event.exchange_us, milliseconds=True)
        rows = []
        for place, (slot, size) in enumerate(event.fills):
            if slot != last:
                direction = "PlusTick" if slot > last else "MinusTick"
            elif not direction.startswith("Zero"):
                direction = f"Zero{direction}"
            last = slot
            amount = size / float(price[slot])
            rows.append(
                f'{{"timestamp":"{time}","symbol":"{symbol}","side":"{side}","size":{size},"price":{price[slot]},'
                f'"tickDirection":"{direction}","trdMatchID":"{uuid_of(key, event.first_id + place)}",'
                f'"grossValue":{int(amount * 100_000_000)},"homeNotional":{to_rounded(amount, 8)},"foreignNotional":{size}}}'
            )
        yield event.arrival, f'{{"table":"trade","action":"insert","data":[{",".join(rows)}]}}'


def _book_changes(minute: Minute) -> Iterator[Row]:
    words = _words(minute.instrument)
    head, price = words.head, words.price
    for event in minute.book_events():
        time = to_timestamp(event.exchange_us, milliseconds=True)
        changes = event.changes
        if len(changes) == 1:
            ((bid, slot, lots, was),) = changes
            side = '"Buy"' if bid else '"Sell"'
            if not lots:
                body = f'"delete","data":[{head[slot]}{side},"timestamp":"{time}"}}]}}'
            elif was:
                body = f'"update","data":[{head[slot]}{side},"size":{lots},"timestamp":"{time}"}}]}}'
            else:
                body = f'"insert","data":[{head[slot]}{side},"size":{lots},"price":{price[slot]},"timestamp":"{time}"}}]}}'
            yield event.arrival, f'{{"table":"orderBookL2","action":{body}'
        else:
            yield from _grouped_by_action(event.arrival, changes, words, time)


def _grouped_by_action(arrival: int, changes: list[Change], words: _Words, time: str) -> Iterator[Row]:
    """A message holds rows of one action; deletes go first, so that the book never crosses between messages."""
    rows: dict[str, list[str]] = {"delete": [], "insert": [], "update": []}
    for bid, slot, lots, was in changes:
        action = "delete" if not lots else "update" if was else "insert"
        size = "" if not lots else f',"size":{lots}'
        price = f',"price":{words.price[slot]}' if action == "insert" else ""
        rows[action].append(f'{words.head[slot]}"{"Buy" if bid else "Sell"}"{size}{price},"timestamp":"{time}"}}')
    for place, (action, data) in enumerate(rows.items()):
        if data:
            yield arrival + place, f'{{"table":"orderBookL2","action":"{action}","data":[{",".join(data)}]}}'


def _book_partial(minute: Minute, arrival: int) -> str:
    words, book, symbol = _words(minute.instrument), minute.book_at(arrival), minute.instrument.symbol
    time = to_timestamp(arrival // 10, milliseconds=True)
    levels = [(slot, "Sell", book.asks[slot]) for slot in sorted(book.asks, reverse=True)]
    levels += [(slot, "Buy", book.bids[slot]) for slot in sorted(book.bids, reverse=True)]
    rows = ",".join(
        f'{words.head[slot]}"{side}","size":{lots},"price":{words.price[slot]},"timestamp":"{time}"}}'
        for slot, side, lots in levels
    )
    return (
        '{"table":"orderBookL2","action":"partial","keys":["symbol","id","side"],"types":{"symbol":"symbol","id":"long","side":"symbol",'
        f'"size":"long","price":"float","timestamp":"timestamp"}},"filter":{{"symbol":"{symbol}"}},"data":[{rows}]}}'
    )


def _quotes(minute: Minute) -> Iterator[Row]:
    symbol, price, last = minute.instrument.symbol, _words(minute.instrument).price, (0, 0, 0, 0)
    for event in minute.book_events():
        best = (event.bid, event.bid_lots, event.ask, event.ask_lots)
        if best != last and event.bid and event.ask:
            last = best
            time = to_timestamp(event.exchange_us, milliseconds=True)
            yield (
                event.arrival,
                (
                    f'{{"table":"quote","action":"insert","data":[{{"timestamp":"{time}","symbol":"{symbol}","bidSize":{event.bid_lots},'
                    f'"bidPrice":{price[event.bid]},"askPrice":{price[event.ask]},"askSize":{event.ask_lots}}}]}}'
                ),
            )


def _instrument_row(market: SampleMarket, instrument: Instrument, second: int) -> str:
    reference = market.reference(instrument, second)
    price, perpetual = to_rounded(reference.fair, 2), instrument.kind == "perpetual"
    funding = f'"{to_timestamp(reference.funding_s * 1_000_000, milliseconds=True)}"' if perpetual else "null"
    expiry = f'"{to_timestamp(instrument.terms.expiry_us, milliseconds=True)}"' if instrument.terms else "null"
    return (
        f'{{"symbol":"{instrument.symbol}","rootSymbol":"{instrument.symbol[:3]}","state":"Open",'
        f'"typ":"{"FFWCSX" if perpetual else "FFCCSX"}","expiry":{expiry},"settlCurrency":"XBt",'
        f'"tickSize":{to_number(instrument.tick, instrument.price_decimals)},'
        f'"isInverse":{"true" if instrument.settled_in_asset else "false"},"fundingTimestamp":{funding},'
        f'"fundingRate":{to_rounded(reference.funding_rate, 6) if perpetual else "null"},'
        f'"indicativeFundingRate":{to_rounded(reference.predicted_funding_rate, 6) if perpetual else "null"},"lastPrice":{price},'
        f'"markPrice":{price},"indicativeSettlePrice":{to_rounded(reference.index, 2)},"openInterest":{reference.open_interest},'
        f'"timestamp":"{to_timestamp(second * 1_000_000, milliseconds=True)}"}}'
    )


def _instrument_updates(market: SampleMarket, minute: Minute) -> Iterator[Row]:
    """The last price with trades, marks every second, open interest every five, predicted funding every minute."""
    instrument, price = minute.instrument, _words(minute.instrument).price
    head = f'{{"table":"instrument","action":"update","data":[{{"symbol":"{instrument.symbol}"'
    last = 0
    for event in trades(minute):
        if event.fills[-1][0] != last:
            last = event.fills[-1][0]
            time = to_timestamp(event.exchange_us, milliseconds=True)
            yield event.arrival + 1, f'{head},"lastPrice":{price[last]},"timestamp":"{time}"}}]}}'
    for arrival, second in seconds(instrument.key, minute.index):
        reference = market.reference(instrument, second)
        time = to_timestamp(second * 1_000_000, milliseconds=True)
        fields = f'"markPrice":{to_rounded(reference.fair, 2)},"indicativeSettlePrice":{to_rounded(reference.index, 2)}'
        yield arrival, f'{head},{fields},"timestamp":"{time}"}}]}}'
        if second % 5 == 0:
            yield arrival + 1, f'{head},"openInterest":{reference.open_interest},"timestamp":"{time}"}}]}}'
        if second % 60 == 0 and instrument.kind == "perpetual":
            funding = to_timestamp(reference.funding_s * 1_000_000, milliseconds=True)
            fields = f'"fundingRate":{to_rounded(reference.funding_rate, 6)},'
            fields += f'"indicativeFundingRate":{to_rounded(reference.predicted_funding_rate, 6)}'
            yield arrival + 2, f'{head},{fields},"fundingTimestamp":"{funding}","timestamp":"{time}"}}]}}'


def _liquidations(minute: Minute) -> Iterator[Row]:
    symbol, price = minute.instrument.symbol, _words(minute.instrument).price
    for event in trades(minute):
        if event.liquidation:
            order = f'"orderID":"{uuid_of(minute.instrument.key >> 1, event.first_id)}","symbol":"{symbol}"'
            size = sum(lots for _, lots in event.fills)
            side = "Buy" if event.buy else "Sell"
            row = f'{{{order},"side":"{side}","price":{price[event.fills[-1][0]]},"leavesQty":{size}}}'
            yield event.arrival - 2, f'{{"table":"liquidation","action":"insert","data":[{row}]}}'
            yield event.arrival + 2, f'{{"table":"liquidation","action":"delete","data":[{{{order}}}]}}'


def _funding(market: SampleMarket, minute: Minute) -> Iterator[Row]:
    for arrival, second in seconds(minute.instrument.key, minute.index, every_s=8 * 3_600):
        rate = market.reference(minute.instrument, second - 1).funding_rate
        time = to_timestamp(second * 1_000_000, milliseconds=True)
        yield (
            arrival,
            (
                f'{{"table":"funding","action":"insert","data":[{{"timestamp":"{time}","symbol":"{minute.instrument.symbol}",'
                f'"fundingInterval":"2000-01-01T08:00:00.000Z","fundingRate":{to_rounded(rate, 6)},'
                f'"fundingRateDaily":{to_rounded(rate * 3, 6)}}}]}}'
            ),
        )
