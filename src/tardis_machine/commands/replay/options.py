"""What the `replay` command is asked: a request by flags or as JSON, where its lines go, or dead letters to send again.

Invariant: nothing is imported but settings, as `--help` reads this file.
"""

from __future__ import annotations

from pathlib import Path

from ...settings import Option, ValueParser, path, request_options, switch, text
from ...settings.request_options import data_types, disconnects, exchange, span, symbols, whole_request

__all__ = ["REPLAY_OPTIONS", "REQUEST_FLAGS", "STDOUT"]

STDOUT = Path("-")


def _read_dead_letter(given: str) -> Path | bool:
    lowered = given.strip().lower()
    return lowered == "true" if lowered in ("true", "false") else path(given)


REQUEST = (
    exchange("replay", "Exchange to replay"),
    symbols("replay", "Symbols, by default all"),
    *span("replay", "replayed"),
    data_types("replay"),
    disconnects("replay", "Says where the recorder lost its connection: a disconnect message, or in raw history an empty line"),
    Option(
        name="filters",
        help="Channels of raw history: a JSON array of {channel, symbols?}, by default all",
        group="replay",
        parse=text(lines=True),
        metavar="JSON|@FILE",
    ),
)
REQUEST_FLAGS = {
    **request_options.REQUEST_FLAGS,
    "from": "from",
    "to": "to",
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
    whole_request("replay", "The whole request as the HTTP route takes it, or an array of requests to be merged"),
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
