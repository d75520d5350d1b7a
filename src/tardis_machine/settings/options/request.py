"""The options that describe one request: the flags that `replay`, `stream` and `lake backfill` have in common.

Invariant: a flag means the same for every command that has it.
"""

from __future__ import annotations

from ..option import Option
from ..values import items, switch, text

__all__ = ["REQUEST_FLAGS", "data_types", "disconnects", "exchange", "span", "symbols", "whole_request"]

REQUEST_FLAGS = {
    "exchange": "exchange",
    "symbols": "symbols",
    "dataTypes": "data-types",
    "withDisconnectMessages": "with-disconnects",
}
"""The fields that every request has, and the flag of each."""


def exchange(group: str, help: str, *, required: bool = False) -> Option:  # noqa: A002 - as Option calls it
    """`--exchange`."""
    return Option(name="exchange", help=help, group=group, parse=text(), metavar="NAME", required=required)


def symbols(group: str, help: str, *, required: bool = False) -> Option:  # noqa: A002
    """`--symbols`."""
    parse = items(str, takes="symbols, separated by commas")
    return Option(name="symbols", help=help, group=group, parse=parse, required=required)


def span(group: str, *, required: bool = False) -> tuple[Option, Option]:
    """`--from` and `--to`."""
    start = "Start of the history: an ISO 8601 date, in UTC unless it has an offset"
    return (
        Option(name="from", help=start, group=group, metavar="DATE", required=required),
        Option(name="to", help="End of the history, not included", group=group, metavar="DATE", required=required),
    )


def data_types(group: str, *, required: bool = False) -> Option:
    """`--data-types`."""
    return Option(
        name="data-types",
        help="Types of normalized messages: trade, book_change, quote_10s, book_snapshot_25_100ms, trade_bar_1m, …",
        group=group,
        parse=items(str, takes="data types, separated by commas"),
        required=required,
    )


def disconnects(group: str, help: str) -> Option:  # noqa: A002
    """`--with-disconnects`."""
    return Option(name="with-disconnects", help=help, group=group, parse=switch, default=False)


def whole_request(group: str, help: str) -> Option:  # noqa: A002
    """`--options`."""
    return Option(name="options", help=help, group=group, parse=text(lines=True), metavar="JSON|@FILE")
