"""Products by name, and units of a backfill."""

from __future__ import annotations

import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.lakehouse.gold import parse_products
from tardis_machine.settings.options.lake import DEFAULT_GOLD


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
    with pytest.raises(OptionsError, match=r"; --gold takes (names|intervals) such as "):
        parse_products([name])
