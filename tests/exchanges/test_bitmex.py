"""BitMEX: levels by id, tickers after their partial, sides."""

from __future__ import annotations

from typing import Any

from tardis_machine.exchanges.bitmex import read_subscription
from tardis_machine.filters import Filter
from tardis_machine.messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, Trade
from tests.exchanges.feeding import LOCAL, book, normalize

TIME = "2024-03-01T00:00:00.100Z"


def table(name: str, action: str, *data: dict[str, Any]) -> dict[str, Any]:
    return {"table": name, "action": action, "data": list(data)}


def level(level_id: int, **fields: Any) -> dict[str, Any]:
    return {"symbol": "ETHUSD", "id": level_id, "side": "Buy", "timestamp": TIME, **fields}


def test_updates_find_their_price_by_id_until_the_level_is_deleted() -> None:
    changes = normalize(
        "bitmex",
        "book_change",
        table("orderBookL2", "update", level(7, size=1)),  # from before the partial
        table("orderBookL2", "partial", level(7, size=2, price=10.5)),
        table("orderBookL2", "update", level(7, size=3)),
        table("orderBookL2", "insert", level(8, size=4, price=11, side="Sell")),
        table("orderBookL2", "delete", level(7)),
        table("orderBookL2", "update", level(7, size=5)),  # of a level that is no more
    )
    assert changes == [
        BookChange("ETHUSD", "bitmex", True, book((10.5, 2)), [], TIME, LOCAL),
        BookChange("ETHUSD", "bitmex", False, book((10.5, 3)), [], TIME, LOCAL),
        BookChange("ETHUSD", "bitmex", False, [], book((11, 4)), TIME, LOCAL),
        BookChange("ETHUSD", "bitmex", False, book((10.5, 0)), [], TIME, LOCAL),
    ]


def test_an_empty_partial_says_that_the_book_is_empty() -> None:
    empty = table("orderBookL2", "partial") | {"filter": {"symbol": "ETHUSD"}}
    assert normalize("bitmex", "book_change", empty) == [BookChange("ETHUSD", "bitmex", True, [], [], LOCAL, LOCAL)]


def test_a_partial_of_several_symbols_is_a_book_for_each() -> None:
    partial = table("orderBookL2", "partial", level(1, size=1, price=1), level(2, size=2, price=2) | {"symbol": "XBTUSD"})
    assert [change.symbol for change in normalize("bitmex", "book_change", partial)] == ["ETHUSD", "XBTUSD"]


def test_a_change_is_as_late_as_its_latest_level() -> None:
    later = "2024-03-01T00:00:00.200Z"
    insert = table("orderBookL2", "insert", level(1, size=1, price=1, timestamp=later), level(2, size=2, price=2))
    assert [change.timestamp for change in normalize("bitmex", "book_change", insert)] == [later]


def test_sides_of_trades() -> None:
    rows = [
        {"symbol": "X", "price": 1, "size": 1, "trdMatchID": "a", "timestamp": TIME, **side}
        for side in ({"side": "Buy"}, {"side": "Sell"}, {})
    ]
    trades = normalize("bitmex", "trade", table("trade", "partial", *rows), table("trade", "insert", *rows))
    assert trades == [Trade("X", "bitmex", "a", 1, 1, side, TIME, LOCAL) for side in ("buy", "sell", "unknown")]


def test_tickers_start_with_a_partial_and_tell_of_changes_only() -> None:
    def instrument(**fields: Any) -> dict[str, Any]:
        return {"symbol": "XBTUSD", "timestamp": TIME, **fields}

    tickers = normalize(
        "bitmex",
        "derivative_ticker",
        table("instrument", "update", instrument(lastPrice=1)),  # from before the partial
        table(
            "instrument",
            "partial",
            instrument(lastPrice=2, state="Open"),
            instrument(symbol="XBTZ20", state="Settled", lastPrice=9),
        ),
        table("instrument", "update", instrument(lastPrice=2, timestamp="2024-03-01T00:00:00.200Z")),  # nothing new
        table("instrument", "update", instrument(openInterest=5, timestamp="2024-03-01T00:00:00.050Z")),  # an older clock
    )
    late, unset = "2024-03-01T00:00:00.200Z", UNSET
    assert tickers == [
        DerivativeTicker("XBTUSD", "bitmex", 2, unset, unset, unset, unset, unset, unset, TIME, LOCAL),
        DerivativeTicker("XBTUSD", "bitmex", 2, 5, unset, unset, unset, unset, unset, late, LOCAL),
    ]


def test_all_fields_of_a_ticker() -> None:
    fields = {"lastPrice": 1, "openInterest": 2, "fundingRate": 0.1, "indicativeFundingRate": 0.2, "fundingTimestamp": TIME}
    prices = {"indicativeSettlePrice": 3.5, "markPrice": 4}
    partial = table("instrument", "partial", {"symbol": "XBTUSD", "timestamp": TIME, **fields, **prices})
    assert normalize("bitmex", "derivative_ticker", partial) == [
        DerivativeTicker("XBTUSD", "bitmex", 1, 2, 0.1, TIME, 0.2, 3.5, 4, TIME, LOCAL)
    ]


def test_quotes_are_the_best_prices() -> None:
    quote = {"symbol": "XBTUSD", "bidSize": 1, "bidPrice": 10.5, "askPrice": 11, "timestamp": TIME}
    messages = [table("quote", "partial", quote), table("quote", "insert", quote)]
    assert normalize("bitmex", "book_ticker", *messages) == [BookTicker("XBTUSD", "bitmex", UNSET, 11, 10.5, 1, TIME, LOCAL)]


def test_a_liquidation_has_no_time_but_the_recorders() -> None:
    row = {"orderID": "o", "symbol": "XBTUSD", "side": "Sell", "price": 50, "leavesQty": 3}
    messages = [table("liquidation", "partial", row), table("liquidation", "insert", row), table("liquidation", "delete", row)]
    assert normalize("bitmex", "liquidation", *messages) == [Liquidation("XBTUSD", "bitmex", "o", 50, 3, "sell", LOCAL, LOCAL)]


def test_subscriptions() -> None:
    asked = read_subscription({"op": "subscribe", "args": ["trade:XBTUSD", "instrument"]}, 0)
    assert asked == [Filter("trade", ["XBTUSD"]), Filter("instrument")]
    assert read_subscription({"op": "subscribe", "args": "trade:XBTUSD"}, 0) == [Filter("trade", ["XBTUSD"])]
    assert read_subscription({"op": "unsubscribe", "args": ["trade:XBTUSD"]}, 0) is None
