"""A query over a lake: its tables under their names, the answer as a table, CSV, JSON, Parquet or a chart.

Invariant: only the answer is written to standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from ..errors import LakeError
from .answers import write_csv, write_json, write_table
from .book_at import with_books
from .jobs import open_session
from .lake import Lake, check_table
from .spark_errors import sentence
from .tables import all_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..settings import Settings

__all__ = ["query", "register_tables", "run"]

_WRITERS: Mapping[str, Callable[[Sequence[str], Iterable[Sequence[Any]], TextIO], None]] = {
    "table": write_table,
    "csv": write_csv,
    "json": write_json,
}


def run(settings: Settings) -> int:
    """`lake sql`: asks, and writes the answer."""
    if settings.format == "parquet" and settings.output is None:
        raise LakeError("--format parquet needs a file to write; name it with --output")
    for flag, file in (("--output", settings.output), ("--chart", settings.chart)):
        # Before Spark takes its time to find an answer that has nowhere to go.
        if file is not None and not Path(file).parent.is_dir():
            raise LakeError(
                f"there is no folder {Path(file).parent} to write {Path(file).name} to; name another file with {flag}"
            )
    lake = Lake.at(settings.lake, settings.lake_option)
    lake.check_exists()
    spark = open_session(settings, lake)
    answer = query(spark, lake, settings.query)
    if settings.chart is not None:
        with _one_sentence("--chart", settings.chart):
            from .chart import draw_chart

            draw_chart(answer.toArrow().to_pandas(), Path(settings.chart), settings.query)
        if settings.output is None:
            return 0
    with _one_sentence("--output", settings.output):
        write_answer(answer, settings.format, settings.output)
    return 0


@contextmanager
def _one_sentence(flag: str, file: Path | None) -> Iterator[None]:
    """What goes wrong while an answer is computed and written."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise LakeError(f"the query failed: {sentence(error)}") from None
    except OSError as error:
        if file is None:
            # Who read standard output does not any more.
            raise
        raise LakeError(f"{file} can't be written: {error.strerror or error}; name another file with {flag}") from None


def query(spark: SparkSession, lake: Lake, text: str) -> DataFrame:
    """The answer to a query over the lake's tables (`bronze.events`, `silver.trades`, …), and `book_at`."""
    from pyspark.errors import PySparkException

    register_tables(spark, lake)
    try:
        return spark.sql(with_books(text))
    except PySparkException as error:
        raise LakeError(f"the query can't be run: {sentence(error)}") from None


def write_answer(answer: DataFrame, form: str, output: Path | None) -> None:
    """Writes the rows to a file, or to standard output."""
    if form == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(answer.toArrow(), output)
    elif output is not None:
        with Path(output).open("w", encoding="utf-8", newline="") as out:
            _WRITERS[form](answer.columns, answer.toLocalIterator(), out)
    else:
        _WRITERS[form](answer.columns, answer.toLocalIterator(), sys.stdout)


_REGISTERED: WeakKeyDictionary[SparkSession, tuple[Lake, set[str]]] = WeakKeyDictionary()
"""The lake whose tables have their names in a session, and which of them were there: those need not be looked at again."""


def register_tables(spark: SparkSession, lake: Lake) -> None:
    """Gives the lake's tables their names in the session; one that has had no rows yet is an empty one."""
    registered, known = _REGISTERED.get(spark, (lake, set()))
    if registered != lake:
        known = set()
    new = [table for table in all_tables() if table.name not in known]
    present = {table.name for table in new if check_table(lake, table)}
    if not known | present:
        raise LakeError(
            f"there are no tables in {lake.root}; choose another lake with --lake, or fill this one with 'lake ingest'"
        )
    for layer in {table.name.partition(".")[0] for table in new}:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {layer} LOCATION '{_quoted(f'{lake.root}/{layer}')}'")
    for table in new:
        if table.name in present:
            _register(spark, table.name, "USING DELTA", lake.path(table))
        else:
            _register(spark, table.name, f"({table.ddl}) USING PARQUET", f"{lake.root}/_empty/{table.name}")
    _REGISTERED[spark] = (lake, known | present)


def _register(spark: SparkSession, name: str, declaration: str, path: str) -> None:
    if spark.conf.get("spark.sql.catalogImplementation") == "in-memory":
        # The session's own names, which may still mean another lake.
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    elif spark.catalog.tableExists(name):
        details = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").where("col_name = 'Location'").first()
        location = details["data_type"] if details is not None else "no place"
        if unquote(location.removeprefix("file:")) != path:
            raise LakeError(f"{name} in this catalog lies in {location}, not in {path}: use a catalog of its own for each lake")
        return
    spark.sql(f"CREATE TABLE {name} {declaration} LOCATION '{_quoted(path)}'")


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
