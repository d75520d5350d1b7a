"""Messages a portion at a time, as one of them may cause hundreds of computed ones.

Invariant: what comes of a portion has about as many bytes as a chunk, or comes of a single message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

__all__ = ["MAX_LEVELS", "PLAIN_WEIGHT", "in_portions"]

MAX_LEVELS = 5_000
"""What comes of a portion at most, in levels of a book, which have some fifty bytes each."""
PLAIN_WEIGHT = 5
"""What a message has that is not computed, by the size of its JSON."""


Item = TypeVar("Item")


def in_portions(messages: list[Item], weight: int) -> Iterator[list[Item]]:
    """The messages, or what stands for each of them, in their order, where each causes at most `weight` levels."""
    size = max(1, MAX_LEVELS // max(1, weight))
    if len(messages) <= size:
        if messages:
            yield messages
        return
    for start in range(0, len(messages), size):
        yield messages[start : start + size]
