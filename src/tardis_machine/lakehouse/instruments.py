"""silver.instruments: what contracts are worth, from the metadata of the history API, dated.

A row says what held for an instrument from `valid_from` (null: from its beginning) until `valid_to` (null: it holds still). Rows are
only added: what the API says otherwise at a later time is a new set of rows for the instrument, and of all sets the latest
(`local_ts`, when it was asked) holds. So streams see what is new, and it stays known what was known when.

Symbols are those of the API; messages spell some in other cases, so both are compared in upper case.

Invariant: at an instant at most one row of the latest set of an instrument holds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..dates import parse_instant_us
from ..errors import LakeError, UpstreamError
from ..history.metadata import MetadataClient
from .appending import Appender
from .lake import Lake, check_table, prepare_table
from .rewriting import read_rows
from .tables import EVENTS, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..history.metadata import InstrumentInfo
    from ..settings import Settings

__all__ = ["INSTRUMENTS", "exchanges_of", "fetch_instruments", "keep_instruments", "read_latest", "run", "to_rows"]

_DECIMAL = "DECIMAL(38, 18)"

INSTRUMENTS = Table(
    "silver.instruments",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "local_ts": "TIMESTAMP",
        "valid_from": "TIMESTAMP",
        "valid_to": "TIMESTAMP",
        "kind": "STRING",
        "base_currency": "STRING",
        "quote_currency": "STRING",
        "settlement_currency": "STRING",
        "price_increment": _DECIMAL,
        "amount_increment": _DECIMAL,
        "min_trade_amount": _DECIMAL,
        "contract_multiplier": _DECIMAL,
        "is_inverse": "BOOLEAN",
        "is_quanto": "BOOLEAN",
        "expiry_ts": "TIMESTAMP",
        "strike_price": _DECIMAL,
        "option_type": "STRING",
        "available_since": "TIMESTAMP",
        "available_to": "TIMESTAMP",
    },
    skip_by=("local_ts",),
)

_TEXTS = {
    "kind": "type",
    "base_currency": "baseCurrency",
    "quote_currency": "quoteCurrency",
    "settlement_currency": "settlementCurrency",
    "option_type": "optionType",
}
_NUMBERS = {
    "price_increment": "priceIncrement",
    "amount_increment": "amountIncrement",
    "min_trade_amount": "minTradeAmount",
    "contract_multiplier": "contractMultiplier",
    "strike_price": "strikePrice",
}
_FLAGS = {"is_inverse": "inverse", "is_quanto": "quanto"}
_INSTANTS = {"expiry_ts": "expiry", "available_since": "availableSince", "available_to": "availableTo"}

_SMALLEST = Decimal("1e-18")
_WIDE = Context(prec=38, rounding=ROUND_HALF_EVEN)
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SAID_WHEN = ("date", "local_ts")

Row = dict[str, Any]


def to_rows(exchange: str, instruments: Iterable[InstrumentInfo]) -> list[Row]:
    """The dated rows of an exchange's instruments, without when that was asked."""
    by_symbol: dict[str, list[InstrumentInfo]] = {}
    for instrument in instruments:
        by_symbol.setdefault(instrument["id"].upper(), []).append(instrument)
    rows: list[Row] = []
    for listings in by_symbol.values():
        # A symbol may come back as another contract: each holds until the next one begins.
        dated = sorted(((_to_instant(item.get("availableSince")), item) for item in listings), key=lambda pair: pair[0] or _FIRST)
        starts = [None, *(since for since, _ in dated[1:]), None]
        for (start, end), (_, item) in zip(pairwise(starts), dated, strict=True):
            rows += _periods(exchange, item, start, end)
    return rows


def _periods(exchange: str, instrument: Mapping[str, Any], start: datetime | None, end: datetime | None) -> list[Row]:
    """What held when, the latest first: each change says until when something else did, and what it does not name was as it is after it."""
    rows: list[Row] = []
    terms = dict(instrument)
    changes = [(until, change) for change in instrument.get("changes") or () if (until := _to_instant(change.get("until")))]
    for until, change in sorted(changes, key=lambda pair: pair[0], reverse=True):
        if (end is None or until < end) and (start is None or until > start):
            rows.append(_to_row(exchange, terms, until, end))
            end = until
        terms |= {name: value for name, value in change.items() if name != "until" and value is not None}
    return [*rows, _to_row(exchange, terms, start, end)]


def _to_row(exchange: str, terms: Mapping[str, Any], start: datetime | None, end: datetime | None) -> Row:
    return {
        "exchange": exchange,
        "symbol": terms["id"],
        "valid_from": start,
        "valid_to": end,
        **{name: terms.get(field) for name, field in _TEXTS.items()},
        **{name: _to_decimal(terms.get(field)) for name, field in _NUMBERS.items()},
        # Upstream leaves out what is not so.
        **{name: bool(terms.get(field)) for name, field in _FLAGS.items()},
        **{name: _to_instant(terms.get(field)) for name, field in _INSTANTS.items()},
    }


