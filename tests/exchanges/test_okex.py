"""OKX: two generations by date, the first liquidations, indexes in USDC, options put together from five channels."""

from __future__ import annotations

from typing import Any

import pytest

from tardis_machine.dates import parse_date_us
from tardis_machine.errors import NormalizeError, OptionsError
from tardis_machine.exchanges import EXCHANGES
from tardis_machine.filters import Filter
from tardis_machine.messages import UNSET, BookChange, BookTicker, DerivativeTicker, Disconnect, Liquidation, Trade, to_json
from tardis_machine.pipeline.normalizer import Normalizer
from tests.exchanges.feeding import LOCAL, book, normalize, summary

TIME_MS, TIME = "1709251200050", "2024-03-01T00:00:00.050Z"
LEVELS = {"bids": [["10", "1", "0", "1"]], "asks": [["11", "0", "0", "0"]]}


def v3(table: str, *data: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"table": table, "data": list(data), **fields}


def v5(channel: str, *data: dict[str, Any], of: str = "ETH-USDT", **fields: Any) -> dict[str, Any]:
    return {"arg": {"channel": channel, "instId": of}, "data": [{"ts": TIME_MS, **row} for row in data], **fields}


@pytest.mark.parametrize(
    ("date", "channels"),
    [
        ("2020-04-09T23:59:59.999Z", ["spot/depth_l2_tbt", "spot/depth"]),
        ("2020-04-10", ["spot/depth_l2_tbt"]),
        ("2021-12-23", ["books-l2-tbt"]),
        ("2023-02-25", ["books"]),
        ("2023-03-09", ["books-l2-tbt"]),
        ("2026-05-21", ["books"]),
    ],
)
def test_the_date_says_which_book_is_read(date: str, channels: list[str]) -> None:
    filters = Normalizer("okex", ["book_change"], parse_date_us(date)).filters(["eth-usdt"])
    assert filters == [Filter(channel, ["ETH-USDT"]) for channel in channels]
    old = {"instrument_id": "ETH-USDT", "timestamp": TIME, **LEVELS}
    recorded = {name: v3(name, old) for name in ("spot/depth", "spot/depth_l2_tbt")} | {
        name: v5(name, LEVELS) for name in ("books", "books-l2-tbt")
    }
    read = [name for name, message in recorded.items() if normalize("okex", "book_change", message, at=date)]
    assert read == channels[-1:]


def test_changes_that_nobody_reads_are_passed_over_but_for_their_time() -> None:
    data = {"instrument_id": "ETH-USDT", "timestamp": TIME, **LEVELS}
    clocks = [f"2020-02-01T00:00:0{second}.1234567Z" for second in range(5)]
    tables = ["spot/depth_l2_tbt", "spot/depth", "spot/depth_l2_tbt", "spot/depth", "spot/depth_l2_tbt"]
    lines = [f"{clock} ".encode() + to_json(v3(table, data)) for clock, table in zip(clocks, tables, strict=True)]
    normalizer = Normalizer("okex", ["trade", "book_change"], parse_date_us("2020-02-01"), with_disconnects=True)
    changes = normalizer.feed_lines(lines)
    assert [change.local_timestamp for change in changes] == [clocks[at][:26] + "Z" for at in (1, 3)]
    # What is cut off is parsed where it is read, and only there.
    assert normalizer.feed_lines([lines[0][:60]]) == []
    assert normalizer.disconnect() == [Disconnect("okex", clocks[0][:26] + "Z")]
    with pytest.raises(NormalizeError, match=clocks[0]):
        Normalizer("okex", ["book_change"], parse_date_us("2020-04-10")).feed_lines([lines[0][:60]])
    # With a lost connection among them all are looked at.
    assert len(normalizer.feed_lines([*lines, b"", *lines])) == 5


