"""Deribit: deleted levels, whose liquidation it was, options and futures in one ticker."""

from __future__ import annotations

from typing import Any

import pytest

from tardis_machine.exchanges.deribit import read_subscription
from tardis_machine.filters import Filter
from tardis_machine.messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, Trade
from tardis_machine.pipeline.normalizer import Normalizer
from tests.exchanges.feeding import LOCAL, book, normalize, summary

TIME_MS, TIME = 1709251200050, "2024-03-01T00:00:00.050Z"


def data_of(channel: str, data: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "subscription", "params": {"channel": channel, "data": data}}


@pytest.mark.parametrize(
    ("fields", "is_snapshot"),
    [
        ({"type": "snapshot", "prev_change_id": 4}, True),
        ({"prev_change_id": 0}, True),
        ({}, True),
        ({"prev_change_id": 4}, False),
    ],
)
def test_a_snapshot_says_so_or_follows_no_change(fields: dict[str, Any], is_snapshot: bool) -> None:
    data = {
        "instrument_name": "ETH-PERPETUAL",
        "timestamp": TIME_MS,
        "bids": [["new", 10, 1], ["delete", 9, 5]],
        "asks": [],
        **fields,
    }
    [change] = normalize("deribit", "book_change", data_of("book.ETH-PERPETUAL.raw", data))
    assert change == BookChange("ETH-PERPETUAL", "deribit", is_snapshot, book((10, 1), (9, 0)), [], TIME, LOCAL)


@pytest.mark.parametrize(("liquidated", "side"), [("T", "sell"), ("M", "buy")])
def test_a_liquidation_is_a_trade_that_says_whose_it_was(liquidated: str, side: Any) -> None:
    trade = {
        "instrument_name": "ETH-PERPETUAL",
        "trade_id": "1",
        "price": 10,
        "amount": 2,
        "direction": "sell",
        "timestamp": TIME_MS,
    }
    messages = [data_of("trades.ETH-PERPETUAL.raw", [trade, {**trade, "liquidation": liquidated}])]
    assert normalize("deribit", "liquidation", *messages) == [
        Liquidation("ETH-PERPETUAL", "deribit", "1", 10, 2, side, TIME, LOCAL)
    ]


def ticker(name: str, **fields: Any) -> dict[str, Any]:
    return data_of(f"ticker.{name}.raw", {"instrument_name": name, "timestamp": TIME_MS, "mark_price": 10, **fields})


def test_a_ticker_is_of_a_future_or_an_option_and_tells_of_changes_only() -> None:
    future = ticker("ETH-PERPETUAL", last_price=9, open_interest=8, current_funding=0.1, index_price=7)
    quotes = {"best_bid_price": 1, "best_bid_amount": 2, "best_ask_price": 0, "best_ask_amount": 4}
    greeks = {"delta": -0.5, "gamma": 0.4, "vega": 0.3, "theta": 0.2, "rho": 0.1}
    prices = {"last_price": 5, "open_interest": 6, "underlying_price": 7, "underlying_index": "I", "bid_iv": 50, "ask_iv": 70}
    name = "MATIC_USDC-9MAR24-1d02-P"
    messages = [future, future, ticker(name, greeks=greeks, mark_iv=60, **quotes, **prices)]
    assert normalize("deribit", "derivative_ticker", *messages) == [
        DerivativeTicker("ETH-PERPETUAL", "deribit", 9, 8, 0.1, UNSET, UNSET, 7, 10, TIME, LOCAL)
    ]
    u, head = UNSET, (name.upper(), "deribit", "put", 1.02, "2024-03-09T08:00:00.000Z")
    assert normalize("deribit", "option_summary", *messages) == [
        summary(*head, 1, 2, 50, u, 4, 70, 5, 6, 10, 60, -0.5, 0.4, 0.3, 0.2, 0.1, 7, "I", TIME, LOCAL)
    ]
    assert normalize("deribit", "book_ticker", *messages)[-1] == BookTicker(name.upper(), "deribit", 4, u, 1, 2, TIME, LOCAL)


def test_trades() -> None:
    row = {
        "instrument_name": "ETH-PERPETUAL",
        "trade_id": "1",
        "price": 10.5,
        "amount": 2.0,
        "direction": "sell",
        "timestamp": TIME_MS,
    }
    answer = {"jsonrpc": "2.0", "id": 1, "result": ["trades.ETH-PERPETUAL.raw"]}
    assert normalize("deribit", "trade", answer, data_of("trades.ETH-PERPETUAL.raw", [row])) == [
        Trade("ETH-PERPETUAL", "deribit", "1", 10.5, 2, "sell", TIME, LOCAL)
    ]


def test_the_decimal_point_of_a_strike_is_asked_for_as_a_small_d() -> None:
    [item] = Normalizer("deribit", ["trade"]).filters(["eth-perpetual", "MATIC_USDC-9MAR24-1D02-C"])
    assert item == Filter("trades", ["ETH-PERPETUAL", "MATIC_USDC-9MAR24-1d02-C"])


def test_subscriptions() -> None:
    channels = ["book.ETH-PERPETUAL.raw", "trades.ETH-PERPETUAL.raw", "platform_state", "markprice.options.btc_usd"]
    assert read_subscription({"method": "public/subscribe", "params": {"channels": channels}}, 0) == [
        Filter("book", ["ETH-PERPETUAL"]),
        Filter("trades", ["ETH-PERPETUAL"]),
        Filter("platform_state"),
        Filter("markprice.options", ["btc_usd"]),
    ]
    assert read_subscription({"method": "public/test"}, 0) is None
