"""A chart of an answer: its numeric columns over its first column of instants; or, where it has no numbers but `start` and `end`, as gaps
have, its rows as spans of time.

Invariant: needs no display. What shares no scale shares no panel: prices, spreads and rates stand above each other, quantities (volume,
amount, count, …) as bars below them. Text columns split each line into one for each value.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import LakeError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["Panel", "draw_chart", "plan_panels"]

_QUANTITY = re.compile(r"volume|amount|size|qty|count|trades|rows|liquidations|gaps?$", re.IGNORECASE)
# What they count from is arbitrary.
_NO_MEASURE = re.compile(r"sequence$", re.IGNORECASE)
_COLOURS = ("#2a6fbb", "#d9732a", "#3a9a5b", "#8a55a8", "#b03a48", "#6b6b6b", "#a88b2a", "#2a9aa8")
_MAX_SERIES = len(_COLOURS)
_SAME_SCALE = 50
"""How many times as large as another a column may be for both to be read in one panel."""
_MOST_BARS = 1_000
_LANE_COLUMNS = 3
_MAX_LANES = 40
_HEIGHTS = {"lines": 3, "bars": 1, "spans": 3}


class Panel(NamedTuple):
    """What is drawn in one place."""

    kind: str
    """`lines`, `bars` or `spans`."""
    columns: list[str]


def draw_chart(frame: pd.DataFrame, path: Path, title: str) -> None:
    """Draws the frame to a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    time, panels = plan_panels(frame)
    figure, places = plt.subplots(
        nrows=len(panels),
        sharex=True,
        figsize=(12, max(6.75, 2.25 * len(panels))),
        dpi=120,
        squeeze=False,
        layout="constrained",
        height_ratios=[_HEIGHTS[panel.kind] for panel in panels],
    )
    ordered, groups = frame.sort_values(time), _text_columns(frame, time)
    for axes, panel in zip(places[:, 0], panels, strict=True):
        if panel.kind == "spans":
            _draw_spans(axes, ordered, panel.columns, groups[:_LANE_COLUMNS])
        else:
            _draw(axes, ordered, time, panel.columns, groups, as_bars=panel.kind == "bars")
    places[0, 0].set_title(title, loc="left", fontsize=11, color="#333333")
    figure.savefig(path, format="png")
    plt.close(figure)


def plan_panels(frame: pd.DataFrame) -> tuple[str, list[Panel]]:
    """The column of times, and what is drawn over it, from top to bottom."""
    time = _time_column(frame)
    numbers = [str(name) for name in frame.columns if name != time and not _NO_MEASURE.search(name) and _is_number(frame[name])]
    if not numbers:
        if {"start", "end"} <= {*frame.columns} and _is_instant(frame, "start") and _is_instant(frame, "end"):
            return "start", [Panel("spans", ["start", "end"])]
        raise LakeError("the answer can't be drawn by --chart: it has no column of numbers, nor a start and an end")
    bars = [name for name in numbers if _QUANTITY.search(name)]
    lines = [Panel("lines", names) for names in _by_scale(frame, [name for name in numbers if name not in bars])]
    return time, [*lines, Panel("bars", bars)] if bars else lines


def _by_scale(frame: pd.DataFrame, names: list[str]) -> list[list[str]]:
    """Columns that can be read side by side; in the order in which they were asked for."""
    sizes = {name: float(frame[name].dropna().astype(float).abs().median()) for name in names}
    panels: list[list[str]] = []
    for name in sorted(names, key=sizes.__getitem__, reverse=True):
        if panels and sizes[name] * _SAME_SCALE >= sizes[panels[-1][0]]:
            panels[-1].append(name)
        else:
            panels.append([name])
    return sorted((sorted(panel, key=names.index) for panel in panels), key=lambda panel: names.index(panel[0]))


def _draw(axes: Axes, frame: pd.DataFrame, time: str, names: list[str], groups: list[str], *, as_bars: bool) -> None:
    series = [(name, label, part) for name in names for label, part in _parts(frame, groups)]
    for colour, (name, label, part) in zip(_COLOURS, series, strict=False):
        text = " ".join(filter(None, (name if len(names) > 1 or not label else "", label)))
        known = part.dropna(subset=[name])
        values = known[name].astype(float)
        if as_bars:
            instants = known[time]
            # Of instants that come closer than a line is wide, each is still seen.
            span = instants.max() - instants.min()
            width = max(instants.diff().min(), span / _MOST_BARS) if span else 0.8
            axes.bar(instants, values, width=width, color=colour, alpha=0.75, label=text)
        else:
            axes.plot(known[time], values, color=colour, linewidth=1.2, marker="." if len(known) < 60 else None, label=text)
    _tidy(axes, "y")
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    if len(names) == 1:
        axes.set_ylabel(names[0])
    if len(series) > 1:
        left_out = len(series) - _MAX_SERIES
        axes.legend(frameon=False, fontsize=8, title=f"and {left_out} more" if left_out > 0 else None)


def _draw_spans(axes: Axes, frame: pd.DataFrame, names: list[str], groups: list[str]) -> None:
    """A lane for each value of the text columns; spans of one lane in the colour of its last word."""
    import pandas as pd

    begins, ends = (pd.to_datetime(frame[name], utc=True) for name in names)
    # What has not ended lasts.
    lengths = ends.fillna(max(begins.max(), ends.max()) if ends.notna().any() else begins.max()) - begins
    lanes = _parts(frame, groups)[:_MAX_LANES]
    colours = dict(zip(dict.fromkeys(label.rpartition(" ")[2] for label, _ in lanes), _COLOURS * _MAX_LANES, strict=False))
    axes.use_sticky_edges = False
    for place, (label, part) in enumerate(lanes):
        colour, rows = colours[label.rpartition(" ")[2]], part.index
        # Spans of a moment are seen by their edge.
        axes.barh([place] * len(part), lengths[rows], left=begins[rows], color=colour, edgecolor=colour, linewidth=1.5)
    axes.set_yticks(range(len(lanes)), [label for label, _ in lanes])
    axes.invert_yaxis()
    _tidy(axes, "x")


def _tidy(axes: Axes, grid: Any) -> None:
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _parts(frame: pd.DataFrame, groups: list[str]) -> list[tuple[str, pd.DataFrame]]:
    if not groups:
        return [("", frame)]
    found = frame.groupby(groups, sort=True, dropna=False)
    return [(" ".join(key for key in keys if isinstance(key, str)), part) for keys, part in found]


def _time_column(frame: pd.DataFrame) -> str:
    dates = [str(name) for name in frame.columns if isinstance(_first(frame, name), date)]
    for name in [*(name for name in frame.columns if _is_instant(frame, name)), *dates]:
        return str(name)
    raise LakeError("the answer can't be drawn by --chart: it has no column of times or dates")


def _is_instant(frame: pd.DataFrame, name: str) -> bool:
    return frame[name].dtype.kind == "M" or isinstance(_first(frame, name), datetime)


def _text_columns(frame: pd.DataFrame, time: str) -> list[str]:
    # A text that is the same in all rows tells nothing apart.
    return [
        str(name) for name in frame.columns if name != time and isinstance(_first(frame, name), str) and frame[name].nunique() > 1
    ]


def _is_number(values: pd.Series[Any]) -> bool:
    from decimal import Decimal

    known = values.dropna()
    return len(known) > 0 and (values.dtype.kind in "iuf" or isinstance(known.iloc[0], Decimal))


def _first(frame: pd.DataFrame, name: str) -> Any:
    return next(iter(frame[name].dropna()), None)