def test_an_update_without_levels_or_a_time_is_none() -> None:
    empty: dict[str, Any] = {"bids": [], "asks": []}
    updates = [v5("books", empty, LEVELS, LEVELS | {"ts": "0"}, action="update"), v5("books", empty, action="snapshot")]
    assert normalize("okex", "book_change", *updates) == [
        BookChange("ETH-USDT", "okex", False, book((10, 1)), book((11, 0)), TIME, LOCAL),
        BookChange("ETH-USDT", "okex", True, [], [], TIME, LOCAL),
    ]


def test_trades_of_both_generations() -> None:
    old = {"instrument_id": "ETH-USD-SWAP", "price": "10.10", "side": "sell", "timestamp": TIME}
    messages = [v3("swap/trade", {**old, "trade_id": "7", "qty": "2"}, {**old, "trade_id": 8, "size": 3})]
    assert normalize("okex-swap", "trade", *messages, at="2020-01-01") == [
        Trade("ETH-USD-SWAP", "okex-swap", "7", 10.1, 2, "sell", TIME, LOCAL),
        Trade("ETH-USD-SWAP", "okex-swap", UNSET, 10.1, 3, "sell", TIME, LOCAL),
    ]
    new = {"instId": "ETH-USD-SWAP", "tradeId": "9", "px": "10.10", "sz": "4", "side": "buy"}
    answer = {"event": "subscribe", "arg": {"channel": "trades-all", "instId": "ETH-USD-SWAP"}}
    expected = Trade("ETH-USD-SWAP", "okex-swap", "9", 10.1, 4, "buy", TIME, LOCAL)
    assert normalize("okex-swap", "trade", answer, v5("trades-all", new), v5("trades", new)) == [expected] * 2
    asked = [Normalizer("okex-swap", ["trade"], parse_date_us(date)).filters() for date in ("2023-10-18", "2023-10-19")]
    assert asked == [[Filter("trades")], [Filter("trades-all")]]


def test_a_ticker_before_v5_is_told_of_changes_only() -> None:
    name, later, funding = "ETH-USD-SWAP", "2024-03-01T00:00:00.060Z", "2024-03-01T08:00:00.000Z"
    rates = {"funding_rate": "0.0001", "funding_time": funding, "estimated_rate": "0.0002"}
    quotes = {"best_ask": "11", "best_ask_size": "2", "best_bid": "10", "best_bid_size": "0"}
    messages = [
        v3("swap/funding_rate", {"instrument_id": name, **rates}),  # which has no time of its own
        v3("swap/mark_price", {"instrument_id": name, "mark_price": "9", "timestamp": TIME}),
        v3("swap/ticker", {"instrument_id": name, "last": "8", "open_interest": "0", "timestamp": later, **quotes}),
        v3("swap/ticker", {"instrument_id": name, "last": "8", "open_interest": "7", "timestamp": later, **quotes}),
        v3("swap/ticker", {"instrument_id": name, "last": "8", "open_interest": "7", "timestamp": later, **quotes}),
    ]
    u, known = UNSET, (0.0001, funding, 0.0002, UNSET)
    assert normalize("okex-swap", "derivative_ticker", *messages, at="2020-06-01") == [
        DerivativeTicker(name, "okex-swap", u, u, *known, u, LOCAL, LOCAL),
        DerivativeTicker(name, "okex-swap", u, u, *known, 9, LOCAL, LOCAL),
        DerivativeTicker(name, "okex-swap", 8, u, *known, 9, LOCAL, LOCAL),
        DerivativeTicker(name, "okex-swap", 8, 7, *known, 9, LOCAL, LOCAL),
    ]
    best = BookTicker(name, "okex-swap", 2, 11, 10, u, later, LOCAL)
    assert normalize("okex-swap", "book_ticker", *messages, at="2020-06-01") == [best] * 3
    futures = v3("futures/mark_price", {"instrument_id": name, "mark_price": "9", "timestamp": TIME})
    assert normalize("okex-futures", "derivative_ticker", futures, at="2020-06-01") == [
        DerivativeTicker(name, "okex-futures", u, u, u, u, u, u, 9, TIME, LOCAL)
    ]


