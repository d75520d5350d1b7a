"""The options of `stream`: live requests by flags or as JSON.

Invariant: every field of a request has one flag, which `STREAM_REQUEST_FLAGS` names.
"""

from __future__ import annotations

from ..option import Option
from ..values import duration, switch
from .request import REQUEST_FLAGS, data_types, disconnects, exchange, symbols, whole_request

__all__ = ["STREAM_OPTIONS", "STREAM_REQUEST_FLAGS"]

STREAM_REQUEST_FLAGS = {
    **REQUEST_FLAGS,
    "timeoutIntervalMS": "timeout-interval",
    "withErrorMessages": "with-errors",
    "from": "since",
}
"""The fields of a live request, and the flag of each."""

STREAM_OPTIONS = (
    exchange("stream", "Exchange to connect to"),
    symbols("stream", "Symbols to subscribe to"),
    data_types("stream"),
    Option(
        name="since",
        help="Begin with history from this date on, and go on live where it ends: nothing is missing between them",
        group="stream",
        metavar="DATE",
    ),
    Option(
        name="timeout-interval",
        help="Reconnect when a connection has been silent this long; 0 never does",
        group="stream",
        parse=duration(0.0, 86_400.0),
        default=10.0,
    ),
    disconnects("stream", "Print a message when a connection is lost; buses always get it"),
    Option(
        name="with-errors",
        help="Print a message when something goes wrong; buses always get it",
        group="stream",
        parse=switch,
        default=False,
    ),
    whole_request(
        "stream",
        "The whole request as the WebSocket route takes it, or an array of requests; each gets its own process and session",
    ),
)
