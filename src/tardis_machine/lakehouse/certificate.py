"""What a lake has of a symbol on a day, written down so that a backtest can name its data, and anybody can look whether it is still that.

For each table with rows of the symbol and the day: how many, the first and the last time, the table's version, and a digest. For the
sessions that brought them, what `verify` knows of these: whether they are complete, and what is missing.

A digest is the sum, modulo 2 to the power of 128, of the MD5 of each row as JSON, its columns in the order of their names and without
nulls: so it does not depend on files, on the order of rows, or on columns that a later release adds.

Invariant: the same rows have the same certificate but for versions, and rows that differ in any column another one.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .._version import __version__
from ..bronze.event import DIGEST_MASK
from ..errors import LakeError, OptionsError
from .commits import Commits
from .instruments import INSTRUMENTS
from .lake import Lake, check_table
from .tables import EVENTS, Table, all_tables
from .verify import event_rows, ledgers_of, summed, to_plain_fields, verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..settings import Settings

__all__ = ["Certificate", "CertifiedTable", "Difference", "certify", "check", "run"]


class CertifiedTable(msgspec.Struct, frozen=True):
    """What a table has of the symbol and the day."""

    rows: int
    digest: str
    """32 hexadecimal digits."""
    version: int
    first_ts: str | None
    last_ts: str | None


class Certificate(msgspec.Struct, frozen=True):
    """What a lake has of a symbol and a day."""

    exchange: str
    symbol: str
    date: date
    program: str
    is_whole: bool
    """Nothing is missing, and no session that brought it was cut short or has not ended."""
    tables: dict[str, CertifiedTable]
    sessions: list[dict[str, Any]]
    missing: list[dict[str, Any]]


@dataclass(frozen=True)
class Difference:
    """A table that has something else now."""

    table: str
    certified: int
    found: int
    """Rows."""
    is_kept: bool
    """The version that was certified can still be read, and has what the certificate says."""

    @property
    def text(self) -> str:
        """One sentence."""
        rows = f"{self.certified:,} rows were certified, {self.found:,} are there"
        differ = rows if self.certified != self.found else f"{self.found:,} rows are there, and not all are what they were"
        kept = "the version that was certified still has them" if self.is_kept else "the version that was certified is gone"
        return f"{self.table}: {differ}; {kept}"


def certify(spark: SparkSession, lake: Lake, exchange: str, symbol: str, day: date) -> Certificate:
    """What is there now; LakeError where nothing is."""
    commits = Commits(lake)
    tables = {}
    for table in all_tables():
        if _is_of_symbols(table) and check_table(lake, table):
            version = commits.version(table)
            found = _certify_table(spark, lake, table, version, exchange, symbol, day)
            if found.rows:
                tables[table.name] = found
    if not tables:
        raise LakeError(f"the lake in {lake.root} has nothing of {exchange} {symbol} on {day}")
    outcome = verify(spark, lake, (exchange, symbol))
    sessions = _sessions_of(spark, lake, exchange, symbol, day)
    own = [session for session in outcome.sessions if (session.bus, session.session) in sessions]
    missing = [item for item in outcome.missing if (item.bus, item.session) in sessions]
    return Certificate(
        exchange,
        symbol,
        day,
        f"tardis-machine/{__version__}",
        not missing and all(session.state == "complete" for session in own),
        tables,
        [to_plain_fields(session) for session in own],
        [to_plain_fields(item) for item in missing],
    )


def _is_of_symbols(table: Table) -> bool:
    # What instruments were asked for on a day says nothing of the day.
    has_time = not {"local_ts", "start"}.isdisjoint(table.columns)
    return table is not INSTRUMENTS and has_time and {"date", "exchange", "symbol"} <= table.columns.keys()


def _certify_table(
    spark: SparkSession, lake: Lake, table: Table, version: int, exchange: str, symbol: str, day: date
) -> CertifiedTable:
    from pyspark.sql import functions as F  # noqa: N812

    time = "local_ts" if "local_ts" in table.columns else "start"
    rows = spark.read.format("delta").option("versionAsOf", version).load(lake.path(table))
    own = rows.where((F.col("date") == day) & (F.col("exchange") == exchange) & (F.col("symbol") == symbol))
    names = sorted(own.columns)
    as_json = F.to_json(F.struct(*names), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "timeZone": "UTC"})
    digested = own.select(F.unhex(F.md5(as_json)).alias("event_id"), F.lit(0).alias("sequence"), F.unix_micros(time).alias("us"))
    [found] = summed(digested).join(digested.selectExpr("min(us) AS first_us", "max(us) AS last_us")).collect()
    digest = 0 if not found["events"] else ((int(found["high"]) << 64) + int(found["low"])) & DIGEST_MASK
    return CertifiedTable(found["events"], f"{digest:032x}", version, _to_text(found["first_us"]), _to_text(found["last_us"]))


def _to_text(instant_us: int | None) -> str | None:
    from ..messages import to_timestamp

    return None if instant_us is None else to_timestamp(instant_us)


def _sessions_of(spark: SparkSession, lake: Lake, exchange: str, symbol: str, day: date) -> set[tuple[str, str]]:
    """Bus and name of the sessions that have events of the symbol on the day, or should have."""
    from pyspark.sql import functions as F  # noqa: N812

    bronze = lake.read(spark, EVENTS)
    of_symbol = (F.col("exchange") == exchange) & (F.col("symbol") == symbol)
    seen = event_rows(bronze).where(of_symbol & (F.col("date") == day)).select("bus", "session")
    promised = ledgers_of(bronze).selectExpr("bus", "session", "inline(entries)").where(of_symbol)
    promised = promised.where(F.lit(day).between(F.to_date("first_local_ts"), F.to_date("last_local_ts")))
    both: DataFrame = seen.unionByName(promised.select("bus", "session")).distinct()
    return {(row["bus"], row["session"]) for row in both.collect()}


def check(spark: SparkSession, lake: Lake, certificate: Certificate) -> list[Difference]:
    """The tables that have something else now than the certificate says."""
    place = certificate.exchange, certificate.symbol, certificate.date
    commits, differing = Commits(lake), []
    known = {table.name: table for table in all_tables()}
    for name, certified in certificate.tables.items():
        table = known.get(name)
        if table is None:
            raise LakeError(f"the certificate names the table {name}, which this release does not know; use a later release")
        is_there = check_table(lake, table)
        now = _certify_table(spark, lake, table, commits.version(table), *place) if is_there else None
        if now is None or (now.rows, now.digest) != (certified.rows, certified.digest):
            is_kept = is_there and _is_kept(spark, lake, table, certified, place)
            differing.append(Difference(name, certified.rows, 0 if now is None else now.rows, is_kept))
    return differing


def _is_kept(spark: SparkSession, lake: Lake, table: Table, certified: CertifiedTable, place: tuple[str, str, date]) -> bool:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        then = _certify_table(spark, lake, table, certified.version, *place)
    except (PySparkException, Py4JJavaError):
        # Its files, or its entry of the log, were removed.
        return False
    return (then.rows, then.digest) == (certified.rows, certified.digest)


def run(settings: Settings) -> int:
    """`lake certificate`: writes one, or with `--check` compares."""
    from .jobs import open_session

    certified = None if settings.check is None else _read(settings.check)
    place = None if certified is not None else _place(settings)
    lake = Lake.at(settings.lake, settings.lake_option)
    lake.check_exists()
    spark = open_session(settings, lake)
    if certified is not None:
        differing = check(spark, lake, certified)
        name = f"{certified.exchange} {certified.symbol} on {certified.date}"
        lines = [difference.text for difference in differing] or [f"{name}: the lake has what was certified"]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return 1 if differing else 0
    assert place is not None
    text = json.dumps(msgspec.to_builtins(certify(spark, lake, *place)), indent=1, ensure_ascii=False) + "\n"
    _write(text, settings.output)
    return 0


def _place(settings: Settings) -> tuple[str, str, date]:
    lacking = [f"--{name}" for name in ("exchange", "symbol", "date") if not settings[name]]
    if lacking:
        raise OptionsError(f"a certificate needs {' and '.join(lacking)}, or --check with the file of one", lacking[0][2:])
    try:
        return settings.exchange, settings.symbol, date.fromisoformat(settings.date)
    except ValueError:
        raise OptionsError(f"--date: expected a day such as 2020-02-01, got {settings.date!r}", "date") from None


def _read(file: Path) -> Certificate:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Certificate)
    except OSError as error:
        raise LakeError(f"{file} can't be read: {error.strerror or error}; name another file with --check") from None
    except msgspec.MsgspecError as error:
        raise LakeError(f"{file} is no certificate: {error}") from None


def _write(text: str, file: Path | None) -> None:
    if file is None:
        sys.stdout.write(text)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LakeError(f"{file} can't be written: {error.strerror or error}; name another file with --output") from None
