"""The ratios of a report, and what grows in it: found in its tables, and drawn.

Invariant: a column named `ratio`, `ours/…` or `of …` holds ratios, more being better; `of a core` alone does not. A table whose title
begins with "Growth: " has numbers in its first column, which the others belong to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Curve", "Ratio", "draw_growth", "draw_ratios", "find_growth", "find_ratios"]

_RATIO_COLUMN = re.compile(r"ratio|ours/.+|of (?!a core).+")
_RATIO = re.compile(r"(\d+(?:\.\d+)?)x?")
_GROWTH = "### Growth: "
_GROWING = ("messages/s", "MB")
_SUFFIXES = {"": 1.0, "k": 1e3, "M": 1e6}
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


class Curve(NamedTuple):
    """How something grows with something."""

    label: str
    what: str
    """The column."""
    points: list[tuple[float, float]]


def find_growth(printed: str) -> Iterator[Curve]:
    """The curves in the tables of growth that a benchmark printed.

    >>> list(find_growth("### Growth: clients\\n\\n| clients | MB |\\n| - | -: |\\n| 1 | 9 |\\n| 10 | 1.2 k |"))
    [Curve(label='clients', what='MB', points=[(1.0, 9.0), (10.0, 1200.0)])]
    """
    for part in printed.split(_GROWTH)[1:]:
        label, _, table = part.partition("\n")
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|")
        for what in _GROWING:
            if what in head:
                yield Curve(label, what, [(_number_of(row[0]), _number_of(row[head.index(what)])) for row in rows])


def _number_of(cell: str) -> float:
    number, _, suffix = cell.partition(" ")
    return float(number) * _SUFFIXES[suffix]


def draw_growth(curves: Sequence[Curve], path: Path) -> None:
    """A panel for each column, with a curve for each table."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    columns = list(dict.fromkeys(curve.what for curve in curves))
    labels = list(dict.fromkeys(curve.label for curve in curves))
    figure, panels = plt.subplots(1, len(columns), figsize=(11, 3.5), dpi=110, layout="constrained", squeeze=False)
    for axes, what in zip(panels[0], columns, strict=True):
        for curve in curves:
            if curve.what == what:
                axes.plot(*zip(*curve.points, strict=True), "o-", label=curve.label, color=_COLOURS[labels.index(curve.label)])
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_title(what, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].legend(fontsize=8)
    figure.savefig(path)
    plt.close(figure)


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
