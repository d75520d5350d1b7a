"""The options of the export commands.

Invariant: a file is named by exchange, dataset, day and symbol, as clients of the datasets API name their downloads.
"""

from __future__ import annotations

from pathlib import Path

from ..option import Option
from ..values import integer, items, path, text
from .lake import LAKE_OPTION
from .request import exchange, span, symbols

__all__ = ["EXPORT_CSV_OPTIONS", "EXPORT_HFTBACKTEST_OPTIONS", "EXPORT_NAUTILUS_OPTIONS"]

_EXPORTED = (
    exchange("export", "Exchange to export", required=True),
    symbols("export", "Its symbols: a file for each, and for each day", required=True),
    *span("export", required=True),
)

EXPORT_CSV_OPTIONS = (
    *_EXPORTED,
    Option(
        name="datasets",
        help="Datasets to make: trades, incremental_book_L2, quotes, book_snapshot_25, derivative_ticker, options_chain, …",
        group="export",
        parse=items(str, takes="names of datasets with commas between them"),
        required=True,
    ),
    Option(
        name="output-dir",
        help="Folder for the files; those that are there already are not made again",
        group="export",
        parse=path,
        default=Path("datasets"),
    ),
    Option(
        name="from-lake",
        help="Folder or URI of a lake to export from, instead of a replay",
        group="export",
        parse=text("a folder or a URI"),
        metavar="PATH",
    ),
    LAKE_OPTION,
)

EXPORT_NAUTILUS_OPTIONS = (
    *_EXPORTED,
    Option(
        name="datasets",
        help="What goes into the catalog: trades, incremental_book_L2 (as deltas), quotes",
        group="export",
        parse=items(str, takes="names of datasets with commas between them"),
        default=("trades", "incremental_book_L2"),
    ),
    Option(name="venue", help="Venue of the instruments; by default the exchange in capitals", group="export", parse=text()),
    Option(
        name="price-precision",
        help="Places of prices in every file; by default as many as the day has",
        group="export",
        parse=integer(0, 16),
    ),
    Option(
        name="size-precision",
        help="Places of sizes in every file; by default as many as the day has",
        group="export",
        parse=integer(0, 16),
    ),
    Option(
        name="output-dir",
        help="Folder of the catalog; days that are there already are not made again",
        group="export",
        parse=path,
        default=Path("catalog"),
    ),
)

EXPORT_HFTBACKTEST_OPTIONS = (
    *_EXPORTED,
    Option(
        name="output-dir",
        help="Folder for the files; days that are there already are not made again",
        group="export",
        parse=path,
        default=Path("hftbacktest"),
    ),
)
