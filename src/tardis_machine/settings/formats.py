"""The formats that are read with Spark, and their options: `spark.read.format("tardis").option("dataTypes", "trade")`.

Invariant: an option means what the flag of the same name means.
"""

from __future__ import annotations

from collections.abc import Mapping

from .commands import Command
from .option import Option
from .options.lake import BATCH_BYTES
from .options.machine import HISTORY_API_OPTIONS, LIVE_OPTIONS
from .options.request import data_types, disconnects, exchange, span, symbols
from .values import items, path

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

_JOURNAL_DIR = Option(
    name="journal-dir",
    help="Folder where the driver keeps what a live stream heard until it is committed",
    group="format tardis",
    parse=path,
    default_text="{state}/tardis-machine/spark-live/…",
)

FORMATS: Mapping[str, Command] = {
    "tardis": Command(
        name="the format tardis",
        target="",
        help="History as rows, by symbol and day; as a stream without a beginning, live",
        options=(*_REQUEST, *HISTORY_API_OPTIONS, *LIVE_OPTIONS, _JOURNAL_DIR),
        extra="spark",
    ),
    "tardis-events": Command(
        name="the format tardis-events",
        target="",
        help="What a bus holds, as rows",
        options=(
            Option(
                name="from",
                help="Bus to read, at the address and destination that its own options give",
                group="format tardis-events",
                choices=("files", "kafka", "redis", "nats", "kinesis"),
            ),
            Option(
                name="data-types",
                help="Payload cases that come as typed rows: trade, book_change, quote, …; by default rows are records",
                group="format tardis-events",
                parse=items(str, takes="payload cases, separated by commas"),
            ),
            BATCH_BYTES,
        ),
        takes_buses=True,
        extra="spark",
    ),
}
"""By the name that Spark's users give; a format is no command, but has options as one."""
