"""Tables that read well in a terminal and in Markdown, and numbers as people say them.

Invariant: a number is shown with how far its rounds lie apart; who reads it can tell a change from noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

__all__ = ["Table", "spread", "to_count", "to_ratio"]


class Table:
    """Rows of text under a title; the first column is to the left, the others to the right."""

    def __init__(self, title: str, *columns: str) -> None:
        self._title = title
        self._rows: list[tuple[str, ...]] = [columns]

    def add(self, *cells: str) -> None:
        """One more row; missing cells are empty."""
        self._rows.append((*cells, *[""] * (len(self._rows[0]) - len(cells))))

    def show(self) -> None:
        """Prints it."""
        widths = [max(len(row[column]) for row in self._rows) for column in range(len(self._rows[0]))]
        rule = "|".join(["", f" {'-' * widths[0]} ", *(f" {'-' * (width - 1)}: " for width in widths[1:]), ""])
        head, *rows = (self._to_line(row, widths) for row in self._rows)
        print(f"\n### {self._title}\n\n{head}\n{rule}", *rows, sep="\n", flush=True)

    @staticmethod
    def _to_line(row: Sequence[str], widths: Sequence[int]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return f"| {' | '.join(cells)} |"


def to_count(value: float) -> str:
    """
    >>> to_count(1_234_567), to_count(81_234), to_count(512)
    ('1.23 M', '81.2 k', '512')
    """
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:.1f} k" if value >= 1e3 else f"{value:.0f}"


def to_ratio(value: float) -> str:
    """
    >>> to_ratio(4.96)
    '5.0x'
    """
    return f"{value:.1f}x"


def spread(values: Sequence[float]) -> str:
    """How far the rounds lie from their median, at most.

    >>> spread([9.0, 10.0, 12.0])
    '±20%'
    """
    middle = median(values)
    return f"±{max(abs(value - middle) for value in values) / middle * 100:.0f}%"
