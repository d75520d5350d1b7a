"""Arrays of arrays within a message, left as the text they came as: nearly all are the levels of a book, which are only written again.

Invariant: whoever looks into one finds the lists that the parser would have made, or the levels that are made of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import msgspec
import orjson

__all__ = ["LevelRows", "Rows", "Unread", "is_array"]


class Unread(msgspec.Struct, gc=False, eq=False):
    """A sequence that is made each time that somebody looks into it. It is never empty."""

    text: bytes
    """`[["8500.5","100"],["8501","0"]]`: rows of nothing but plain numbers, and text without escapes."""

    @abstractmethod
    def read(self) -> list[Any]:
        """What is in it."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, place: Any) -> Any:
        return self.read()[place]

    def __eq__(self, other: object) -> bool:
        return self.read() == (other.read() if isinstance(other, Unread) else other)

    __hash__ = None  # type: ignore[assignment]


class Rows(Unread, gc=False, eq=False):
    """Rows as they came."""

    columns: int
    """Of the shortest row."""
    numbers: int = 0
    """Bits of the first columns that hold nothing but numbers; and, four higher, of those that hold these or plain numbers as text."""

    def read(self) -> list[Any]:
        """The lists that the parser makes."""
        rows: list[Any] = orjson.loads(self.text)
        return rows


class LevelRows(Unread, gc=False, eq=False):
    """Levels of a book: what `levels` and its like in `_parsing` make of rows."""

    first: int = 0
    """The column of the price."""
    is_as_sent: bool = False
    """Whether numbers are passed on as they are; else they are read."""
    removed_by: str | None = None
    """What a row begins with that removes its level."""
    side: str | None = None
    """What a row begins with that is of this side; None: all are."""

    def read(self) -> list[Any]:
        """The levels."""
        from ._parsing import levels, levels_as_sent  # what is compiled of it needs this module first

        rows = [row for row in orjson.loads(self.text) if self.side is None or row[0] == self.side]
        return (
            levels_as_sent(rows, self.first, self.removed_by) if self.is_as_sent else levels([row[self.first :] for row in rows])
        )


def is_array(value: Any) -> bool:
    """Whether JSON has an array there."""
    kind = type(value)
    return kind is list or kind is Rows
