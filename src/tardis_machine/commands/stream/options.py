"""What the `stream` command is asked: live requests by flags or as JSON.

Invariant: nothing is imported but settings, as `--help` reads this file.
"""

from __future__ import annotations

from ...settings import Option, duration, path, request_options, switch
from ...settings.request_options import data_types, disconnects, exchange, symbols, whole_request

__all__ = ["REQUEST_FLAGS", "STREAM_OPTIONS"]

STREAM_OPTIONS = (
    exchange("stream", "Exchange to listen to"),
    symbols("stream", "Symbols to listen for"),
    data_types("stream"),
    Option(
        name="timeout-interval",
        help="How long a connection may be without data before it is made anew; 0 is for ever",
        group="stream",
        parse=duration(0.0, 86_400.0),
        default=10.0,
    ),
    disconnects("stream", "Prints where a connection was lost, too; buses always get that"),
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
    whole_request(
        "stream",
        "The whole request as the WebSocket route takes it, or an array of requests; each has a process and a session of its own",
    ),
)
REQUEST_FLAGS = {
    **request_options.REQUEST_FLAGS,
    "timeoutIntervalMS": "timeout-interval",
    "withErrorMessages": "with-errors",
}
"""What a request calls a field, and the flag it is given by."""
