"""Products by name, and units of a backfill."""

from __future__ import annotations

import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.lakehouse.backfill import plan_units
from tardis_machine.lakehouse.gold import parse_products
from tardis_machine.lakehouse.options import DEFAULT_GOLD
from tardis_machine.request import parse_normalized_request


def test_products_of_any_interval_and_depth() -> None:
    chosen = parse_products(["bars_15s", "book_state_25_100ms", "gaps"])
    assert chosen.names == ("bars_15s", "book_state_25_100ms", "gaps")
    assert chosen.products[0].interval_us == 15_000_000
    assert (chosen.book_states[0].depth, chosen.book_states[0].interval_us) == (25, 100_000)
    # What is made of tops brings them along.
    assert "top_of_book" in parse_products(["markouts"]).names
    assert parse_products(DEFAULT_GOLD).names == tuple(sorted(DEFAULT_GOLD))


@pytest.mark.parametrize("name", ["bars", "bars_1y", "bars_0s", "book_state_1s", "book_state_0_1s", "candles_1m", ""])
def test_what_is_no_product_is_refused(name: str) -> None:
    with pytest.raises(OptionsError, match="gold: "):
        parse_products([name])


def test_a_unit_is_a_symbol_and_a_day() -> None:
    asked = {"exchange": "bitmex", "symbols": ["A", "B"], "from": "2020-01-01T12:00Z", "to": "2020-01-03", "dataTypes": ["trade"]}
    units = plan_units([parse_normalized_request(asked)])
    assert [unit.session for unit in units] == [
        f"backfill|bitmex|{symbol}|trade|{span}"
        for span in (
            "2020-01-01T12:00:00.000000Z/2020-01-02T00:00:00.000000Z",
            "2020-01-02T00:00:00.000000Z/2020-01-03T00:00:00.000000Z",
        )
        for symbol in ("A", "B")
    ]
    with pytest.raises(OptionsError, match="symbols: got nothing, a backfill takes at least one symbol"):
        plan_units([parse_normalized_request({**asked, "symbols": []})])