def test_a_liquidation_before_v5_says_what_was_closed() -> None:
    rows = [{"instrument_id": "X", "price": "10", "size": "2", "type": kind, "created_at": TIME} for kind in ("3", "4")]
    assert normalize("okex-swap", "liquidation", v3("swap/liquidation", *rows), at="2020-06-01") == [
        Liquidation("X", "okex-swap", UNSET, 10, 2, "sell", TIME, LOCAL),
        Liquidation("X", "okex-swap", UNSET, 10, 2, "buy", TIME, LOCAL),
    ]


def test_a_book_before_v5_starts_with_a_partial() -> None:
    rows = [
        {"instrument_id": "X", "timestamp": time, **levels} for time, levels in ((TIME, LEVELS), ("1970-01-01T00:00:00Z", LEVELS))
    ]
    empty = {"instrument_id": "X", "timestamp": TIME, "bids": [], "asks": []}
    messages = [v3("option/depth_l2_tbt", *rows, action="partial"), v3("option/depth_l2_tbt", empty, action="update")]
    assert normalize("okex-options", "book_change", *messages, at="2020-06-01") == [
        BookChange("X", "okex-options", True, book((10, 1)), book((11, 0)), TIME, LOCAL)
    ]


def test_the_first_liquidation_orders_of_a_connection_are_old() -> None:
    def orders(price: str) -> dict[str, Any]:
        detail = {"bkPx": price, "sz": "2", "side": "buy", "ts": TIME_MS}
        return {
            "arg": {"channel": "liquidation-orders", "instType": "SWAP"},
            "data": [{"instId": "ETH-USD-SWAP", "details": [detail]}],
        }

    fetched = v5("liquidations", {"bkPx": "9", "sz": "1", "side": "sell"}, of="ETH-USD-SWAP")
    found = normalize("okex-swap", "liquidation", fetched, orders("1"), orders("2"), None, orders("3"), orders("4"))
    assert found == [
        Liquidation("ETH-USD-SWAP", "okex-swap", UNSET, 9, 1, "sell", TIME, LOCAL),
        Liquidation("ETH-USD-SWAP", "okex-swap", UNSET, 2, 2, "buy", TIME, LOCAL),
        Liquidation("ETH-USD-SWAP", "okex-swap", UNSET, 4, 2, "buy", TIME, LOCAL),
    ]


@pytest.mark.parametrize(("date", "index"), [("2023-04-10T08:39:59Z", "ETH-USD"), ("2023-04-10T08:40:00Z", "ETH-USDC")])
def test_contracts_in_usdc_follow_the_index_of_their_date(date: str, index: str) -> None:
    filters = Normalizer("okex-swap", ["derivative_ticker"], parse_date_us(date)).filters(["ETH-USDC-SWAP"])
    assert Filter("index-tickers", [index]) in filters
    prices = [v5("index-tickers", {"instId": name, "idxPx": price}) for name, price in (("ETH-USD", "5"), ("ETH-USDC", "6"))]
    mark = v5("mark-price", {"instId": "ETH-USDC-SWAP", "markPx": "7"})
    [ticker] = normalize("okex-swap", "derivative_ticker", *prices, mark, at=date)
    assert ticker.index_price == (5 if index == "ETH-USD" else 6)


