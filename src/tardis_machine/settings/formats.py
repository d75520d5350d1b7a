"""The formats that are read with Spark, and their options: `spark.read.format("tardis").option("dataTypes", "trade")`.

Invariant: an option means what the flag of the same name means.
"""

from __future__ import annotations

from collections.abc import Mapping

from .commands import Command
from .option import Option
from .options.machine import HISTORY_API_OPTIONS
from .options.request import data_types, disconnects, exchange, span, symbols

__all__ = ["FORMATS"]

_REQUEST = (
    exchange("format tardis", "Exchange to read"),
    symbols("format tardis", "Its symbols; by default all"),
    *span("format tardis"),
    data_types("format tardis"),
    disconnects("format tardis", "Rows for lost connections too"),
    Option(
        name="numbers",
        help="Prices and amounts as exact decimals, as the tables of the lake have them, or as doubles",
        group="format tardis",
        choices=("decimal", "double"),
        default="decimal",
    ),
)

FORMATS: Mapping[str, Command] = {
    "tardis": Command(
        name="the format tardis",
        target="",
        help="History as rows, by symbol and day",
        options=(*_REQUEST, *HISTORY_API_OPTIONS),
        extra="spark",
    ),
}
"""By the name that Spark's users give; a format is no command, but has options as one."""
