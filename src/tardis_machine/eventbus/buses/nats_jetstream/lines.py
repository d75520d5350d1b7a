"""Records as lines of the NATS protocol, ready to be written.

Invariant: pure; what a route's lines have in common is made once, and no value can end its line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from ....bronze.event import Event
from ...contract import Route

__all__ = ["HEADER_NAME", "HEADROOM_BYTES", "IN_FLIGHT_MAX", "LineParts", "numbers", "sequence_ends", "to_line", "to_parts"]

IN_FLIGHT_MAX = 8000
"""Records of one batch; a stream holds 10,000 that it has not stored yet, and refuses more."""
HEADROOM_BYTES = 512
"""What the protocol adds to the headers: their line ends, the version line, and the deduplication id."""
HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NOT_IN_NAMES = re.compile(r"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
# Two ids of 32 digits, and what ends the headers.
_VARYING_BYTES = 68


class LineParts(NamedTuple):
    """What the lines of one route have in common."""

    head: bytes
    header_bytes: int
    before_id: bytes
    between_ids: bytes
    also: bytes
    """What stands between the event's id and the same id once more; empty where there is no second header for it."""


def to_parts(route: Route) -> LineParts:
    """What its lines have in common."""
    before = b"NATS/1.0\r\n" + _to_headers(route.headers_before) + b"eventId: "
    between = b"\r\n" + _to_headers(route.headers_after) + b"Nats-Msg-Id: " + _one_line(route.session_id.encode()) + b"-"
    also = f"\r\n{route.also_id_header}: ".encode() if route.also_id_header else b""
    header_bytes = len(before) + len(between) + _VARYING_BYTES + (len(also) + 32 if also else 0)
    return LineParts(f"HPUB {route.destination} ".encode(), header_bytes, before, between, also)


def _to_headers(headers: Sequence[tuple[str, bytes]]) -> bytes:
    # Names are checked at the start, but for those that the request's metadata has.
    return b"".join(_NOT_IN_NAMES.sub("-", name).encode() + b": " + _one_line(value) + b"\r\n" for name, value in headers)


def _one_line(value: bytes) -> bytes:
    return b" ".join(value.split(b"\n")).replace(b"\r", b" ").strip()


def to_line(event: Event, parts: LineParts, reply: bytes, end: bytes) -> bytes:
    """An event as the protocol has it: HPUB subject reply header-size size, headers, value."""
    value, event_id = event.value, event.event_id.hex().encode()
    head, header_bytes, before, between, also = parts
    if also:
        before = b"%b%b%b" % (before, event_id, also)
    return b"%b%b%b %d %d\r\n%b%b%b%b\r\n\r\n%b\r\n" % (
        head,
        reply,
        end,
        header_bytes,
        header_bytes + len(value),
        before,
        event_id,
        between,
        event_id,
        value,
    )


@cache
def numbers() -> list[bytes]:
    """Ends of reply subjects of records that are confirmed one by one."""
    return [b"%d" % number for number in range(IN_FLIGHT_MAX)]


@cache
def _appending() -> list[bytes]:
    """Ends of reply subjects: how many records a note of progress stands for at most, what a hole does, number, operation."""
    return [b"65535.fail.%d.1.$FI" % number for number in range(1, IN_FLIGHT_MAX + 1)]


def sequence_ends(count: int) -> list[bytes]:
    """The first begins a sequence (0), the last one ends it (2), those between add to it (1)."""
    ends = _appending()[:count]
    ends[0] = b"65535.fail.1.0.$FI"
    ends[-1] = b"65535.fail.%d.2.$FI" % count
    return ends
