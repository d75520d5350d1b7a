"""Binance: updates joined to their snapshot, off-book trades, funding that is none."""

from __future__ import annotations

from typing import Any

import pytest

from tardis_machine.errors import NormalizeError
from tardis_machine.exchanges import EXCHANGES
from tardis_machine.filters import Filter
from tardis_machine.messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, Trade
from tardis_machine.pipeline.normalizer import Normalizer
from tests.exchanges.feeding import LOCAL, book, normalize

EVENT_MS, EVENT = 1709251200050, "2024-03-01T00:00:00.050Z"


def stream(name: str, **data: Any) -> dict[str, Any]:
    return {"stream": name, "data": data}


def update(first: int, last: int, bids: list[list[str]], **fields: Any) -> dict[str, Any]:
    return stream("ethusdt@depth@100ms", e="depthUpdate", E=EVENT_MS, s="ETHUSDT", U=first, u=last, b=bids, a=[], **fields)


def snapshot(last_id: int) -> dict[str, Any]:
    return stream("ethusdt@depthSnapshot", lastUpdateId=last_id, bids=[["10", "1"], ["9", "2"]], asks=[["11", "3"]])


def test_what_came_before_the_snapshot_is_merged_into_it_and_what_it_holds_is_dropped() -> None:
    changes = normalize(
        "binance",
        "book_change",
        update(1, 5, [["9", "7"]]),  # the snapshot knows better
        update(6, 8, [["9", "0"], ["8.5", "4"]]),
        snapshot(5),
        update(7, 8, []),
        update(9, 9, [["10", "0"]]),
        snapshot(100),  # a later one is not needed
        update(10, 10, [["10", "6"]]),
    )
    assert changes[0] == BookChange("ETHUSDT", "binance", True, book((10, 1), (8.5, 4)), book((11, 3)), LOCAL, LOCAL)
    assert [change.bids for change in changes[1:]] == [[], book((10, 0)), book((10, 6))]


@pytest.mark.parametrize(
    ("exchange", "joined", "gap"),
    [
        ("binance", update(5, 7, []), update(7, 9, [])),
        ("binance-futures", update(7, 9, [], pu=5), update(7, 9, [], pu=6)),
    ],
)
def test_a_gap_after_the_snapshot_is_an_error_only_where_it_can_be_mended(exchange: str, joined: Any, gap: Any) -> None:
    later = update(50, 60, [], pu=40)  # only the first has to join
    assert len(normalize(exchange, "book_change", snapshot(5), joined, later, realtime=True)) == 3
    assert len(normalize(exchange, "book_change", snapshot(5), gap)) == 2
    with pytest.raises(NormalizeError, match="leave a gap"):
        normalize(exchange, "book_change", snapshot(5), gap, realtime=True)


def test_trades_off_the_book_are_none_and_the_buyer_may_be_the_maker() -> None:
    def trade(**fields: Any) -> dict[str, Any]:
        return stream("ethusdt@trade", e="trade", s="ETHUSDT", t=9007199254740993, p="10.10", q="2", T=EVENT_MS, **fields)

    trades = normalize(
        "binance-futures", "trade", trade(m=True, X="MARKET"), trade(m=False, X="INSURANCE_FUND"), trade(m=False, X="NA")
    )
    assert trades == [Trade("ETHUSDT", "binance-futures", "9007199254740993", 10.1, 2, "sell", EVENT, LOCAL)]


def test_times_in_microseconds_are_told_by_their_length() -> None:
    [trade] = normalize(
        "binance", "trade", stream("ethusdt@trade", s="ETHUSDT", t=1, p="1", q="1", T=EVENT_MS * 1000 + 7, m=True)
    )
    assert trade.timestamp == "2024-03-01T00:00:00.050007Z"


def test_a_ticker_is_told_of_changes_only_and_an_expiring_future_has_no_funding() -> None:
    def mark(**fields: Any) -> dict[str, Any]:
        return stream("ethusd_240628@markPrice@1s", e="markPriceUpdate", E=EVENT_MS, s="ETHUSD_240628", p="10", **fields)

    index = stream("ethusd@indexPrice@1s", e="indexPriceUpdate", E=EVENT_MS, i="ETHUSD", p="9.5")
    tickers = normalize(
        "binance-delivery", "derivative_ticker", index, mark(r="", T=0), mark(r="", T=0), mark(r="0.0001", T=EVENT_MS)
    )
    unset = UNSET
    assert tickers == [
        DerivativeTicker("ETHUSD_240628", "binance-delivery", unset, unset, unset, unset, unset, 9.5, 10, EVENT, LOCAL),
        DerivativeTicker("ETHUSD_240628", "binance-delivery", unset, unset, 0.0001, EVENT, unset, 9.5, 10, EVENT, LOCAL),
    ]


def test_a_ticker_is_put_together_from_three_streams() -> None:
    name = "ETHUSDT"
    tickers = normalize(
        "binance-futures",
        "derivative_ticker",
        stream("ethusdt@ticker", e="24hrTicker", E=EVENT_MS, s=name, c="10"),
        stream("ethusdt@openInterest", symbol=name, openInterest="7", time=EVENT_MS),
        stream("ethusdt@markPrice@1s", e="markPriceUpdate", E=EVENT_MS, s=name, p="11", i="12", r="0.0001", T=EVENT_MS),
    )
    assert tickers[-1] == DerivativeTicker(name, "binance-futures", 10, 7, 0.0001, EVENT, UNSET, 12, 11, EVENT, LOCAL)
    assert len(tickers) == 3


def test_best_prices_of_spot_have_no_time() -> None:
    rows = [{}, {"E": EVENT_MS}]
    tickers = [stream("ethusdt@bookTicker", s="ETHUSDT", b="10", B="1", a="11", A="2", **row) for row in rows]
    assert normalize("binance", "book_ticker", *tickers) == [
        BookTicker("ETHUSDT", "binance", 2, 11, 10, 1, time, LOCAL) for time in (LOCAL, EVENT)
    ]


def test_only_filled_liquidations_count() -> None:
    def order(state: str) -> dict[str, Any]:
        return stream("ethusdt@forceOrder", o={"s": "ETHUSDT", "S": "SELL", "p": "10", "z": "2", "X": state, "T": EVENT_MS})

    assert normalize("binance-futures", "liquidation", order("NEW"), order("FILLED")) == [
        Liquidation("ETHUSDT", "binance-futures", UNSET, 10, 2, "sell", EVENT, LOCAL)
    ]


def test_symbols_are_asked_for_in_lower_case_and_indexes_by_pair() -> None:
    filters = Normalizer("binance-delivery", ["derivative_ticker"]).filters(["ETHUSD_240628"])
    assert {item.channel: item.symbols for item in filters}["ticker"] == ["ethusd_240628"]
    assert {item.channel: item.symbols for item in filters}["indexPrice"] == ["ethusd"]


def test_subscriptions() -> None:
    read = EXCHANGES["binance-futures"].subscriptions
    streams = ["ethusdt@depth@100ms", "!contractInfo", "ethusdt@kline_1m", "!markPrice@arr@1s"]
    asked = read({"method": "SUBSCRIBE", "params": streams, "id": 1}, 0)
    assert asked == [Filter("depth", ["ethusdt"]), Filter("!contractInfo")]  # the others were not recorded
    assert read({"method": "UNSUBSCRIBE", "params": []}, 0) is None
