"""Bybit: three APIs before one, the position's side, a book of one level, contracts without funding."""

from __future__ import annotations

from typing import Any

import pytest

from tardis_machine.dates import parse_date_us
from tardis_machine.exchanges import EXCHANGES
from tardis_machine.filters import Filter
from tardis_machine.messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, Trade
from tests.exchanges.feeding import LOCAL, book, normalize, summary

TIME_MS, TIME = 1709251200050, "2024-03-01T00:00:00.050Z"
TIME_US, TIME_6 = "1709251200050007", "2024-03-01T00:00:00.050007Z"
BEFORE = "2022-06-01"


def topic(name: str, data: Any, kind: str = "delta", **fields: Any) -> dict[str, Any]:
    return {"topic": name, "type": kind, "ts": TIME_MS, "data": data, **fields}


def test_levels_of_contracts_before_v5() -> None:
    def level(side: str, price: str, **size: float) -> dict[str, Any]:
        return {"side": side, "price": price, **size}

    delta = {"delete": [level("Buy", "10")], "update": [level("Sell", "11", size=2)], "insert": [level("Buy", "9.50", size=3)]}
    messages = [
        topic("orderBookL2_25.ETHUSD", [level("Buy", "10", size=1)], "snapshot", timestamp_e6=int(TIME_US)),
        topic("orderBookL2_25.ETHPERP", {"orderBook": [level("Sell", "12", size=4)]}, "snapshot", timestampE6=TIME_US),
        topic("orderBookL2_25.ETHUSDT", {"order_book": [level("Sell", "12", size=4)]}, "snapshot", timestamp_e6=TIME_US),
        topic("orderBookL2_25.ETHUSD", delta, timestamp_e6=TIME_US),
    ]
    assert normalize("bybit", "book_change", *messages, at=BEFORE) == [
        BookChange("ETHUSD", "bybit", True, book((10, 1)), [], TIME_6, LOCAL),
        BookChange("ETHPERP", "bybit", True, [], book((12, 4)), TIME_6, LOCAL),
        BookChange("ETHUSDT", "bybit", True, [], book((12, 4)), TIME_6, LOCAL),
        BookChange("ETHUSD", "bybit", False, book((10, 0), (9.5, 3)), book((11, 2)), TIME_6, LOCAL),
    ]


def test_trades_of_contracts_before_v5_have_their_time_in_one_of_three_fields() -> None:
    row: dict[str, Any] = {"symbol": "ETHUSD", "price": "10.10", "size": 2, "timestamp": "2024-03-01T00:00:00.000Z"}
    times: list[Any] = [
        {"trade_time_ms": str(TIME_MS), "trade_id": "a"},
        {"tradeTimeMs": TIME_MS, "tradeId": "b"},
        {"trade_id": "c"},
    ]
    sides = [{"side": "Buy"}, {"side": "Sell"}, {}]
    rows = [row | time | side for time, side in zip(times, sides, strict=True)]
    assert normalize("bybit", "trade", topic("trade.ETHUSD", rows), at=BEFORE) == [
        Trade("ETHUSD", "bybit", "a", 10.1, 2, "buy", TIME, LOCAL),
        Trade("ETHUSD", "bybit", "b", 10.1, 2, "sell", TIME, LOCAL),
        Trade("ETHUSD", "bybit", "c", 10.1, 2, "unknown", "2024-03-01T00:00:00.000Z", LOCAL),
    ]


