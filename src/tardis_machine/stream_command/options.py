"""What the `stream` command is asked: live requests by flags or as JSON.

Invariant: nothing is imported but settings, as `--help` reads this file.
"""

from __future__ import annotations

from ..settings import Option, duration, items, path, text
from ..settings.values import switch

__all__ = ["REQUEST_FLAGS", "STREAM_OPTIONS"]

STREAM_OPTIONS = (
    Option(name="exchange", help="Exchange to listen to", group="stream", parse=text(), metavar="NAME"),
    Option(
        name="symbols", help="Symbols to listen for", group="stream", parse=items(str, takes="symbols with commas between them")
    ),
    Option(
        name="data-types",
        help="What to normalize to: trade, book_change, quote_10s, book_snapshot_25_100ms, trade_bar_1m, …",
        group="stream",
        parse=items(str, takes="data types with commas between them"),
    ),
    Option(
        name="timeout-interval",
        help="How long a connection may be without data before it is made anew; 0 is for ever",
        group="stream",
        parse=duration(0.0, 86_400.0),
        default=10.0,
    ),
    Option(
        name="with-disconnects",
        help="Prints where a connection was lost, too; buses always get that",
        group="stream",
        parse=switch,
        default=False,
    ),
    Option(
        name="with-errors",
        help="Prints what went wrong, too; buses always get that",
        group="stream",
        parse=switch,
        default=False,
    ),
    Option(
        name="record-dir",
        help="Keeps raw messages there too, as the cache directory of a later replay",
        group="stream",
        parse=path,
    ),
    Option(
        name="options",
        help="The whole request as the WebSocket route takes it, or an array of requests; each has a process and a session of its own",
        group="stream",
        parse=text(lines=True),
        metavar="JSON|@FILE",
    ),
)
REQUEST_FLAGS = {
    "exchange": "exchange",
    "symbols": "symbols",
    "dataTypes": "data-types",
    "timeoutIntervalMS": "timeout-interval",
    "withDisconnectMessages": "with-disconnects",
    "withErrorMessages": "with-errors",
}
"""What a request calls a field, and the flag it is given by."""
