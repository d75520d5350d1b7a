"""As-of joins: for each row of one table the row of another that was last known at its instant, or some time before or after it.

A symbol that everybody trades must not be the work of one task. So rows are cut by time as well as by their keys, into buckets:

- in a batch each bucket is told the last row of the buckets before it, which are few numbers, and then is sorted by itself
- of a stream a bucket also holds what it needs of the time around it (`max_age` and the horizons), until the watermark says that nothing
  more comes; then its rows are given out, once

Invariant: the answer is that of the definition, whatever the buckets: of the rows of `right` with the same keys whose time is before the
instant (or at it, where `at_same_instant`) and not more than `max_age` before it, the last one. Of rows of one time the last one is the
greatest by `order`, then by its columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa  # Spark reads the hints of its functions

from ..errors import OptionsError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Matching", "asof_join", "check_new", "join_at", "length_us"]

_UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def length_us(name: str, text: str) -> int:
    """A length of time in microseconds, `-` before it where it goes back; `name` is the argument that it was given as."""
    found = re.fullmatch(r"(-?)(\d{1,9})(us|ms|s|m|h|d)", text)
    if found is None:
        raise OptionsError(f"{name}: {text!r} is no length of time; it takes such as 100ms, 1s, -10s, 5m and 1h", name)
    return int(found[1] + found[2]) * _UNITS_US[found[3]]


@dataclass(frozen=True)
class Matching:
    """Which rows belong together."""

    on: str
    right_on: str
    keys: Sequence[tuple[str, str]]
    """Columns that must be equal, of the left and of the right."""
    max_age_us: int | None
    at_same_instant: bool
    order: Sequence[str]
    bucket_us: int
    watermark: str

    @classmethod
    def of(
        cls,
        *,
        on: str,
        right_on: str | None,
        by: Sequence[str] | Mapping[str, str],
        max_age: str | None,
        at_same_instant: bool,
        order: Sequence[str],
        bucket: str,
        watermark: str,
    ) -> Matching:
        """As the arguments of `asof_join` say it."""
        keys = [*by.items()] if isinstance(by, Mapping) else [(name, name) for name in by]
        max_age_us = None if max_age is None else length_us("max_age", max_age)
        if max_age_us is not None and max_age_us < 0:
            raise OptionsError(f"max_age: expected a length of time that is not negative, got {max_age!r}", "max_age")
        bucket_us = length_us("bucket", bucket)
        if bucket_us <= 0:
            raise OptionsError(f"bucket: expected a length of time above zero, got {bucket!r}", "bucket")
        # As Spark spells it.
        late = f"{length_us('watermark', watermark)} microseconds"
        return cls(on, right_on or on, keys, max_age_us, at_same_instant, order, bucket_us, late)


def asof_join(
    left: DataFrame,
    right: DataFrame,
    *,
    on: str = "local_ts",
    right_on: str | None = None,
    by: Sequence[str] | Mapping[str, str] = ("exchange", "symbol"),
    horizon: str = "0s",
    max_age: str | None = "1m",
    at_same_instant: bool = False,
    order: Sequence[str] = (),
    name: str = "asof",
    bucket: str = "5m",
    watermark: str = "10s",
) -> DataFrame:
    """The rows of `left`, each with the row of `right` that was last known at its instant, as the struct `name`; null where there is none.

    The instant is the column `on` plus `horizon`, which may be negative; `right_on` is the clock of `right`, by default the same column.
    `by` names the columns that must be equal; a mapping of left to right columns joins other symbols: `{"hedge": "symbol"}`.
    `max_age=None` takes a row of any age. On a batch `bucket` is what one task sorts at a time. On streams both sides must be streams, rows
    may come `watermark` late, and `max_age` is needed; rows come out when their bucket is over, and one without a time never does.

    with_quotes = asof_join(trades, tops, horizon="10s")
    """
    matching = Matching.of(
        on=on,
        right_on=right_on,
        by=by,
        max_age=max_age,
        at_same_instant=at_same_instant,
        order=order,
        bucket=bucket,
        watermark=watermark,
    )
    horizon_us = length_us("horizon", horizon)
    check_new("left", left, name)
    return join_at(left, right, matching, {name: f"{horizon_us}L"}, (horizon_us, horizon_us))


def check_new(side: str, rows: DataFrame, *names: str) -> None:
    """OptionsError where a column that is to be added is there already."""
    there = {column.casefold() for column in rows.columns}
    for name in names:
        if name.casefold() in there:
            raise OptionsError(f"{side}: it has a column {name!r} already; rename that, or drop it", side)


def join_at(
    left: DataFrame, right: DataFrame, matching: Matching, points: Mapping[str, str], reach: tuple[int, int]
) -> DataFrame:
    """The rows of `left` with a struct of `right` for each of `points`: how far it is from the row's instant, in SQL and microseconds.

    `reach`: the least and the greatest that a point may be.
    """
    if left.isStreaming != right.isStreaming:
        raise OptionsError(
            "right: expected a stream as left is one, or a batch as left is one; one of each can't be joined", "right"
        )
    _check(left, right, matching)
    if left.isStreaming:
        return _join_streams(left, right, matching, points, reach)
    for name, point in points.items():
        left = _join_batch(left, right, matching, name, point)
    return left


def _check(left: DataFrame, right: DataFrame, matching: Matching) -> None:
    """OptionsError for a column that is not there, or can't serve; Spark's own would name ours."""
    asked = [("on", "left", left, matching.on), ("right_on", "right", right, matching.right_on)]
    for ours, theirs in matching.keys:
        asked += [("by", "left", left, ours), ("by", "right", right, theirs)]
    asked += [("order", "right", right, name) for name in matching.order]
    for argument, side, rows, name in asked:
        kinds = {field.name.casefold(): field.dataType.typeName() for field in rows.schema}
        kind = kinds.get(name.casefold())
        if kind is None:
            raise OptionsError(f"{argument}: {side} has no column {name!r}; it has {', '.join(rows.columns)}", argument)
        if argument in ("on", "right_on") and kind != "timestamp":
            raise OptionsError(f"{argument}: expected a TIMESTAMP, {name} of {side} is of type {kind}", argument)
    maps = [field.name for field in right.schema if "map<" in field.dataType.simpleString()]
    if maps:
        raise OptionsError(
            f"right: {', '.join(maps)} is a map, and maps have no order by which the last of several rows is told; "
            f"leave it out: right.drop({', '.join(map(repr, maps))})",
            "right",
        )


def _sides(left: DataFrame, right: DataFrame, matching: Matching) -> tuple[DataFrame, DataFrame]:
    """Both with keys of the same names, their time, and all of their columns as one."""
    from pyspark.sql import functions as F  # noqa: N812

    def prepared(rows: DataFrame, time: str, keys: Sequence[str], whole: str, *further: Column) -> DataFrame:
        own = [F.col(f"`{name}`").alias(f"_key{place}") for place, name in enumerate(keys)]
        columns = F.struct(*(F.col(f"`{name}`") for name in rows.columns)).alias(whole)
        return rows.select(*own, F.col(f"`{time}`").alias("_time"), columns, *further)

    ordering = [F.col(f"`{name}`").alias(f"_order{place}") for place, name in enumerate(matching.order)]
    ours = prepared(left, matching.on, [name for name, _ in matching.keys], "_row")
    theirs = prepared(right, matching.right_on, [name for _, name in matching.keys], "_found", *ordering)
    # What has no time or lacks a key is equal to nothing.
    return ours, theirs.dropna(subset=["_time", *_keys(matching)])


def _keys(matching: Matching) -> list[str]:
    return [f"_key{place}" for place in range(len(matching.keys))]


def _orders(matching: Matching) -> list[str]:
    return [f"_order{place}" for place in range(len(matching.order))]


def _join_batch(left: DataFrame, right: DataFrame, matching: Matching, name: str, point: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    keys, orders = _keys(matching), _orders(matching)
    # The point may be a column of the left.
    ours, theirs = _sides(left.withColumn("_point", F.expr(point)), right, matching)
    # At one instant what comes first does not see what comes after it.
    asks, tells = (2, 1) if matching.at_same_instant else (0, 1)
    asked = ours.selectExpr(*keys, "_row", "unix_micros(_time) + _row._point AS _at", f"{asks} AS _side")
    told = theirs.selectExpr(*keys, *orders, "_found", "unix_micros(_time) AS _at", f"{tells} AS _side")
    bucket = F.expr(f"_at - pmod(_at, {matching.bucket_us}L)")
    both = told.unionByName(asked, allowMissingColumns=True).withColumn("_bucket", bucket)
    rank = ["_at", *orders, "_found"]
    ends = both.groupBy(*keys, "_bucket").agg(
        F.max(F.when(F.col("_side") == tells, F.struct(*rank))).alias("_last"),
        F.max(F.col("_side") == asks).alias("_is_asked"),
    )
    before = Window.partitionBy(*keys).orderBy("_bucket").rowsBetween(Window.unboundedPreceding, -1)
    carried = ends.withColumn("_last", F.last("_last", ignorenulls=True).over(before)).where("_is_asked AND _last IS NOT NULL")
    seeds = carried.select(*keys, "_bucket", *(F.col(f"_last.{column}").alias(column) for column in rank)).withColumn(
        "_side", F.lit(tells)
    )
    until_now = (
        Window.partitionBy(*keys, "_bucket")
        .orderBy("_at", "_side", *orders, "_found")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    known = F.last(F.when(F.col("_side") == tells, F.struct("_at", "_found")), ignorenulls=True).over(until_now)
    joined = both.unionByName(seeds, allowMissingColumns=True).withColumn("_known", known).where(F.col("_side") == asks)
    is_fresh = "true" if matching.max_age_us is None else f"_at - _known._at <= {matching.max_age_us}L"
    found = F.expr(f"CASE WHEN {is_fresh} THEN _known._found END").alias(name)
    return joined.select(*(F.col(f"_row.`{column}`") for column in left.columns), found)


def _join_streams(
    left: DataFrame, right: DataFrame, matching: Matching, points: Mapping[str, str], reach: tuple[int, int]
) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    if matching.max_age_us is None:
        raise OptionsError("max_age: expected a length of time, got None: a stream can't remember every row for ever", "max_age")
    keys, orders = _keys(matching), _orders(matching)
    # A bucket has the rows of `left` of a time, and those of `right` that their points may need.
    first_us, last_us = min(0, reach[0] - matching.max_age_us), max(0, reach[1])
    bucket_us = max(matching.bucket_us, last_us - first_us)
    span = f"{bucket_us + last_us - first_us} microseconds", f"{bucket_us} microseconds", f"{first_us % bucket_us} microseconds"
    for place, point in enumerate(points.values()):
        left = left.withColumn(f"_point{place}", F.expr(point))
    ours, theirs = (side.withWatermark("_time", matching.watermark) for side in _sides(left, right, matching))
    both = ours.unionByName(theirs, allowMissingColumns=True).withColumn("_span", F.window("_time", *span))
    is_own = f"unix_micros(_time) - unix_micros(_span.start) + {first_us} BETWEEN 0 AND {bucket_us - 1}"
    needed = both.where(f"_row IS NULL OR {is_own}").withColumn("_at", F.expr("unix_micros(_time)"))
    gathered = needed.groupBy(*keys, "_span").agg(
        F.expr("collect_list(struct(_at, _row)) FILTER (WHERE _row IS NOT NULL)").alias("_rows"),
        F.expr(f"collect_list(struct({', '.join(['_at', *orders, '_found'])})) FILTER (WHERE _row IS NULL)").alias("_told"),
    )
    spread = gathered.where("size(_rows) > 0").withColumn("_told", F.expr("sort_array(_told)"))
    find = _finder(matching.max_age_us, at_same_instant=matching.at_same_instant)
    for place in range(len(points)):
        asked = F.expr(f"transform(_rows, item -> item._at + item._row._point{place})")
        spread = spread.withColumn(f"_place{place}", find(asked, F.expr("transform(_told, item -> item._at)")))
    found = ", ".join(f"get(_told, get(_place{place}, i))._found AS _found{place}" for place in range(len(points)))
    rows = spread.select(F.expr(f"explode(transform(_rows, (item, i) -> struct(item._row AS _row, {found})))").alias("_item"))
    names = [column for column in left.columns if column not in {f"_point{place}" for place in range(len(points))}]
    return rows.select(
        *(F.col(f"_item._row.`{column}`") for column in names),
        *(F.col(f"_item._found{place}").alias(name) for place, name in enumerate(points)),
    )


def _finder(max_age_us: int, *, at_same_instant: bool) -> Callable[[Column, Column], Column]:
    """A function of Spark's: for instants the places of what was last told before them, by when that was told, in order; -1: none."""
    from pyspark.sql.pandas.functions import arrow_udf

    side: Literal["left", "right"] = "right" if at_same_instant else "left"

    def find(asked: pa.Array, told: pa.Array) -> pa.Array:
        import numpy as np

        found = []
        for instants, times in zip(asked, told, strict=True):
            at, known = (np.asarray(part.values, np.int64) for part in (instants, times))
            places = np.searchsorted(known, at, side) - 1
            if len(known):
                places[(places >= 0) & (at - known[places] > max_age_us)] = -1
            found.append(places.astype(np.int32))
        return pa.array(found, pa.list_(pa.int32()))

    function: Callable[[Column, Column], Column] = arrow_udf(find, "array<int>")  # type: ignore[call-overload]
    return function