def test_fields_in_all_spellings_and_a_funding_time_that_is_none() -> None:
    snakes = {"last_price": "1", "index_price": "2", "mark_price": "3", "open_interest": 4, "funding_rate_e6": -100}
    scaled = {"last_price_e4": "10000", "index_price_e4": 20000, "mark_price_e4": "30000", "open_interest_e8": 400000000}
    camels = {"lastPrice": "1", "indexPrice": "2", "markPrice": "3", "openInterestE8": "400000000", "fundingRateE6": "-100"}
    scaled_camels = {"lastPriceE4": "10000", "indexPriceE4": "20000", "markPriceE4": 30000, "openInterestE8": "400000000"}
    funded = {"next_funding_time": "1970-01-01T00:00:00Z", "predicted_funding_rate_e6": "200"}
    rows = [snakes | funded, scaled | {"funding_rate_e6": "-100"} | funded]
    rows += [row | {"fundingRateE6": -100, "predictedFundingRateE6": 200} for row in (camels, scaled_camels)]
    expected = DerivativeTicker("X", "bybit", 1, 4, -0.0001, UNSET, 0.0002, 2, 3, TIME_6, LOCAL)
    for row in rows:
        message = topic("instrument_info.100ms.X", {"update": [{"symbol": "X", **row}]}, timestamp_e6=TIME_US)
        assert normalize("bybit", "derivative_ticker", message, message, at=BEFORE) == [expected]
    for name in ("next_funding_time", "nextFundingTime"):
        funding = {"symbol": "X", "lastPrice": "1", name: "2024-03-01T08:00:00Z", "updated_at": TIME}
        [ticker] = normalize("bybit", "derivative_ticker", topic("instrument_info.100ms.X", funding), at=BEFORE)
        assert (ticker.funding_timestamp, ticker.timestamp) == ("2024-03-01T08:00:00.000Z", TIME)


def test_an_empty_field_says_nothing_new() -> None:
    full = {"lastPrice": "1", "indexPrice": "2", "markPrice": "3", "openInterest": "4", "fundingRate": "0.0001"}
    rows = [full | {"nextFundingTime": str(TIME_MS)}, dict.fromkeys((*full, "nextFundingTime"), ""), full]
    messages = [topic("tickers.ETHUSDT", {"symbol": "ETHUSDT", **row}) for row in rows]
    assert normalize("bybit", "derivative_ticker", *messages) == [
        DerivativeTicker("ETHUSDT", "bybit", 1, 4, 0.0001, TIME, UNSET, 2, 3, TIME, LOCAL)
    ]


@pytest.mark.parametrize(
    ("date", "message", "liquidation_id"),
    [
        (
            BEFORE,
            topic(
                "liquidation.X", [{"id": 7, "symbol": "X", "side": "Buy", "price": 10, "qty": 2, "time": TIME_MS}], generated=True
            ),
            "7",
        ),
        (BEFORE, topic("liquidation.X", {"symbol": "X", "side": "Buy", "price": "10", "qty": "2", "time": TIME_MS}), UNSET),
        ("2024-03-01", topic("liquidation.X", {"symbol": "X", "side": "Buy", "price": "10", "size": "2"}), UNSET),
        ("2025-03-01", topic("allLiquidation.X", [{"s": "X", "S": "Buy", "p": "10", "v": "2", "T": TIME_MS}]), UNSET),
    ],
)
def test_a_liquidated_long_is_a_sale(date: str, message: Any, liquidation_id: Any) -> None:
    assert normalize("bybit", "liquidation", message, at=date) == [
        Liquidation("X", "bybit", liquidation_id, 10, 2, "sell", TIME, LOCAL)
    ]


def test_the_best_prices_start_with_a_snapshot_and_an_unnamed_side_stays() -> None:
    def best(bids: list[list[str]], asks: list[list[str]], kind: str = "delta") -> dict[str, Any]:
        return topic("orderbook.1.ETHUSDT", {"s": "ETHUSDT", "b": bids, "a": asks}, kind)

    tickers = normalize(
        "bybit",
        "book_ticker",
        best([["1", "1"]], []),  # from before the snapshot
        best([["10", "1"]], [], "snapshot"),
        best([], [["11", "0"], ["12", "2"]]),
        best([["10", "0"]], []),
    )
    assert tickers == [
        BookTicker("ETHUSDT", "bybit", UNSET, UNSET, 10, 1, TIME, LOCAL),
        BookTicker("ETHUSDT", "bybit", 2, 12, 10, 1, TIME, LOCAL),
        BookTicker("ETHUSDT", "bybit", 2, 12, 10, 1, TIME, LOCAL),
    ]


