"""The options of `replay`: a request by flags or as JSON, where its lines go, or dead letters to send again.

Invariant: every field of a request has one flag, which `REPLAY_REQUEST_FLAGS` names.
"""

from __future__ import annotations

from pathlib import Path

from ..option import Option
from ..values import ValueParser, path, switch, text
from .request import REQUEST_FLAGS, data_types, disconnects, exchange, span, symbols, whole_request

__all__ = ["REPLAY_OPTIONS", "REPLAY_REQUEST_FLAGS"]

REPLAY_REQUEST_FLAGS = {
    **REQUEST_FLAGS,
    "from": "from",
    "to": "to",
    "withDisconnects": "with-disconnects",
    "filters": "filters",
    "speed": "speed",
    "paceEvents": "pace-events",
    "faults": "faults",
}
"""The fields of a replay request, normalized or raw, and the flag of each."""


def _read_dead_letter(given: str) -> Path | bool:
    lowered = given.strip().lower()
    return lowered == "true" if lowered in ("true", "false") else path(given)


REPLAY_OPTIONS = (
    exchange("replay", "Exchange to replay"),
    symbols("replay", "Symbols to replay; by default all"),
    *span("replay"),
    data_types("replay"),
    disconnects(
        "replay", "Mark where the recorder lost its connection: by a disconnect message, or in raw history by an empty line"
    ),
    Option(
        name="filters",
        help="Channels of raw history: a JSON array of {channel, symbols?}; by default all",
        group="replay",
        parse=text(lines=True),
        metavar="JSON|@FILE",
    ),
    Option(
        name="raw",
        help="Replay in the exchange's own format; raw history is not published",
        group="replay",
        parse=switch,
        default=False,
    ),
    Option(
        name="speed",
        help="Seconds of local time played in a second: 1, 10, 0.5, or max",
        group="replay",
        parse=text("max or a number from 0.01 to 100000", "N|max"),
        metavar="N|max",
    ),
    Option(
        name="pace-events",
        help="Publish at that speed too; by default events are published as they are made",
        group="replay",
        parse=switch,
        default=False,
    ),
    Option(
        name="faults",
        help="A bad day on purpose: JSON of drop, duplicate, delay, disconnect, gap and a seed",
        group="replay",
        parse=text(lines=True),
        metavar="JSON|@FILE",
    ),
    whole_request("replay", "The whole request as the HTTP route takes it, or an array of requests to merge"),
    Option(
        name="output",
        help=(
            "File for the lines, compressed if its name ends in .gz or .zst; - is standard output, "
            "which is the default when no bus is on"
        ),
        group="replay",
        parse=path,
        metavar="FILE|-",
    ),
    Option(
        name="dead-letter",
        help="Send dead letters again instead: those of every bus that is on, or those of one bus in this folder",
        group="replay",
        parse=ValueParser(_read_dead_letter, "a folder, or no value", "DIR"),
        bare="true",
    ),
)