def _to_decimal(number: float | str | None) -> Decimal | None:
    if number is None:
        return None
    try:
        return Decimal(str(number)).quantize(_SMALLEST, context=_WIDE)
    except InvalidOperation:
        # It is wider than a number of the lake, or none.
        return None


def _to_instant(text: str | None) -> datetime | None:
    instant_us = None if text is None else parse_instant_us(text)
    return None if instant_us is None else _EPOCH + timedelta(microseconds=instant_us)


def keep_instruments(lake: Lake, rows: Sequence[Row], now: datetime) -> int:
    """Adds the rows of those instruments of which the lake has something else; of how many."""
    prepare_table(lake, INSTRUMENTS)
    appender = Appender(lake)
    kinds = appender.commits.schema(INSTRUMENTS)
    exchanges = {row["exchange"] for row in rows}
    found: list[Row] = []
    for file in appender.commits.all_files(INSTRUMENTS):
        if file.partition["exchange"] in exchanges:
            for batch in read_rows(lake.storage, kinds, file.path, file.partition):
                found += batch.to_pylist()
    known, told = _sets(found), _sets([{**row, "date": now.date(), "local_ts": now} for row in rows])
    new = [item for key, items in told.items() if _said(items) != _said(known.get(key, [])) for item in items]
    if new:
        batches = pa.Table.from_pylist(new, kinds).to_batches()
        files = appender.write_here(lambda found: ((INSTRUMENTS, batch) for batch in found), batches, INSTRUMENTS)
        appender.commits.commit(INSTRUMENTS, files)
    return len({row["symbol"] for row in new})


def _sets(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """By instrument the rows that were said last."""
    latest: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        kept = latest.setdefault((row["exchange"], row["symbol"].upper()), [])
        if kept and row["local_ts"] > kept[0]["local_ts"]:
            kept.clear()
        if not kept or row["local_ts"] == kept[0]["local_ts"]:
            kept.append(row)
    return latest


def _said(rows: Sequence[Row]) -> list[Row]:
    """What rows say, whenever they said it."""
    said = [{name: value for name, value in row.items() if name not in _SAID_WHEN} for row in rows]
    return sorted(said, key=lambda row: row["valid_from"] or _FIRST)


def read_latest(spark: SparkSession, lake: Lake, exchanges: Sequence[str]) -> DataFrame:
    """What holds of the instruments of some exchanges, symbols in upper case."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.window import Window

    rows = lake.read(spark, INSTRUMENTS).where(F.col("exchange").isin(*exchanges)).withColumn("symbol", F.upper("symbol"))
    said_last = F.max("local_ts").over(Window.partitionBy("exchange", "symbol"))
    return rows.withColumn("said_last", said_last).where("local_ts = said_last").drop("said_last", *_SAID_WHEN)


def exchanges_of(lake: Lake, table: Table) -> list[str]:
    """The exchanges that a table has files of."""
    if not check_table(lake, table):
        return []
    files = Appender(lake).commits.all_files(table)
    return sorted({name for file in files if (name := file.partition["exchange"])})


async def fetch_instruments(exchanges: Iterable[str], api_url: str, api_key: str | None, cache_dir: Any) -> list[Row]:
    """What the history API says of the instruments of some exchanges; raises LakeError that names the one it says nothing of."""
    rows: list[Row] = []
    async with MetadataClient(api_url, api_key, cache_dir) as client:
        for exchange in exchanges:
            try:
                rows += to_rows(exchange, (await client.instruments(exchange)).read())
            except UpstreamError as error:
                raise LakeError(f"the instruments of {exchange} are not known: {error}") from None
    return rows


def run(settings: Settings) -> int:
    """`lake instruments`: asks for the instruments of the exchanges that the lake has, or of those that are named."""
    from .jobs import open_session

    lake = Lake.at(settings.lake, settings.lake_option)
    lake.check_exists()
    named = list(settings.exchanges)
    # What is named is asked for before Spark takes its seconds to start.
    rows = _ask(settings, named)
    open_session(settings, lake)
    exchanges = named or exchanges_of(lake, EVENTS)
    if not exchanges:
        raise LakeError(f"there are no events in {lake.root} whose exchanges could be asked for; name some with --exchanges")
    rows = rows or _ask(settings, exchanges)
    added = keep_instruments(lake, rows, datetime.now(UTC))
    total = len({(row["exchange"], row["symbol"]) for row in rows})
    sys.stdout.write(f"{total:,} instruments of {', '.join(exchanges)}: {added:,} are new or have changed\n")
    return 0


def _ask(settings: Settings, exchanges: Sequence[str]) -> list[Row]:
    return asyncio.run(fetch_instruments(exchanges, settings.api_url, settings.api_key, settings.cache_dir))
