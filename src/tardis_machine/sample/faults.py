"""What the stand-in of the history API can be told to do wrong.

Invariant: a fault is a deviation from the right answer; whatever a fault does not name stays right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong answer."""

    status: int = 200
    """Answer this error instead, as JSON."""
    message: str = "The sample history API was told to fail."
    location: str | None = None
    """Redirect to this address."""
    body: Literal["whole", "half", "garbage", "empty", "cut", "hang"] = "whole"
    """`half`: a complete response with half of the slice; `cut`: the connection is closed halfway; `hang`: no answer at all."""
    slice_size: int | Literal["right", "missing"] = "right"
    """What X-Slice-Size says."""
    encoding_header: bool = True
    trailing_newline: bool = True
    chunk_pause_s: float = 0.0
    """Send the body in small pieces, with this pause between them."""
