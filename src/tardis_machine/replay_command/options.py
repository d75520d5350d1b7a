"""What the `replay` command is asked: a request by flags or as JSON, where its lines go, or dead letters to send again.

Invariant: nothing is imported but settings, as `--help` reads this file.
"""

from __future__ import annotations

from pathlib import Path

from ..settings import Option, ValueParser, items, path, text
from ..settings.values import switch

__all__ = ["REPLAY_OPTIONS", "REQUEST_FLAGS", "STDOUT"]

STDOUT = Path("-")


def _read_dead_letter(given: str) -> Path | bool:
    lowered = given.strip().lower()
    return lowered == "true" if lowered in ("true", "false") else path(given)


def _names(takes: str) -> ValueParser[tuple[str, ...]]:
    return items(str, takes=takes)


REQUEST = (
    Option(name="exchange", help="Exchange to replay", group="replay", parse=text(), metavar="NAME"),
    Option(name="symbols", help="Symbols, by default all", group="replay", parse=_names("symbols with commas between them")),
    Option(name="from", help="Where it starts: an ISO 8601 date, UTC unless it says otherwise", group="replay", metavar="DATE"),
    Option(name="to", help="Where it ends; this moment is no longer replayed", group="replay", metavar="DATE"),
    Option(
        name="data-types",
        help="What to normalize to: trade, book_change, quote_10s, book_snapshot_25_100ms, trade_bar_1m, …",
        group="replay",
        parse=_names("data types with commas between them"),
    ),
    Option(
        name="with-disconnects",
        help="Says where the recorder lost its connection: a disconnect message, or in raw history an empty line",
        group="replay",
        parse=switch,
        default=False,
    ),
    Option(
        name="filters",
        help="Channels of raw history: a JSON array of {channel, symbols?}, by default all",
        group="replay",
        parse=text(lines=True),
        metavar="JSON|@FILE",
    ),
)
REQUEST_FLAGS = {
    "exchange": "exchange",
    "symbols": "symbols",
    "from": "from",
    "to": "to",
    "dataTypes": "data-types",
    "withDisconnectMessages": "with-disconnects",
    "withDisconnects": "with-disconnects",
    "filters": "filters",
}
"""What a request calls a field, and the flag it is given by."""

REPLAY_OPTIONS = (
    *REQUEST,
    Option(
        name="raw",
        help="Replays in the exchange's own format; such history is not published",
        group="replay",
        parse=switch,
        default=False,
    ),
    Option(
        name="options",
        help="The whole request as the HTTP route takes it, or an array of requests to be merged",
        group="replay",
        parse=text(lines=True),
        metavar="JSON|@FILE",
    ),
    Option(
        name="output",
        help="File for the lines, compressed where it ends in .gz or .zst; - is standard output, which is the default where no bus is on",
        group="replay",
        parse=path,
        metavar="FILE|-",
    ),
    Option(
        name="dead-letter",
        help="Sends dead letters again instead: those of each bus that is on, or those of one bus in a folder",
        group="replay",
        parse=ValueParser(_read_dead_letter, "a folder, or nothing", "DIR"),
        bare="true",
    ),
)
