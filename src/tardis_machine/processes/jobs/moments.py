"""Finished bytes by the instants of their messages.

Invariant: the moments of a part follow one another without a gap, and hold all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .contract import Moment

__all__ = ["to_moments"]


def to_moments(instants: Sequence[int], sizes: Sequence[int], owners: Sequence[int] | None = None) -> list[Moment]:
    """A moment for each run of messages of one instant and one owner, out of these and the bytes of each message.

    >>> to_moments([5, 5, 6], [10, 20, 30])
    [(5, 30, 2, 0), (6, 60, 1, 0)]
    """
    moments: list[Moment] = []
    end = count = 0
    last, last_owner = (instants[0], owners[0] if owners else 0) if instants else (0, 0)
    for place, (instant, size) in enumerate(zip(instants, sizes, strict=True)):
        owner = owners[place] if owners else 0
        if instant != last or owner != last_owner:
            moments.append((last, end, count, last_owner))
            last, last_owner, count = instant, owner, 0
        end += size
        count += 1
    if count:
        moments.append((last, end, count, last_owner))
    return moments
