"""Shifts the times inside messages, as an exchange with a wrong clock would send them.

Invariant: a shifted time keeps its format, and nothing else in the message changes.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

__all__ = ["shift_times"]


def shift_times(message: bytes, times: re.Pattern[bytes], ms: int) -> bytes:
    """The message with every time moved by `ms` milliseconds. The one group of the pattern `times` finds each of them."""

    def shifted(match: re.Match[bytes]) -> bytes:
        start, end = match.start(1) - match.start(), match.end(1) - match.start()
        return match[0][:start] + _shift(match[1].decode(), ms).encode() + match[0][end:]

    return times.sub(shifted, message)


def _shift(text: str, ms: int) -> str:
    if "T" in text:
        moved = datetime.fromisoformat(text) + timedelta(milliseconds=ms)
        fraction = text.partition(".")[2].rstrip("Z")
        return f"{moved:%Y-%m-%dT%H:%M:%S}.{moved.microsecond:06d}"[: 20 + len(fraction)] + "Z"
    if "." in text:
        return f"{float(text) + ms / 1_000:.{len(text.partition('.')[2])}f}"
    # Sixteen digits are microseconds.
    return str(int(text) + ms * (1_000 if len(text) == 16 else 1))
