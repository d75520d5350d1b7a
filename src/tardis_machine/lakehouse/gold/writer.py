"""Silver to gold, in one stream: what is new in silver says which windows are computed anew, and only those are.

The stream reads no more of the tables than where new rows belong: table, exchange, symbol and second. The rows of the windows that these
touch are then read from the tables themselves, so a late row, a repeated batch or a batch cut otherwise all end with the same gold.
Rows are merged by their keys: merging the same twice changes nothing, and so a batch that was cut off may run again.

Invariant: a window's rows are those that its product computes from the rows of the window, whatever came when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ...telemetry import get_logger
from ..instruments import INSTRUMENTS, exchanges_of
from ..lake import Lake, prepare_table
from ..rewriting import Replacement, replace_rows
from ..silver import SILVER_TABLES
from ..streams import BatchWriter, read_table_stream
from ..tables import EVENTS, Table
from . import Chosen
from .book_state import BOOK_STATE, book_state
from .books import BOOKS_TABLE, RebuildRange, rebuild_books
from .notional import SOURCE as INSTRUMENTS_SOURCE
from .product import GoldProduct, Scope, time_of
from .rebuilding import BOOKS, SECONDS, TOP
from .settled import Settled, settle
from .top_of_book import TOP_OF_BOOK, top_of_book
from .touched import PLACE, TOUCHED, WINDOWS, Touched, distinct
from .windows import CLOCK, HOUR_US, to_instant, to_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["GoldWriter", "read_changes"]

_TABLES: Mapping[str, Table] = {
    "events": EVENTS,
    INSTRUMENTS_SOURCE: INSTRUMENTS,
    **{silver.name: silver.table for silver in SILVER_TABLES},
}

_log = get_logger("lakehouse.gold")


def read_changes(spark: SparkSession, lake: Lake, chosen: Chosen, max_batch_bytes: int) -> DataFrame:
    """Where new rows of the tables that products are made of belong, as a stream."""
    streams = []
    for source in chosen.sources:
        prepare_table(lake, _TABLES[source])
        rows = read_table_stream(spark, lake, _TABLES[source], max_batch_bytes)
        if source == "control_events":
            rows = rows.where("kind = 'disconnect'")
        elif source == "events":
            rows = rows.where("exchange IS NOT NULL")
        clock = CLOCK if "event_ts" in _TABLES[source].columns else "local_ts"
        streams.append(
            rows.selectExpr(
                f"'{source}' AS source",
                *PLACE,
                "unix_seconds(local_ts) AS local_s",
                f"unix_seconds({clock}) AS clock_s",
                "unix_micros(local_ts) AS local_us",
            )
        )
    union = streams[0]
    for stream in streams[1:]:
        union = union.union(stream)
    return union


class GoldWriter(BatchWriter):
    """Computes the windows that batches touch, and merges them into the tables."""

    def __init__(self, *args: Any, chosen: Chosen, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._chosen = chosen
        # Tables that were not there before this run.
        self._made: set[str] = set()
        # By product, an instant that none of its rows is later than.
        self._latest_us: dict[str, int] = {}
        # Exchanges whose instruments were looked for.
        self._looked_for: set[str] = set()

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Books first, as other products read them."""
        from pyspark.sql import functions as F  # noqa: N812

        spark = batch.sparkSession
        places = batch.groupBy("source", *PLACE, "local_s", "clock_s").agg(F.min("local_us").alias("first_us"))
        touched = Touched(places.toArrow().cast(TOUCHED))
        self._made |= {table.name for table in self._chosen.tables if self.prepare(table)}
        if touched.sources & {"book_changes", "control_events"} and self._chosen.has_books:
            seconds = self._write_books(spark, touched)
            if seconds is not None and self._chosen.has_tops:
                touched = touched.with_seconds(TOP, seconds)
        if INSTRUMENTS_SOURCE in self._chosen.sources:
            self._look_for_instruments(touched)
        for product in self._chosen.products:
            if product.reads & touched.sources:
                self._write_product(spark, touched, product)

    def _look_for_instruments(self, touched: Touched) -> None:
        """Says once of an exchange that its notional is not known."""
        exchanges = {*touched.table["exchange"].unique().to_pylist()} - self._looked_for
        if exchanges:
            self._looked_for |= exchanges
            unknown = sorted(exchanges.difference(exchanges_of(self.lake, INSTRUMENTS)))
            if unknown:
                _log.warning(
                    "the lake has no instruments of an exchange, so notional is null there: 'lake instruments' asks for them",
                    exchanges=", ".join(unknown),
                )

    def _write_books(self, spark: SparkSession, touched: Touched) -> pa.Table | None:
        """Rebuilds books; in which seconds tops may have changed, however often a batch that was cut off ran before."""
        rebuilt = rebuild_books(spark, self.lake, touched, self._chosen.book_states, self.appender.commits)
        if rebuilt is None:
            return None
        rows, since_us = settle(rebuilt.rows, has_levels=True), min(place.emit_from_us for place in rebuilt.ranges)
        limits = RebuildRange.to_frame(spark, rebuilt.ranges)
        if self._chosen.has_tops:

            def old_tops(table: DataFrame) -> DataFrame:
                return _in_ranges(table, limits, "local_ts >= emit_from AND (until IS NULL OR local_ts <= until)")

            self._merge(rows.derive(top_of_book(rows.frame)), TOP_OF_BOOK, TOP, (*PLACE, "local_ts"), since_us, stale=old_tops)
        for state in self._chosen.book_states:

            def old_states(table: DataFrame) -> DataFrame:
                return _in_ranges(table, limits, "end > emit_from AND (until IS NULL OR end <= until)")

            self._merge(
                rows.derive(book_state(rows.frame, state)),
                BOOK_STATE,
                state.product,
                (*PLACE, "depth", "interval", "start"),
                since_us - since_us % state.interval_us,
                only={"depth": state.depth, "interval": state.interval},
                stale=old_states,
            )
        whole = rows.frame.where(f"product = '{BOOKS}'").selectExpr(
            "to_date(start) AS date", *(name for name in BOOKS_TABLE.columns if name != "date")
        )
        seconds = rows.frame.where(f"product = '{SECONDS}'").select(*WINDOWS.names).toArrow()
        # Last: a batch that is cut off begins again with the books that it began with, and Spark would compute `rows` anew after it.
        self._merge(
            settle(whole, has_levels=True), BOOKS_TABLE, BOOKS, (*PLACE, "recorder", "start"), since_us - since_us % HOUR_US
        )
        rows.free()
        return seconds

    def _write_product(self, spark: SparkSession, touched: Touched, product: GoldProduct) -> None:
        scope = Scope(spark, self.lake, product.windows(touched), product.interval_us, touched, self.appender.commits)
        if product.reopened is not None and (product.name in self._latest_us or product.table.name not in self._made):
            scope = replace(scope, windows=distinct(pa.concat_tables([scope.windows, product.reopened(scope)])))
        if not scope.windows.num_rows:
            return

        def vanishing(table: DataFrame) -> DataFrame:
            return scope.in_windows(table, time_of(product.table), product.place)

        self._merge(
            settle(product.compute(scope).select(*product.table.columns)),
            product.table,
            product.name,
            product.keys,
            to_us(scope.first),
            only=product.only,
            stale=vanishing if product.may_vanish else None,
        )

    def _merge(
        self,
        source: Settled,
        table: Table,
        product: str,
        keys: Sequence[str],
        since_us: int,
        *,
        only: Mapping[str, object] | None = None,
        stale: Callable[[DataFrame], DataFrame] | None = None,
    ) -> None:
        """Makes `source` the rows of their keys; of what `stale` chooses among the product's rows, those go whose keys are not among
        them. None of either is before `since_us`."""
        spark, time, only = source.frame.sparkSession, time_of(table), only or {}
        latest_us = self._find_latest_us(spark, table, product, only, since_us)
        # Otherwise there is nothing to replace: a commit that only adds.
        may_replace = latest_us >= since_us
        if may_replace and stale is not None:
            old = stale(self._own_rows(spark, table, only, since_us))
            source = _with_gone(source, old.select(*table.columns), keys)
        # Before they are written: Spark computes anew whatever it has kept of a table that is written to.
        count, span_us = source.count(), source.span_us(time)
        if span_us and may_replace:
            self._replace(source, span_us, table, (*only, *keys))
        elif span_us:
            self.appender.append_rows(source.frame, table, held=source.table)
        self.counts.add(table.name, count)
        self._latest_us[product] = max(latest_us, span_us[1] if span_us else since_us)
        source.free()

    def _find_latest_us(self, spark: SparkSession, table: Table, product: str, only: Mapping[str, object], since_us: int) -> int:
        """An instant that no row of a product is later than."""
        if product not in self._latest_us:
            found = None
            if table.name not in self._made:
                own = self._own_rows(spark, table, only, since_us)
                found = own.selectExpr(f"unix_micros(max({time_of(table)}))").collect()[0][0]
            self._latest_us[product] = since_us - 1 if found is None else found
        return self._latest_us[product]

    def _own_rows(self, spark: SparkSession, table: Table, only: Mapping[str, object], since_us: int) -> DataFrame:
        """A product's rows from an instant on."""
        from pyspark.sql import functions as F  # noqa: N812

        since = to_instant(since_us)
        rows = self.lake.read(spark, table).where((F.col("date") >= since.date()) & (F.col(time_of(table)) >= since))
        for name, value in only.items():
            rows = rows.where(F.col(name).eqNullSafe(F.lit(value)))
        return rows

    def _replace(self, source: Settled, span_us: tuple[int, int], table: Table, keys: Iterable[str]) -> None:
        """Puts rows in the place of those that have their keys; of those marked as gone only the old ones go."""
        by = [*dict.fromkeys(("date", "exchange", *keys))]
        if source.table is not None:
            values, new = source.table.select(by), source.table
            if "_is_gone" in new.column_names:
                new = new.filter(pc.invert(new["_is_gone"]))
            written = self.appender.write_rows(source.frame, table, held=new.select([*table.columns]))
        else:
            values = source.frame.select(*by).toArrow()
            frame = source.frame.where("NOT _is_gone") if "_is_gone" in source.frame.columns else source.frame
            written = self.appender.write_rows(frame, table)
        replaced = Replacement(table, self.appender.commits.schema(table), by, values, time_of(table), span_us)
        replace_rows(source.frame.sparkSession, self.appender, replaced, written)


def _in_ranges(rows: DataFrame, limits: DataFrame, condition: str) -> DataFrame:
    """The rows that a rebuilding replaces; those that it does not give again are gone."""
    return rows.join(limits, [*PLACE]).where(condition)


def _with_gone(source: Settled, old: DataFrame, keys: Sequence[str]) -> Settled:
    """New rows, and marked as gone the old ones whose keys are not among them."""
    from pyspark.sql import functions as F  # noqa: N812

    same = [F.col(f"old.{key}").eqNullSafe(F.col(f"new.{key}")) for key in keys]
    gone = old.alias("old").join(source.frame.alias("new"), same, "left_anti").withColumn("_is_gone", F.lit(True))
    both = settle(source.frame.withColumn("_is_gone", F.lit(False)).unionByName(gone), has_levels="bids" in old.columns)
    source.free()
    return both
