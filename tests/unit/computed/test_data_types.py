"""Names of data types: what they ask for, and how a wrong one is refused."""

from __future__ import annotations

import pytest

from tardis_machine.computed import BookSnapshots, Computable, TradeBars, parse_data_types
from tardis_machine.computed.book_snapshot import decimal_places
from tardis_machine.errors import OptionsError
from tardis_machine.messages import BookChange, BookSnapshot, DerivativeTicker, Trade, TradeBar


@pytest.mark.parametrize(
    ("name", "computable"),
    [
        ("trade_bar_100ms", TradeBars("time", 100)),
        ("trade_bar_10s", TradeBars("time", 10_000, "trade_bar_10s")),
        ("trade_bar_1.5s", TradeBars("time", 1500, "trade_bar_1.5s")),
        ("trade_bar_5m", TradeBars("time", 300_000, "trade_bar_5m")),
        ("trade_bar_2h", TradeBars("time", 7_200_000, "trade_bar_2h")),
        ("trade_bar_50ticks", TradeBars("tick", 50)),
        ("trade_bar_0.1vol", TradeBars("volume", 0.1)),
        ("book_snapshot_10_100ms", BookSnapshots(10, 100)),
        ("book_snapshot_25_0ms", BookSnapshots(25, 0)),
        ("book_snapshot_5_grouped10_1s", BookSnapshots(5, 1000, 10, "book_snapshot_5_grouped10_1s")),
        ("book_snapshot_5_grouped0.5_2m", BookSnapshots(5, 120_000, 0.5, "book_snapshot_5_grouped0.5_2m")),
        ("quote", BookSnapshots(1, 0, None, "quote")),
        ("quote_10s", BookSnapshots(1, 10_000, None, "quote_10s")),
    ],
)
def test_computed_types_by_name(name: str, computable: Computable) -> None:
    parsed = parse_data_types([name])
    assert parsed.computables == (computable,)
    assert parsed.computables[0].name == name  # type: ignore[attr-defined]
    assert [type(part) for part in vars(parsed.computables[0]).values()] == [type(part) for part in vars(computable).values()]


def test_names_that_are_not_given_are_made() -> None:
    assert BookSnapshots(3, 0, 1e-7).name == "book_snapshot_3_grouped1e-7_0ms"
    assert BookSnapshots(3, 100, 2.0).name == "book_snapshot_3_grouped2_100ms"
    assert TradeBars("volume", 12.5).name == "trade_bar_12.5vol"


def test_sources_are_normalized_in_mapper_order_and_shown_only_if_asked_for() -> None:
    parsed = parse_data_types(["derivative_ticker", "quote", "trade_bar_1s", "trade"])
    assert parsed.normalizers == ("trade", "book_change", "derivative_ticker")
    assert [computable.RESULT for computable in parsed.computables] == [BookSnapshot, TradeBar]
    assert parsed.shown == {DerivativeTicker, BookSnapshot, TradeBar, Trade}
    assert BookChange not in parsed.shown


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("trade_bar_10x", "trade_bar_{n}{ms|s|m|h|ticks|vol}"),
        ("trade_bar_10", "trade_bar_{n}{ms|s|m|h|ticks|vol}"),
        ("trade_bar_tens", "trade_bar_{n}{ms|s|m|h|ticks|vol}"),
        ("trade_bar_s", "trade_bar_{n}{ms|s|m|h|ticks|vol}"),
        ("trade_bar_1_0s", "trade_bar_{n}{ms|s|m|h|ticks|vol}"),
        ("book_snapshot_5", "book_snapshot_{depth}[_grouped{n}]_{n}{ms|s|m}, quote, quote_{n}{ms|s|m}"),
        ("book_snapshot_x_10ms", "book_snapshot_{depth}[_grouped{n}]_{n}{ms|s|m}, quote, quote_{n}{ms|s|m}"),
        ("trade_bar_1e999ms", "trade_bar_{n}{ms|s|m|h|ticks|vol}"),
        ("book_snapshot_1000000000_10ms", "book_snapshot_{depth}[_grouped{n}]_{n}{ms|s|m}, quote, quote_{n}{ms|s|m}"),
        ("book_snapshot_1.5_10ms", "book_snapshot_{depth}[_grouped{n}]_{n}{ms|s|m}, quote, quote_{n}{ms|s|m}"),
        ("book_snapshot_-1_10ms", "book_snapshot_{depth}[_grouped{n}]_{n}{ms|s|m}, quote, quote_{n}{ms|s|m}"),
        ("book_snapshot_5_0.5ms", "book_snapshot_{depth}[_grouped{n}]_{n}{ms|s|m}, quote, quote_{n}{ms|s|m}"),
        ("book_snapshot_5_grouped0_10ms", "book_snapshot_{depth}[_grouped{n}]_{n}{ms|s|m}, quote, quote_{n}{ms|s|m}"),
        ("book_snapshot_5_extra_10ms", "book_snapshot_{depth}[_grouped{n}]_{n}{ms|s|m}, quote, quote_{n}{ms|s|m}"),
        ("quote_1h", "book_snapshot_{depth}[_grouped{n}]_{n}{ms|s|m}, quote, quote_{n}{ms|s|m}"),
        ("trades", "trade"),
        ("liquidations", "liquidation"),
        ("bookchange", "book_change"),
    ],
)
def test_a_wrong_name_is_told_what_is_right(name: str, takes: str) -> None:
    with pytest.raises(OptionsError) as raised:
        parse_data_types(["trade", name])
    assert str(raised.value) == f"dataTypes: unknown data type '{name}'; expected {takes}"
    assert raised.value.field == "dataTypes"


def test_a_name_like_no_other_is_told_all() -> None:
    with pytest.raises(OptionsError) as raised:
        parse_data_types(["xyz"])
    for name in ("trade", "book_change", "option_summary", "trade_bar_{n}{ms|s|m|h|ticks|vol}", "quote_{n}{ms|s|m}"):
        assert name in str(raised.value)


@pytest.mark.parametrize(
    ("number", "places"),
    [(1, 0), (10, 0), (0.25, 2), (0.001, 3), (3e-8, 8), (1e-10, 0), (1 / 3, 16), (0.1 + 0.2, 1), (12.345, 3), (5e-324, 0)],
)
def test_decimal_places(number: float, places: int) -> None:
    assert decimal_places(number) == places
