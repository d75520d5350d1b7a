"""`tardis-machine export nautilus` and `export hftbacktest`: history as the files that backtests read, a day and symbol a file.

The same replay that gives the rows gives the events of a session, counted where they are made: a ledger. What is written is compared
with it, and told beside the files in `ledger.jsonl` (`export_ledger`).

Invariant: a file under its name is whole, and has what its ledger counts. What is there already is not made again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from ..dates import parse_date_us
from ..engine import SOURCE, Engine, Machine
from ..errors import OptionsError, UndeliveredError
from ..eventbus.ledger import Ledger, LedgerEntry
from ..exchanges import exchange_named
from ..messages import to_timestamp
from ..pipeline.csv_files import DAY_US, day_request
from ..pipeline.csv_rows import dataset_named
from ..pipeline.dataset_tables import to_table, with_decimals
from ..processes.jobs.contract import Chunk, Events, PublishSpec
from ..settings import Settings
from ..telemetry import get_logger
from .event_loop import run_loop
from .export_ledger import ExportLedger, Written, write_whole

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["hftbacktest", "nautilus"]

log = get_logger("export")

_CASES = {"trades": "trade", "incremental_book_L2": "book_change", "quotes": "quote"}
"""Dataset to the payload case that its rows are one of each; of a book, a level is one."""


class ExportDay(NamedTuple):
    """What one symbol did on one day."""

    exchange: str
    symbol: str
    start_us: int
    end_us: int

    @property
    def name(self) -> str:
        """Of its file, as datasets name theirs."""
        return f"{self.exchange}_{self.start[:10]}_{_safe(self.symbol)}"

    @property
    def start(self) -> str:
        """As a date."""
        return to_timestamp(self.start_us)

    @property
    def end(self) -> str:
        """As a date; not included."""
        return to_timestamp(self.end_us)


Write = Callable[[ExportDay, "dict[str, pa.Table]"], "dict[str, Path]"]
"""Writes the tables of a day; gives the file of each dataset."""


def nautilus(settings: Settings) -> int:
    """The `export nautilus` command."""
    from ..pipeline.nautilus_tables import NAUTILUS_KINDS, Precision, catalog_path, precision_of, to_nautilus

    for name in settings.datasets:
        if name not in NAUTILUS_KINDS:
            raise OptionsError(f"--datasets: expected some of {', '.join(NAUTILUS_KINDS)}, got {name!r}", "datasets")
    venue = settings.venue or settings.exchange.upper()

    def write(day: ExportDay, tables: dict[str, pa.Table]) -> dict[str, Path]:
        import pyarrow.parquet

        tables = {name: with_decimals(table) for name, table in tables.items()}
        found = [precision_of(table) for table in tables.values()]
        price = max(each.price for each in found) if settings.price_precision is None else settings.price_precision
        size = max(each.size for each in found) if settings.size_precision is None else settings.size_precision
        instrument, files = f"{day.symbol}.{venue}", {}
        for name, table in tables.items():
            rows = to_nautilus(name, table, instrument, Precision(price, size))
            if len(rows):
                target = settings.output_dir / catalog_path(name, instrument, rows)
                write_whole(target, partial(pyarrow.parquet.write_table, rows))
                files[name] = target
        return files

    return run_loop(_export(settings, settings.datasets, write))


def hftbacktest(settings: Settings) -> int:
    """The `export hftbacktest` command."""
    from ..pipeline.hftbacktest_events import to_events

    def write(day: ExportDay, tables: dict[str, pa.Table]) -> dict[str, Path]:
        import numpy as np

        events = to_events(tables["trades"], tables["incremental_book_L2"])
        target = settings.output_dir / f"{day.name}.npz"

        def save(path: Path) -> None:
            with path.open("wb") as file:
                np.savez_compressed(file, data=events)

        write_whole(target, save)
        return dict.fromkeys(tables, target)

    return run_loop(_export(settings, ("trades", "incremental_book_L2"), write))


def _safe(symbol: str) -> str:
    return re.sub(r'[:\\/?*<>|"]', "-", symbol)


def _days(settings: Settings) -> Iterator[ExportDay]:
    exchange = exchange_named(settings.exchange)
    spans = []
    for name in ("from", "to"):
        try:
            spans.append(parse_date_us(settings["from_" if name == "from" else "to"]))
        except ValueError as error:
            raise OptionsError(f"--{name}: {error}", name) from None
    from_us, to_us = spans
    if to_us <= from_us:
        raise OptionsError(f"--to: expected a date after --from ({settings['from_']}), got {settings['to']}", "to")
    for symbol in settings.symbols:
        for day_us in range(from_us - from_us % DAY_US, to_us, DAY_US):
            yield ExportDay(exchange.name, symbol, max(day_us, from_us), min(day_us + DAY_US, to_us))


async def _export(settings: Settings, datasets: tuple[str, ...], write: Write) -> int:
    days, folder = list(_days(settings)), settings.output_dir
    ledger = ExportLedger(folder)
    missing = {day: ledger.missing(day.name, day.start, day.end, datasets) for day in days}
    engine = Engine(settings)
    try:
        machine = await engine.start(publishing=False)
        for day, names in missing.items():
            if names:
                ledger.add(await _export_day(machine, day, names, write, folder))
            else:
                log.info("is there already", file=day.name)
    finally:
        await engine.stop()
    return 0


async def _export_day(machine: Machine, day: ExportDay, datasets: tuple[str, ...], write: Write, folder: Path) -> Written:
    tables: dict[str, pa.Table] = {}
    entries: list[LedgerEntry] = []
    for name in datasets:
        tables[name], counted = await _fetch(machine, day, name)
        rows, expected = len(tables[name]), sum(entry.count for entry in counted)
        if rows != expected:
            raise UndeliveredError(f"{name} of {day.symbol} has {rows} rows, but the ledger of its session counts {expected}")
        entries += counted
    files = await asyncio.to_thread(write, day, tables)
    rows = sum(map(len, tables.values()))
    log.info("exported", file=day.name, rows=rows, files=len(set(files.values())))
    paths = {name: str(files[name].relative_to(folder)) if name in files else None for name in datasets}
    return Written(day.name, day.start, day.end, paths, rows, entries)


async def _fetch(machine: Machine, day: ExportDay, name: str) -> tuple[pa.Table, list[LedgerEntry]]:
    """The rows, and what the ledger says of the same session."""
    dataset, case, session_id = dataset_named(name), _CASES[name], uuid4().hex
    request = day_request(dataset, day.exchange, [day.symbol], day.start_us, day.end_us)
    publish = PublishSpec(session_id, "replay", {"session_id": session_id}, SOURCE, "level", frozenset([case]))
    ledger = Ledger(Path())  # kept in memory

    def take(events: Events) -> None:
        from ..bronze.bundle import Bundle

        ledger.add(Bundle.of(events.events).tallies, time.time_ns() // 1000)

    parts: list[bytes] = []
    async with aclosing(machine.replay("export", [request], form="csv", publish=publish, take_events=take)) as chunks:
        async for chunk in chunks:
            assert isinstance(chunk, Chunk)
            parts.append(bytes(chunk.data))
    ended = ledger.end(session_id, complete=True, reason="", now_us=time.time_ns() // 1000)
    return await asyncio.to_thread(to_table, dataset, parts), [] if ended is None else list(ended.entries)
