"""Slices travel to worker processes and into logs."""

from __future__ import annotations

import pickle

import pytest

from tardis_machine.filters import Filter
from tardis_machine.history.slice import MINUTE_US, Slice, to_minute_text

START_US = 1_559_347_380_000_000  # 2019-06-01T00:03Z


def test_pickles_with_and_without_symbols() -> None:
    filters = (Filter("trade"), Filter("orderBookL2", ["XBTUSD"]))
    item = Slice("bitmex", START_US, 5, None, b"\x00data", "zst", filters, partial=True)
    assert pickle.loads(pickle.dumps(item)) == item


def test_repr_shows_no_data() -> None:
    assert "secret" not in repr(Slice("bitmex", START_US, 1, None, b"secret", "gz"))


@pytest.mark.parametrize(("minutes", "name"), [(1, "bitmex 2019-06-01T00:03Z"), (5, "bitmex 2019-06-01T00:03Z+5min")])
def test_is_named_by_exchange_and_minute(minutes: int, name: str) -> None:
    item = Slice("bitmex", START_US, minutes, "/x", None, "gz")
    assert item.name == name
    assert item.end_us == START_US + minutes * MINUTE_US


def test_a_minute_is_written_as_people_do() -> None:
    assert to_minute_text(START_US + 59_999_999) == "2019-06-01T00:03Z"
