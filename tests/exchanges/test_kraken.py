"""Kraken: arrays and objects by date, the latest time of a book's levels, markets without orders."""

from __future__ import annotations

from typing import Any

from tardis_machine.dates import parse_date_us
from tardis_machine.exchanges.kraken import read_subscription
from tardis_machine.filters import Filter
from tardis_machine.messages import UNSET, BookChange, BookTicker, Trade
from tardis_machine.pipeline.normalizer import Normalizer
from tests.exchanges.feeding import LOCAL, book, normalize

EARLY, LATE, TIME = "1709251200.050007", "1709251200.060008", "2024-03-01T00:00:00.060008Z"
V1, V2 = "2026-07-09T23:59:59.999Z", "2026-07-10"


def test_both_sides_of_a_v1_book_and_the_time_of_its_latest_level() -> None:
    changes = normalize(
        "kraken",
        "book_change",
        {"event": "heartbeat"},
        [1, {"as": [["11", "1", EARLY]], "bs": [["10", "2", LATE]]}, "book-1000", "XBT/USD"],
        [1, {"a": [["11", "0", LATE], ["12", "3", EARLY]]}, {"b": [["10", "4", EARLY]]}, "book-1000", "XBT/USD"],
        [1, {"b": [["9", "0.00000000", LATE]], "c": "974947235"}, "book-1000", "XBT/USD"],
        at=V1,
    )
    assert changes == [
        BookChange("XBT/USD", "kraken", True, book((10, 2)), book((11, 1)), TIME, LOCAL),
        BookChange("XBT/USD", "kraken", False, book((10, 4)), book((11, 0), (12, 3)), TIME, LOCAL),
        BookChange("XBT/USD", "kraken", False, book((9, 0)), [], TIME, LOCAL),
    ]


def test_v1_trades_and_spreads() -> None:
    trades = [1, [["10.10", "2", LATE, "s", "l", ""], ["10.2", "3", LATE, "b", "m", ""]], "trade", "XBT/USD"]
    assert normalize("kraken", "trade", trades, at=V1) == [
        Trade("XBT/USD", "kraken", UNSET, 10.1, 2, "sell", TIME, LOCAL),
        Trade("XBT/USD", "kraken", UNSET, 10.2, 3, "buy", TIME, LOCAL),
    ]
    empty = [1, ["0.0", "0.0", "0.000000", "0.0", "0.0"], "spread", "XBT/USD"]
    spread = [1, ["10", "11", LATE, "1", "0.0"], "spread", "XBT/USD"]
    assert normalize("kraken", "book_ticker", empty, spread, at=V1) == [
        BookTicker("XBT/USD", "kraken", UNSET, 11, 10, 1, TIME, LOCAL)
    ]


def v2(channel: str, kind: str, *rows: dict[str, Any]) -> dict[str, Any]:
    return {"channel": channel, "type": kind, "data": [{"symbol": "AAPLx/USD", "timestamp": TIME, **row} for row in rows]}


def test_v2_trades_without_those_from_before_the_subscription() -> None:
    rows = [{"side": side, "price": 10.1, "qty": 2.0, "trade_id": 7} for side in ("buy", "sell")]
    messages = [{"channel": "heartbeat"}, v2("trade", "snapshot", *rows), v2("trade", "update", *rows)]
    assert normalize("kraken", "trade", *messages, at=V2) == [
        Trade("AAPLx/USD", "kraken", "7", 10.1, 2, side, TIME, LOCAL) for side in ("buy", "sell")
    ]


def test_v2_books_and_tickers() -> None:
    levels = {"bids": [{"price": 10, "qty": 1}], "asks": [{"price": 11, "qty": 0}]}
    assert normalize("kraken", "book_change", v2("book", "snapshot", levels), v2("book", "update", levels), at=V2) == [
        BookChange("AAPLx/USD", "kraken", is_snapshot, book((10, 1)), book((11, 0)), TIME, LOCAL) for is_snapshot in (True, False)
    ]
    quote = {"bid": 10, "bid_qty": 1, "ask": 0, "ask_qty": 0}
    tickers = v2("ticker", "update", quote, quote | {"timestamp": "1970-01-01T00:00:00.000000Z"})
    assert normalize("kraken", "book_ticker", tickers, at=V2) == [
        BookTicker("AAPLx/USD", "kraken", UNSET, UNSET, 10, 1, TIME, LOCAL)
    ]


def test_symbols_keep_their_case_and_the_date_says_which_channel_has_the_best_prices() -> None:
    for date, channel in ((V1, "spread"), (V2, "ticker")):
        filters = Normalizer("kraken", ["book_ticker"], parse_date_us(date)).filters(["AAPLx/USD"])
        assert filters == [Filter(channel, ["AAPLx/USD"])]


def test_subscriptions_in_the_language_of_their_date() -> None:
    v1_message = {"event": "subscribe", "pair": ["XBT/USD"], "subscription": {"name": "book", "depth": 1000}}
    v2_message = {"method": "subscribe", "params": {"channel": "book", "symbol": ["BTC/USD"], "depth": 1000}}
    before, since = parse_date_us(V1), parse_date_us(V2)
    assert read_subscription(v1_message, before) == [Filter("book", ["XBT/USD"])]
    assert read_subscription(v2_message, before) is None
    assert read_subscription(v2_message, since) == [Filter("book", ["BTC/USD"])]
    assert read_subscription(v1_message, since) is None
    assert read_subscription({"method": "subscribe", "params": {"channel": "ohlc", "symbol": ["BTC/USD"]}}, since) == []
    assert read_subscription({"method": "subscribe", "params": {"channel": "instrument"}}, since) == [Filter("instrument")]
