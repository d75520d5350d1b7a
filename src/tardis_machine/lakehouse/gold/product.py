"""What a gold product is: a table, what its rows are made of, and the one function that makes them.

Invariant: `compute` is a function of silver (and of the tables that it names) in the windows of its scope, so that a window
computed twice has the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..commits import Commits
from ..lake import Lake
from ..tables import Table
from .touched import Touched
from .windows import CLOCK, MAX_SKEW_US, floor_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["GoldProduct", "Scope", "time_of"]


def time_of(table: Table) -> str:
    """The column that says where in time a table's row is."""
    return "start" if "start" in table.columns else "local_ts"


@dataclass(frozen=True)
class Scope:
    """The windows that are to be computed, and the rows that lie in them."""

    spark: SparkSession
    lake: Lake
    windows: pa.Table
    """In the columns of `touched.WINDOWS`; at least one."""
    interval_us: int
    touched: Touched
    commits: Commits

    @cached_property
    def frame(self) -> DataFrame:
        """The windows, for queries."""
        return self.spark.createDataFrame(self.windows, "exchange STRING, symbol STRING, start TIMESTAMP")

    @cached_property
    def first(self) -> datetime:
        """When the first window starts."""
        found: datetime = pc.min(self.windows["start"]).as_py()
        return found

    @cached_property
    def exchanges(self) -> list[str]:
        """Those that windows are of."""
        return sorted(self.windows["exchange"].unique().to_pylist())

    def reach_days(self, reach_us: int = 0) -> int:
        """How many dates from a window's own its rows may lie."""
        return timedelta(microseconds=reach_us + self.interval_us).days + 1

    def dates(self, reach_us: int = 0) -> list[date]:
        """The dates whose partitions may hold rows of the windows."""
        days = self.reach_days(reach_us)
        starts = self.windows["start"].cast(pa.date32()).unique().to_pylist()
        return sorted({day + timedelta(days=step) for day in starts for step in range(-days, days + 1)})

    def near(self, table: Table, reach_us: int = MAX_SKEW_US) -> DataFrame:
        """The rows around the windows, found by the columns that Delta can skip files by."""
        from pyspark.sql import functions as F  # noqa: N812

        last: datetime = pc.max(self.windows["start"]).as_py()
        return self.lake.read(self.spark, table).where(
            F.col("date").isin(*self.dates(reach_us))
            & F.col("exchange").isin(*self.exchanges)
            & F.col(time_of(table)).between(
                self.first - timedelta(microseconds=reach_us), last + timedelta(microseconds=self.interval_us + reach_us)
            )
        )

    def rows(self, table: Table, *, clock: str = CLOCK) -> DataFrame:
        """The rows that lie in the windows, with their instant (`ts`) and the `start` of their window."""
        placed = (
            self.near(table).selectExpr("*", f"{clock} AS ts").selectExpr("*", f"{floor_to('ts', self.interval_us)} AS start")
        )
        return placed.join(self.frame, ["exchange", "symbol", "start"], "left_semi")

    def in_windows(self, rows: DataFrame, time: str, keys: Sequence[str]) -> DataFrame:
        """Those of the rows that a column of time puts into the windows."""
        from pyspark.sql import functions as F  # noqa: N812

        window = F.expr(floor_to(time, self.interval_us))
        own = self.frame.select(*keys, F.col("start").alias("_window")).distinct()
        return rows.withColumn("_window", window).join(own, [*keys, "_window"], "left_semi").drop("_window")


@dataclass(frozen=True)
class GoldProduct:
    """One product at one interval."""

    name: str
    """As it is asked for: `bars_1m`."""
    table: Table
    keys: tuple[str, ...]
    """What tells its rows apart."""
    reads: frozenset[str]
    """The sources (`writer.SOURCES`), and `top_of_book`, whose new rows touch its windows."""
    interval_us: int
    compute: Callable[[Scope], DataFrame] = field(compare=False)
    only: Mapping[str, object] = field(default_factory=dict, compare=False)
    """Columns that have one value in all its rows: its interval."""
    clock: str = "clock_s"
    """Which clock of a new row says what it touches: `clock_s` or `local_s`."""
    reach_us: int = 0
    """How far before and after itself a new row changes something."""
    by_symbol: bool = True
    """False: its windows are of whole exchanges."""
    reopened: Callable[[Scope], pa.Table] | None = field(default=None, compare=False)
    """Further windows that may have changed, given those that new rows touch."""
    touched_by: frozenset[str] | None = None
    """Of what it reads, the sources whose new rows touch the windows that they lie in; others only reopen windows. None: all."""
    may_vanish: bool = False
    """Whether a row may be there no more when its window is computed again."""

    def windows(self, touched: Touched) -> pa.Table:
        """The windows that new rows touch."""
        sources = self.reads if self.touched_by is None else self.touched_by
        return touched.windows(
            sources, clock=self.clock, length_us=self.interval_us, reach_us=self.reach_us, by_symbol=self.by_symbol
        )

    @property
    def place(self) -> tuple[str, ...]:
        """What its windows are of."""
        return ("exchange", "symbol") if self.by_symbol else ("exchange",)
