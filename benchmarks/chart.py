"""The ratios of a report: found in its tables, and drawn.

Invariant: a column named `ratio`, `ours/…` or `of …` holds ratios, more being better; `of a core` alone does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Ratio", "draw_ratios", "find_ratios"]

_RATIO_COLUMN = re.compile(r"ratio|ours/.+|of (?!a core).+")
_RATIO = re.compile(r"(\d+(?:\.\d+)?)x?")
_COLOURS = ("#2a6fbb", "#d9732a", "#3a9a5b", "#8a55a8", "#b03a48", "#6b6b6b", "#a88b2a", "#2a9aa8")


class Ratio(NamedTuple):
    """One bar."""

    benchmark: str
    label: str
    value: float


def find_ratios(benchmark: str, printed: str) -> Iterator[Ratio]:
    """Those in the tables that a benchmark printed.

    >>> list(find_ratios("x", "| | ours | of raw |\\n| - | -: | -: |\\n| file | 9 | 0.81 |"))
    [Ratio(benchmark='x', label='file, of raw', value=0.81)]
    """
    head: Sequence[str] = ()
    for line in printed.splitlines():
        if not line.startswith("|"):
            head = ()
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not head:
            head = cells
            continue
        for name, cell in list(zip(head, cells, strict=False))[1:]:
            found = _RATIO.fullmatch(cell)
            if found and _RATIO_COLUMN.fullmatch(name):
                yield Ratio(benchmark, f"{cells[0]}, {name}", float(found[1]))


def draw_ratios(ratios: Sequence[Ratio], path: Path, title: str) -> None:
    """Bars beside a line at 1, on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(ratio.benchmark for ratio in ratios))
    figure, axes = plt.subplots(figsize=(11, 1.2 + 0.26 * len(ratios)), dpi=110, layout="constrained")
    places = range(len(ratios), 0, -1)
    colours = [_COLOURS[names.index(ratio.benchmark) % len(_COLOURS)] for ratio in ratios]
    axes.barh(places, [ratio.value for ratio in ratios], color=colours, height=0.7)
    for place, ratio in zip(places, ratios, strict=True):
        axes.annotate(
            f"{ratio.value:g}", (ratio.value, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7
        )
    axes.set_yticks(list(places), [f"{ratio.benchmark}: {ratio.label}" for ratio in ratios], fontsize=7)
    axes.set_xscale("log")
    axes.axvline(1.0, color="#333333", linewidth=1)
    axes.margins(x=0.1, y=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10)
    figure.savefig(path)
    plt.close(figure)
