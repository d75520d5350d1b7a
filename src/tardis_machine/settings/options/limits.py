"""The options that keep one client from taking what others need: what one request may ask for, and how many run at a time.

Invariant: a default is beyond what clients of the Node server ask for. Who is refused is told the option.
"""

from __future__ import annotations

from ..option import Option
from ..values import duration, integer, size_bytes

__all__ = ["LIMIT_OPTIONS"]

LIMIT_OPTIONS = (
    Option(
        name="max-replays",
        help="How many replays may run at a time; others are told to come back (503 with Retry-After, WebSocket 1013)",
        group="limits",
        parse=integer(1, 100_000),
        default=500,
    ),
    Option(
        name="max-pause",
        help="How long a replay may be paused without a word from its clients; then it ends, as it counts as one of --max-replays",
        group="limits",
        parse=duration(1.0),
        default=3600.0,
    ),
    Option(
        name="max-slices",
        help="How many slices of /v1/data-feeds, and findings of /v1/instruments, may be in memory at a time; others wait in turn",
        group="limits",
        parse=integer(2, 10_000),
        default=64,
    ),
    Option(
        name="max-unread-bytes",
        help="About how much may wait in memory for all slow readers of replays; past it, each has one chunk ready instead of four",
        group="limits",
        parse=size_bytes(0),
        default=32 * 1024**2,
    ),
    Option(
        name="max-request-bytes",
        help="Largest body of a request; bodies that are being read may have eight times that together",
        group="limits",
        parse=size_bytes(1024),
        default=16 * 1024**2,
    ),
    Option(
        name="max-merged-requests",
        help="Requests in one array, and connections in one session of /ws-replay",
        group="limits",
        parse=integer(1, 65_535),
        default=1000,
    ),
    Option(name="max-filters", help="Filters of one request", group="limits", parse=integer(1), default=50_000),
    Option(
        name="max-symbols",
        help="Symbols of one request, those of all its filters together; the replays that run may name five times that together",
        group="limits",
        parse=integer(1),
        default=200_000,
    ),
    Option(name="max-data-types", help="Data types of one request", group="limits", parse=integer(1), default=100),
    Option(
        name="max-snapshot-levels",
        help="Levels of a side in all book snapshots of one request together; book_snapshot_10_1s has 10",
        group="limits",
        parse=integer(1),
        default=20_000,
    ),
    Option(
        name="max-subscription-bytes",
        help="Largest frame that a client of a WebSocket may send",
        group="limits",
        parse=size_bytes(1024),
        default=1024**2,
    ),
    Option(
        name="max-subscriptions",
        help="Frames that a client of /ws-replay may send before its replay begins",
        group="limits",
        parse=integer(1),
        default=10_000,
    ),
)
