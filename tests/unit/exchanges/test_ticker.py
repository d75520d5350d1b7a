"""A derivative's ticker: emitted on change, fields kept, time never backwards."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tardis_machine.exchanges._ticker import PendingTicker, PendingTickers
from tardis_machine.messages import UNSET, DerivativeTicker, to_json

LOCAL = "2024-01-01T00:00:00.000001Z"
NUMBERS = ["last_price", "open_interest", "funding_rate", "predicted_funding_rate", "index_price", "mark_price"]


@pytest.fixture
def ticker() -> PendingTicker:
    return PendingTicker("XBTUSD", "bitmex")


def test_nothing_is_due_before_a_field_is_told(ticker: PendingTicker) -> None:
    ticker.update_timestamp("2024-01-01T00:00:00.000Z")
    assert not ticker.has_changed


@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_is_due_when_it_changes(ticker: PendingTicker, field: str) -> None:
    update = getattr(ticker, f"update_{field}")
    update(5)
    assert ticker.has_changed
    assert getattr(ticker.to_message(LOCAL), field) == 5
    assert not ticker.has_changed
    for value in (5, 5.0, None, UNSET):
        update(value)
        assert not ticker.has_changed
    update(0)
    assert ticker.has_changed
    assert getattr(ticker.to_message(LOCAL), field) == 0
    update(math.nan)
    ticker.to_message(LOCAL)
    update(math.nan)
    assert ticker.has_changed  # as NaN equals nothing


def test_earlier_fields_are_kept_and_the_rest_is_absent(ticker: PendingTicker) -> None:
    ticker.update_mark_price(100.5)
    ticker.to_message(LOCAL)
    ticker.update_last_price(101)
    ticker.update_timestamp("2024-01-01T00:00:02.000Z")
    assert to_json(ticker.to_message(LOCAL)) == (
        b'{"type":"derivative_ticker","symbol":"XBTUSD","exchange":"bitmex","lastPrice":101,"markPrice":100.5,'
        b'"timestamp":"2024-01-01T00:00:02.000Z","localTimestamp":"2024-01-01T00:00:00.000001Z"}'
    )


def test_a_message_does_not_change_later(ticker: PendingTicker) -> None:
    ticker.update_mark_price(1)
    first = ticker.to_message(LOCAL)
    ticker.update_mark_price(2)
    assert (first.mark_price, ticker.to_message(LOCAL).mark_price) == (1, 2)


@pytest.mark.parametrize(
    ("known", "told", "kept"),
    [
        (UNSET, "2024-01-01T00:00:01.000Z", "2024-01-01T00:00:01.000Z"),
        ("2024-01-01T00:00:01.000Z", "2024-01-01T00:00:01.001Z", "2024-01-01T00:00:01.001Z"),
        ("2024-01-01T00:00:01.001Z", "2024-01-01T00:00:01.000999Z", "2024-01-01T00:00:01.001Z"),
        # Microseconds do not count: the same millisecond is not earlier.
        ("2024-01-01T00:00:01.000999Z", "2024-01-01T00:00:01.000Z", "2024-01-01T00:00:01.000Z"),
        ("+033658-09-27T01:46:39.999Z", "2024-01-01T00:00:01.000Z", "+033658-09-27T01:46:39.999Z"),
        ("2024-01-01T00:00:01.000Z", "+033658-09-27T01:46:39.999Z", "+033658-09-27T01:46:39.999Z"),
        ("+033658-09-27T01:46:39.999Z", "+033658-09-27T01:46:40.000Z", "+033658-09-27T01:46:40.000Z"),
        ("0001-01-01T00:00:00.000Z", "-000001-01-01T00:00:00.000Z", "0001-01-01T00:00:00.000Z"),
        ("-000002-01-01T00:00:00.000Z", "-000001-01-01T00:00:00.000Z", "-000001-01-01T00:00:00.000Z"),
        ("-000001-01-01T00:00:00.000Z", "-000002-01-01T00:00:00.000Z", "-000001-01-01T00:00:00.000Z"),
        ("2024-01-01T00:00:01.000Z", None, "2024-01-01T00:00:01.000Z"),
        (None, "2024-01-01T00:00:01.000Z", None),
    ],
)
def test_time_never_moves_backwards(ticker: PendingTicker, known: Any, told: Any, kept: Any) -> None:
    if known is not UNSET:
        ticker.update_timestamp(known)
    ticker.update_timestamp(told)
    assert ticker.to_message(LOCAL).timestamp == kept


def test_without_an_exchange_time_the_local_one_stands_in_and_stays(ticker: PendingTicker) -> None:
    assert ticker.to_message(LOCAL).timestamp == LOCAL
    assert ticker.to_message("2024-01-01T00:00:09.000001Z").timestamp == LOCAL


def test_funding_time(ticker: PendingTicker) -> None:
    assert ticker.funding_timestamp is UNSET
    ticker.update_funding_timestamp(UNSET)
    assert not ticker.has_changed
    ticker.update_funding_timestamp("2024-01-01T08:00:00.000Z")
    assert ticker.has_changed
    assert ticker.to_message(LOCAL).funding_timestamp == ticker.funding_timestamp == "2024-01-01T08:00:00.000Z"
    ticker.update_funding_timestamp("2024-01-01T08:00:00.000000Z")
    assert not ticker.has_changed
    ticker.update_funding_timestamp("2024-01-01T00:00:00.000Z")
    assert ticker.has_changed


def test_an_invalid_funding_time_prints_null_and_differs_from_itself(ticker: PendingTicker) -> None:
    for _ in range(2):
        ticker.update_funding_timestamp(None)
        assert ticker.has_changed
        assert b'"fundingTimestamp":null' in to_json(ticker.to_message(LOCAL))


def test_tickers_start_when_asked_for() -> None:
    tickers = PendingTickers("bitmex")
    assert "XBTUSD" not in tickers
    tickers["XBTUSD"].update_mark_price(7)
    assert "XBTUSD" in tickers
    assert tickers["XBTUSD"].has_changed
    assert isinstance(tickers["ETHUSD"].to_message(LOCAL), DerivativeTicker)
    assert tickers["ETHUSD"].to_message(LOCAL).exchange == "bitmex"
