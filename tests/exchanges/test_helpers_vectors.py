"""Numbers, dates, filters and symbols, against what the reference's own helpers were recorded to return."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.computed.book_snapshot import decimal_places
from tardis_machine.dates import parse_date_us
from tardis_machine.exchanges._parsing import (
    nonzero_number,
    optional_number,
    timestamp_from_ms,
    timestamp_from_text,
    timestamp_from_us,
    to_number,
)
from tardis_machine.filters import Filter, optimize_filters
from tardis_machine.messages import UNSET, to_json, to_timestamp
from tardis_machine.pipeline.normalizer import symbol_filter

MINUTE_US = 60_000_000


def number(value: Any) -> Any:
    """A number as the rows write it."""
    if value is UNSET:
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity"
    return value


def micros(text: str) -> int:
    """The digits that a timestamp keeps beyond its milliseconds."""
    timestamp = timestamp_from_text(text, micros=True)
    return int(timestamp[23:26]) if timestamp else 0


def request_date(text: str) -> str:
    """A date of a request; the reference cuts its seconds, ours are kept until slices are fetched."""
    return to_timestamp(parse_date_us(text) // MINUTE_US * MINUTE_US, milliseconds=True)


def filters_of(rows: list[dict[str, Any]]) -> list[Filter]:
    return [Filter(row["channel"], row.get("symbols", UNSET)) for row in rows]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Number": lambda value: number(to_number(value)),
    "asNumberOrUndefined": lambda value: number(optional_number(value)),
    "asNonZeroNumberOrUndefined": lambda value: number(nonzero_number(value)),
    "decimalPlaces": decimal_places,
    "parseMicros": micros,
    "fromMicroSecondsToDate": timestamp_from_us,
    "parseAsUTCDate": request_date,
    "new Date(string)": lambda value: timestamp_from_text(value) or "Invalid Date",
    "new Date(value)": lambda value: timestamp_from_ms(value) or "Invalid Date",
    "optimizeFilters": lambda filters: json.loads(to_json(optimize_filters(filters_of(filters)))),
    "JSON.stringify(number)": lambda text: to_json(to_number(text)).decode(),
}


def call(row: dict[str, Any]) -> Any:
    if row["fn"] != "createNormalizedSymbolFilter":
        return FUNCTIONS[row["fn"]](*row["args"])
    symbols, filters = row["args"]
    passing = symbol_filter(symbols, filters_of(filters))
    return None if passing is None else [symbol in passing for symbol in row["probe"]]


def test_rows(vectors: Path) -> None:
    rows = [json.loads(line) for line in (vectors / "helpers.jsonl").read_text("utf-8").splitlines()]
    total, failures = Counter(row["fn"] for row in rows), []
    for row in rows:
        if row["fn"] == "parseAsUTCDate" and "+" in row["args"][0]:
            continue  # ours takes dates with an offset, which the reference refuses: see below
        got = call(row)
        if got != row["result"]:
            failures.append((row["fn"], f"{row} got {got!r}"))
    for name, count in total.items():
        passed = count - sum(failed == name for failed, _ in failures)
        print(f"{name}: {passed}/{count} = {100 * passed / count:.1f}%")
    assert not failures, "\n".join(problem for _, problem in failures[:5])


def test_a_date_with_an_offset_is_taken() -> None:
    assert request_date("2019-06-01T00:00:00+02:00") == "2019-05-31T22:00:00.000Z"


def test_what_is_no_date_is_refused() -> None:
    with pytest.raises(ValueError, match="no date"):
        request_date("Invalid Date")
