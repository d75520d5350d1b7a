"""Rows of an answer as text: a table for people, CSV and JSON for programs.

Invariant: pure but for the stream it writes to. In JSON and CSV an instant is ISO-8601 in UTC, a decimal a plain number, bytes
are hex; a null is null in JSON and empty in CSV.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TextIO

__all__ = ["to_plain", "write_csv", "write_json", "write_table"]

TABLE_ROWS = 200
"""A terminal shows this many."""


def to_plain(value: Any) -> Any:
    """A value of Spark's as JSON knows it."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): to_plain(item) for name, item in value.items()}
    if hasattr(value, "asDict"):
        return {name: to_plain(item) for name, item in value.asDict().items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def write_json(names: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """An array of objects, one a line."""
    out.write("[")
    for index, row in enumerate(rows):
        item = {name: to_plain(value) for name, value in zip(names, row, strict=True)}
        out.write((",\n" if index else "\n") + json.dumps(item, ensure_ascii=False, allow_nan=False))
    out.write("\n]\n")


def write_csv(names: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """A line of names, then one for each row."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_to_cell(value) for value in row] for row in rows)


def write_table(names: Sequence[str], rows: Iterable[Sequence[Any]], out: TextIO) -> None:
    """A table for the terminal; of a long answer its beginning, and a line that says so."""
    from rich.console import Console
    from rich.table import Table

    shown: list[Sequence[Any]] = []
    is_cut = False
    for row in rows:
        if len(shown) == TABLE_ROWS:
            is_cut = True
            break
        shown.append(row)
    is_number = [all(isinstance(row[index], int | float | Decimal | None) for row in shown) for index in range(len(names))]
    table = Table()
    for name, right in zip(names, is_number, strict=True):
        table.add_column(name, justify="right" if right and shown else "left")
    for row in shown:
        table.add_row(*(_to_cell(value) for value in row))
    # What is not a terminal has no width to fit into: nothing is cut there.
    console = Console(file=out, width=None if out.isatty() else 10_000, markup=False, highlight=False, emoji=False)
    console.print(table)
    if is_cut:
        console.print(f"the first {TABLE_ROWS} rows; --format csv or json writes all")


def _to_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Decimal):
        text = f"{value:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    plain = to_plain(value)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, dict | list) else str(plain)
