"""What the metadata API says of instruments, as dated rows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.instruments import fetch_instruments, to_rows
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording


def listed(symbol: str = "XBTUSD", **fields: Any) -> Any:
    return {"id": symbol, "exchange": "bitmex", "type": "perpetual", "availableSince": "2019-03-30T00:00:00.000Z", **fields}


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def held(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("valid_from", "valid_to", *names)) for row in rows]


def test_an_instrument_without_changes_holds_for_ever() -> None:
    [row] = to_rows(
        "bitmex", [listed(inverse=True, priceIncrement=1e-08, contractMultiplier=1, expiry="2020-06-26T08:00:00.000Z")]
    )
    assert (row["valid_from"], row["valid_to"]) == (None, None)
    assert (row["kind"], row["is_inverse"], row["is_quanto"]) == ("perpetual", True, False)
    assert (row["price_increment"], row["contract_multiplier"], row["amount_increment"]) == (Decimal("1e-8"), 1, None)
    assert (row["expiry_ts"], row["available_since"]) == (day("2020-06-26T08:00"), day("2019-03-30"))


def test_a_change_says_until_when_something_else_held_and_what_it_does_not_name_was_as_it_is_after_it() -> None:
    changes = [
        {"until": "2020-01-01", "priceIncrement": 1},
        {"until": "2021-01-01T00:00:00.000Z", "contractMultiplier": 10},
    ]
    rows = to_rows("bitmex", [listed(priceIncrement=0.1, contractMultiplier=1, changes=changes)])
    assert held(rows, "price_increment", "contract_multiplier") == [
        (day("2021-01-01"), None, Decimal("0.1"), 1),
        (day("2020-01-01"), day("2021-01-01"), Decimal("0.1"), 10),
        (None, day("2020-01-01"), 1, 10),
    ]


def test_a_symbol_that_comes_back_as_another_contract_holds_from_then_on() -> None:
    first = listed("XBTM20", contractMultiplier=1, changes=[{"until": "2025-01-01", "contractMultiplier": 7}])
    again = listed("XBTM20", contractMultiplier=2, availableSince="2022-01-01")
    assert held(to_rows("bitmex", [again, first]), "contract_multiplier") == [
        (None, day("2022-01-01"), 7),
        (day("2022-01-01"), None, 2),
    ]


def test_numbers_are_as_wide_as_the_lake_has_them_or_not_known() -> None:
    [row] = to_rows("bitmex", [listed(amountIncrement=10**12, minTradeAmount=10**20, priceIncrement="none", strikePrice=99999.5)])
    assert (row["amount_increment"], row["strike_price"]) == (10**12, Decimal("99999.5"))
    assert (row["min_trade_amount"], row["price_increment"]) == (None, None)


def test_the_api_is_asked_and_one_that_knows_nothing_is_named(tmp_path: Path) -> None:
    with SampleHistoryApi(Recording(SampleMarket(1, 0.05))).serve_in_thread() as api:
        rows = asyncio.run(fetch_instruments(["bitmex", "binance"], api.url, None, tmp_path))
        assert {(row["exchange"], row["symbol"].upper()) for row in rows} >= {("bitmex", "XBTUSD"), ("binance", "BTCUSDT")}
        assert [row["is_inverse"] for row in rows if row["symbol"] == "XBTUSD"] == [True]
        with pytest.raises(LakeError, match="the instruments of nowhere are not known: "):
            asyncio.run(fetch_instruments(["bitmex", "nowhere"], api.url, None, tmp_path))