def test_a_ticker_is_told_of_changes_only_and_of_prices_above_0() -> None:
    def row(**fields: str) -> dict[str, str]:
        return {"instId": "ETH-USD_UM_XPERP-310404", **fields}

    tickers = normalize(
        "okex-futures",
        "derivative_ticker",
        v5("index-tickers", {"instId": "ETH-USD", "idxPx": "5"}, {"instId": "ETH-USD", "idxPx": "0"}),
        v5("tickers", row(last="10")),
        v5("tickers", row(last="10"), row(last="0"), row(last="")),
        v5("funding-rate", row(fundingRate="-0.0001", fundingTime=TIME_MS, nextFundingRate="", ts="1709251200060")),
        v5("open-interest", row(oi="7")),
        v5("funding-rate", row(nextFundingRate="0.0002")),
    )
    name, unset, later = "ETH-USD_UM_XPERP-310404", UNSET, "2024-03-01T00:00:00.060Z"
    assert tickers == [
        DerivativeTicker(name, "okex-futures", 10, unset, unset, unset, unset, 5, unset, TIME, LOCAL),
        DerivativeTicker(name, "okex-futures", 10, unset, -0.0001, TIME, unset, 5, unset, later, LOCAL),
        DerivativeTicker(name, "okex-futures", 10, 7, -0.0001, TIME, unset, 5, unset, later, LOCAL),
        DerivativeTicker(name, "okex-futures", 10, 7, -0.0001, TIME, 0.0002, 5, unset, later, LOCAL),
    ]


EXPIRATION = "2026-06-18T08:00:00.000Z"


def test_a_summary_of_an_option_is_put_together_from_five_channels() -> None:
    name = "SOL-USD_UM-260618-67.5-P"
    greeks = {"delta": "-0.4", "gamma": "0.3", "vega": "0.2", "theta": "0.1"}
    announced = v5(
        "opt-summary", {"instId": name, "uly": "SOL-USD", "bidVol": "0.7", "askVol": "0.9", "markVol": "0.8", **greeks}
    )
    before, option = normalize(
        "okex-options",
        "option_summary",
        announced,
        v5("index-tickers", {"instId": "SOL-USD", "idxPx": "70"}),
        v5("tickers", {"instId": name, "bidPx": "", "bidSz": "0", "askPx": "2", "askSz": "3", "last": "1"}),
        v5("open-interest", {"instId": name, "oi": "4"}, {"instId": name, "oi": ""}),
        v5("mark-price", {"instId": name, "markPx": "1.5"}),
        announced,
    )
    u = UNSET
    head = (name, "okex-options", "put", 67.5, EXPIRATION)
    tail = ("SOL-USD", TIME, LOCAL)
    assert before == summary(*head, u, u, 0.7, u, u, 0.9, u, u, u, 0.8, -0.4, 0.3, 0.2, 0.1, u, u, *tail)
    assert option == summary(*head, u, u, 0.7, 2, 3, 0.9, 1, 4, 1.5, 0.8, -0.4, 0.3, 0.2, 0.1, u, 70, *tail)


def test_a_summary_of_an_option_before_v5_lacks_the_index_alone() -> None:
    row = {"instrument_id": "SOL-USD-260618-67-C", "underlying": "SOL-USD", "timestamp": TIME}
    fields = (
        "best_bid",
        "best_bid_size",
        "bid_vol",
        "best_ask",
        "best_ask_size",
        "ask_vol",
        "last",
        "open_interest",
        "mark_price",
    )
    values = dict(zip((*fields, "mark_vol", "delta", "gamma", "vega", "theta"), map(str, range(14)), strict=True))
    index = v3("index/ticker", {"instrument_id": "SOL-USD", "last": "70"}, {"instrument_id": "SOL-USD", "last": "0"})
    [option] = normalize("okex-options", "option_summary", index, v3("option/summary", row | values), at="2020-06-01")
    head = ("SOL-USD-260618-67-C", "okex-options", "call", 67, EXPIRATION)
    numbers = (UNSET, *range(1, 14), UNSET)
    assert option == summary(*head, *numbers, 70, "SOL-USD", TIME, LOCAL)
    filters = Normalizer("okex-options", ["option_summary"], parse_date_us("2020-06-01")).filters(["sol-usd-260618-67-c"])
    assert filters == [Filter("option/summary", ["SOL-USD-260618-67-C"]), Filter("index/ticker", ["SOL-USD"])]