def test_spot_had_an_api_of_its_own() -> None:
    def message(name: str, **data: Any) -> dict[str, Any]:
        return {"topic": name, "params": {"symbol": "ETHUSDT", "binary": "false"}, "data": data}

    messages = [
        {"topic": "trade", "event": "sub", "params": {"symbol": "ETHUSDT"}, "msg": "Success"},
        message("trade", v="7", t=TIME_MS, p="10.10", q="2", m=True),
        message("depth", s="ETHUSDT", t=TIME_MS, b=[["10", "1"]], a=[["11", "2"]]),
        message("bookTicker", bidPrice="10", bidQty="1", askPrice="11", time=TIME_MS),
    ]
    market = ("ETHUSDT", "bybit-spot")
    assert normalize("bybit-spot", "trade", *messages, at=BEFORE) == [Trade(*market, "7", 10.1, 2, "buy", TIME, LOCAL)]
    assert normalize("bybit-spot", "book_change", *messages, at=BEFORE) == [
        BookChange(*market, True, book((10, 1)), book((11, 2)), TIME, LOCAL)
    ]
    assert normalize("bybit-spot", "book_ticker", *messages, at=BEFORE) == [BookTicker(*market, UNSET, 11, 10, 1, TIME, LOCAL)]


def test_trades_since_v5_are_alike_on_all_markets() -> None:
    rows = [{"s": "ETHUSDT", "i": "8", "p": "10", "v": "1", "S": side, "T": TIME_MS} for side in ("Buy", "Sell", "None")]
    for exchange in ("bybit", "bybit-spot", "bybit-options"):
        assert normalize(exchange, "trade", topic("publicTrade.ETHUSDT", rows)) == [
            Trade("ETHUSDT", exchange, "8", 10, 1, side, TIME, LOCAL) for side in ("buy", "sell", "unknown")
        ]


def test_options() -> None:
    fields = ("bidPrice", "bidSize", "bidIv", "askPrice", "askSize", "askIv", "lastPrice", "openInterest", "markPrice")
    names = (*fields, "markPriceIv", "delta", "gamma", "vega", "theta", "underlyingPrice")
    for name, kind in (("DOGE-5AUG25-0.15-P-USDT", "put"), ("DOGE-5AUG25-0.15-C-USDT", "call")):
        data = {"symbol": name, **dict(zip(names, map(str, range(15)), strict=True))}
        [option] = normalize("bybit-options", "option_summary", topic(f"tickers.{name}", data))
        values = (name, "bybit-options", kind, 0.15, "2025-08-05T08:00:00.000Z", UNSET, *range(1, 14), UNSET)
        assert option == summary(*values, 14, "", TIME, LOCAL)
    [change] = normalize("bybit-options", "book_change", topic("orderbook.25.X", {"s": "X", "b": [], "a": [["2", "0"]]}))
    assert change == BookChange("X", "bybit-options", False, [], book((2, 0)), TIME, LOCAL)


def test_subscriptions() -> None:
    def asked(exchange: str, message: Any, date: str = "2024-03-01") -> Any:
        return EXCHANGES[exchange].subscriptions(message, parse_date_us(date))

    topics = ["orderbook.50.ETHUSDT", "orderBook_200.100ms.ETHUSD|BTCUSD", "trade.*", "insurance", "kline.5.ETHUSDT"]
    assert asked("bybit", {"op": "subscribe", "args": topics}) == [
        Filter("orderbook.50", ["ETHUSDT"]),
        Filter("orderBook_200", ["ETHUSD", "BTCUSD"]),
        Filter("trade"),
        Filter("insurance"),
    ]
    strike = {"op": "subscribe", "args": ["orderbook.100.DOGE-5AUG25-0.15-P-USDT"]}
    assert asked("bybit-options", strike) == [Filter("orderbook.100", ["DOGE-5AUG25-0.15-P-USDT"])]
    spot = {"topic": "depth", "event": "sub", "params": {"symbol": "ETHUSDT,BTCUSDT"}}
    assert asked("bybit-spot", spot, BEFORE) == [Filter("depth", ["ETHUSDT", "BTCUSDT"])]
    assert asked("bybit-spot", {**spot, "topic": "kline_1m"}, BEFORE) == []
    assert asked("bybit-spot", {"op": "subscribe", "args": ["tickers.ETHUSDT"]}, BEFORE) is None
    assert asked("bybit-spot", {"op": "subscribe", "args": ["tickers.ETHUSDT"]}) == [Filter("tickers", ["ETHUSDT"])]
    assert asked("bybit", {"op": "ping"}) is None
