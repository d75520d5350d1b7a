"""A chart of an answer: its numeric columns over its first column of times.

Invariant: needs no display. Columns of quantities (volume, amount, count, …) stand as bars in a panel of their own below the
lines, as they share no scale with prices; text columns split each line into one for each value.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LakeError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["draw_chart"]

_QUANTITY = re.compile(r"volume|amount|size|qty|count|trades|rows|liquidations|gaps?$", re.IGNORECASE)
_COLOURS = ("#2a6fbb", "#d9732a", "#3a9a5b", "#8a55a8", "#b03a48", "#6b6b6b", "#a88b2a", "#2a9aa8")
_MAX_SERIES = len(_COLOURS)


def draw_chart(frame: pd.DataFrame, path: Path, title: str) -> None:
    """Draws the frame to a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    time = _time_column(frame)
    groups = _text_columns(frame, time)
    numbers = [name for name in frame.columns if name not in {time, *groups} and _is_number(frame[name])]
    if not numbers:
        raise LakeError("--chart: the answer has no column of numbers to draw")
    lines = [name for name in numbers if not _QUANTITY.search(name)]
    bars = [name for name in numbers if name not in lines]
    heights = [3] * bool(lines) + [1 if lines else 3] * bool(bars)
    figure, panels = plt.subplots(
        len(heights), 1, sharex=True, figsize=(12, 6.75), dpi=120, squeeze=False, layout="constrained", height_ratios=heights
    )
    axes: list[Axes] = list(panels[:, 0])
    ordered = frame.sort_values(time)
    if lines:
        _draw(axes[0], ordered, time, lines, groups, as_bars=False)
    if bars:
        _draw(axes[-1], ordered, time, bars, groups, as_bars=True)
    axes[0].set_title(title, loc="left", fontsize=11, color="#333333")
    figure.savefig(path)
    plt.close(figure)


def _draw(axes: Axes, frame: pd.DataFrame, time: str, names: list[str], groups: list[str], *, as_bars: bool) -> None:
    series = [(name, label, part) for name in names for label, part in _parts(frame, groups)]
    for colour, (name, label, part) in zip(_COLOURS, series, strict=False):
        text = " ".join(filter(None, (name if len(names) > 1 or not label else "", label)))
        values = part[name].astype(float)
        if as_bars:
            instants = part[time]
            width = instants.diff().min() if len(instants) > 1 else None
            axes.bar(instants, values, width=width if width else 0.8, color=colour, alpha=0.75, label=text)
        else:
            axes.plot(part[time], values, color=colour, linewidth=1.2, marker="." if len(part) < 60 else None, label=text)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    if len(series) > 1:
        left_out = len(series) - _MAX_SERIES
        axes.legend(frameon=False, fontsize=8, title=f"and {left_out} more" if left_out > 0 else None)
    else:
        axes.set_ylabel(names[0])


def _parts(frame: pd.DataFrame, groups: list[str]) -> list[tuple[str, pd.DataFrame]]:
    if not groups:
        return [("", frame)]
    return [(" ".join(map(str, keys)), part) for keys, part in frame.groupby(groups, sort=True, dropna=False)]


def _time_column(frame: pd.DataFrame) -> str:
    for name in frame.columns:
        if frame[name].dtype.kind == "M" or (len(frame) and isinstance(_first(frame, name), datetime | date)):
            return str(name)
    raise LakeError("--chart: the answer has no column of times or dates to draw over")


def _text_columns(frame: pd.DataFrame, time: str) -> list[str]:
    # A text that is the same in all rows tells nothing apart.
    return [
        str(name) for name in frame.columns if name != time and isinstance(_first(frame, name), str) and frame[name].nunique() > 1
    ]


def _is_number(values: pd.Series[Any]) -> bool:
    from decimal import Decimal

    return values.dtype.kind in "iuf" or isinstance(next(iter(values.dropna()), None), Decimal)


def _first(frame: pd.DataFrame, name: str) -> Any:
    return next(iter(frame[name].dropna()), None)
