"""Coinbase: the maker's side, times of the year 1, amounts that can't be."""

from __future__ import annotations

from typing import Any

from tardis_machine.exchanges.coinbase import read_subscription
from tardis_machine.filters import Filter
from tardis_machine.messages import UNSET, BookChange, BookTicker, Trade
from tests.exchanges.feeding import LOCAL, book, normalize

TIME, YEAR_ONE = "2024-03-01T00:00:00.100007Z", "0001-01-01T00:00:00.000000Z"


def update(time: str, price: str = "10") -> dict[str, Any]:
    return {"type": "l2update", "product_id": "ETH-USD", "changes": [["buy", price, "1"], ["sell", "11", "0"]], "time": time}


def test_the_taker_is_on_the_other_side() -> None:
    match = {"type": "match", "product_id": "ETH-USD", "trade_id": 7, "price": "10.10", "size": "2", "side": "sell", "time": TIME}
    messages = [{**match, "type": "last_match", "trade_id": 6}, match, {**match, "trade_id": 8, "side": "buy"}]
    assert normalize("coinbase", "trade", *messages) == [
        Trade("ETH-USD", "coinbase", "7", 10.1, 2, "buy", TIME, LOCAL),
        Trade("ETH-USD", "coinbase", "8", 10.1, 2, "sell", TIME, LOCAL),
    ]


def test_a_time_of_the_year_1_is_the_last_one_that_made_sense() -> None:
    changes = normalize("coinbase", "book_change", update(YEAR_ONE), update(TIME), update(YEAR_ONE, "9"))
    assert changes == [
        BookChange("ETH-USD", "coinbase", False, book((10, 1)), book((11, 0)), TIME, LOCAL),
        BookChange("ETH-USD", "coinbase", False, book((9, 1)), book((11, 0)), TIME, LOCAL),
    ]


def test_a_snapshot_without_a_time_is_of_now_and_has_no_negative_amounts() -> None:
    snapshot = {"type": "snapshot", "product_id": "ETH-USD", "bids": [["10", "1"], ["9", "-0.5"]], "asks": []}
    expected = [BookChange("ETH-USD", "coinbase", True, book((10, 1)), [], LOCAL, LOCAL)]
    assert normalize("coinbase", "book_change", snapshot) == expected
    assert normalize("coinbase", "book_change", {**snapshot, "time": YEAR_ONE}) == expected
    [timed] = normalize("coinbase", "book_change", {**snapshot, "time": TIME})
    assert timed.timestamp == TIME


def test_best_prices() -> None:
    ticker = {"type": "ticker", "product_id": "ETH-USD", "best_bid": "10", "best_bid_size": "1", "best_ask": "11"}
    messages = [{**ticker, "time": TIME}, {**ticker, "time": YEAR_ONE}, ticker | {"best_ask_size": "2"}]
    assert normalize("coinbase", "book_ticker", *messages) == [
        BookTicker("ETH-USD", "coinbase", UNSET, 11, 10, 1, TIME, LOCAL),
        BookTicker("ETH-USD", "coinbase", UNSET, 11, 10, 1, LOCAL, LOCAL),
        BookTicker("ETH-USD", "coinbase", 2, 11, 10, 1, LOCAL, LOCAL),
    ]


def test_subscriptions_are_to_the_channels_that_were_recorded() -> None:
    message = {
        "type": "subscribe",
        "product_ids": ["ETH-USD"],
        "channels": ["heartbeat", "level2", {"name": "ticker", "product_ids": ["BTC-USD"]}],
    }
    expected = [Filter("snapshot", ["ETH-USD"]), Filter("l2update", ["ETH-USD"]), Filter("ticker", ["BTC-USD"])]
    assert read_subscription(message, 0) == expected
    assert read_subscription({"type": "unsubscribe"}, 0) is None
