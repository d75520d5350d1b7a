"""What commands that take one request ask for it by: the flags that replaying, listening and backfilling share.

Invariant: a flag means the same for every command that has it.
"""

from __future__ import annotations

from .option import Option
from .values import items, switch, text

__all__ = ["REQUEST_FLAGS", "data_types", "disconnects", "exchange", "span", "symbols", "whole_request"]

REQUEST_FLAGS = {
    "exchange": "exchange",
    "symbols": "symbols",
    "dataTypes": "data-types",
    "withDisconnectMessages": "with-disconnects",
}
"""What every request calls a field, and the flag it is given by."""


def exchange(group: str, help: str, *, required: bool = False) -> Option:  # noqa: A002 - as Option calls it
    """`--exchange`."""
    return Option(name="exchange", help=help, group=group, parse=text(), metavar="NAME", required=required)


def symbols(group: str, help: str, *, required: bool = False) -> Option:  # noqa: A002
    """`--symbols`."""
    parse = items(str, takes="symbols with commas between them")
    return Option(name="symbols", help=help, group=group, parse=parse, required=required)


def span(group: str, verb: str, *, required: bool = False) -> tuple[Option, Option]:
    """`--from` and `--to`; the verb is what is done with history."""
    start = "Where it starts: an ISO 8601 date, UTC unless it says otherwise"
    return (
        Option(name="from", help=start, group=group, metavar="DATE", required=required),
        Option(name="to", help=f"Where it ends; this moment is no longer {verb}", group=group, metavar="DATE", required=required),
    )


def data_types(group: str, *, required: bool = False) -> Option:
    """`--data-types`."""
    return Option(
        name="data-types",
        help="What to normalize to: trade, book_change, quote_10s, book_snapshot_25_100ms, trade_bar_1m, …",
        group=group,
        parse=items(str, takes="data types with commas between them"),
        required=required,
    )


def disconnects(group: str, help: str) -> Option:  # noqa: A002
    """`--with-disconnects`."""
    return Option(name="with-disconnects", help=help, group=group, parse=switch, default=False)


def whole_request(group: str, help: str) -> Option:  # noqa: A002
    """`--options`."""
    return Option(name="options", help=help, group=group, parse=text(lines=True), metavar="JSON|@FILE")