def test_summaries_are_asked_for_by_family_and_indexes_without_their_margin() -> None:
    normalizer = Normalizer("okex-options", ["option_summary"])
    asked = {item.channel: item.symbols for item in normalizer.filters(["sol-usd_um-260618-67-c", "SOL-USD_UM-260618-67-P"])}
    assert asked["opt-summary"] == ["SOL-USD_UM"]
    assert asked["index-tickers"] == ["SOL-USD"]
    with pytest.raises(OptionsError, match=r"an instrument of OKX such as .*, got 'SOL'"):
        normalizer.filters(["SOL"])


def test_an_empty_side_has_no_best_price() -> None:
    best = v5("bbo-tbt", LEVELS | {"asks": []}, {"bids": [], "asks": [["11", "2"]]})
    assert normalize("okex", "book_ticker", best) == [
        BookTicker("ETH-USDT", "okex", UNSET, UNSET, 10, 1, TIME, LOCAL),
        BookTicker("ETH-USDT", "okex", 2, 11, UNSET, UNSET, TIME, LOCAL),
    ]
    ticker = v5("tickers", {"instId": "ETH-USDT", "bidPx": "10", "bidSz": "1", "askPx": "11", "askSz": ""})
    assert normalize("okex", "book_ticker", ticker, at="2022-01-01") == [
        BookTicker("ETH-USDT", "okex", UNSET, 11, 10, 1, TIME, LOCAL)
    ]


def test_spreads_have_trades_best_prices_and_books_that_are_whole_each_time() -> None:
    def message(channel: str, *rows: dict[str, Any]) -> dict[str, Any]:
        return {"arg": {"channel": channel, "sprdId": "A_B"}, "data": [{"ts": TIME_MS, **row} for row in rows]}

    books: list[dict[str, Any]] = [LEVELS, LEVELS | {"ts": "0"}]
    assert normalize("okex-spreads", "book_change", message("sprd-books5", *books)) == [
        BookChange("A_B", "okex-spreads", True, book((10, 1)), book((11, 0)), TIME, LOCAL)
    ]
    assert normalize("okex-spreads", "book_ticker", message("sprd-bbo-tbt", *books)) == [
        BookTicker("A_B", "okex-spreads", 0, 11, 10, 1, TIME, LOCAL)
    ]
    trade = {"sprdId": "A_B", "tradeId": "7", "px": "-1.5", "sz": "2", "side": "sell"}
    assert normalize("okex-spreads", "trade", message("sprd-public-trades", trade)) == [
        Trade("A_B", "okex-spreads", "7", -1.5, 2, "sell", TIME, LOCAL)
    ]


def test_subscriptions_in_the_language_of_either_generation() -> None:
    args = [
        "option/summary:ETH-USD",
        "tickers",
        {"channel": "trades", "instId": "ETH-USD-240628-3000-C"},
        {"channel": "opt-summary", "instFamily": "ETH-USD_UM"},
        {"channel": "opt-summary", "uly": "ETH-USD"},
        {"channel": "estimated-price", "instType": "OPTION", "instFamily": "ETH-USD"},
        {"channel": "candle1D", "instId": "ETH-USD"},  # not recorded
    ]
    assert EXCHANGES["okex-options"].subscriptions({"op": "subscribe", "args": args}, 0) == [
        Filter("option/summary", ["ETH-USD"]),
        Filter("tickers"),
        Filter("trades", ["ETH-USD-240628-3000-C"]),
        Filter("opt-summary", ["ETH-USD_UM"]),
        Filter("opt-summary", ["ETH-USD"]),
        Filter("estimated-price"),
    ]
    liquidations = {"op": "subscribe", "args": [{"channel": "liquidation-orders", "instType": "SWAP"}]}
    assert EXCHANGES["okex-swap"].subscriptions(liquidations, 0) == [Filter("liquidation-orders")]
    spreads = {"op": "subscribe", "args": [{"channel": "sprd-books5", "sprdId": "A_B"}]}
    assert EXCHANGES["okex-spreads"].subscriptions(spreads, 0) == [Filter("sprd-books5", ["A_B"])]
    assert EXCHANGES["okex-swap"].subscriptions({"op": "unsubscribe", "args": []}, 0) is None
