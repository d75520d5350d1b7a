"""`tardis-machine export csv`: history as the CSV files that tardis.dev publishes, a file for each dataset, symbol and day.

Invariant: a file under its name is whole. What is there already is not made again, so that an export that was stopped goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from ..computed import Computer
from ..dates import parse_date_us
from ..engine import Engine, Machine
from ..errors import MissingExtraError, OptionsError
from ..exchanges import exchange_named
from ..history.datasets import to_file_name
from ..messages import Message, to_timestamp
from ..pipeline.csv_files import DAY_US, day_request, to_pieces
from ..pipeline.csv_rows import Dataset, dataset_named, to_csv_rows
from ..settings import Settings
from ..telemetry import get_logger
from .event_loop import run_loop
from .line_output import LineOutput

__all__ = ["csv"]

log = get_logger("export")


class DatasetDay(NamedTuple):
    """One file to make."""

    dataset: Dataset
    symbol: str
    start_us: int
    end_us: int
    target: Path


def csv(settings: Settings) -> int:
    """The `export csv` command."""
    days = list(_days(settings))
    return run_loop(_export(settings, days) if settings.from_lake is None else _export_lake(settings, days))


def _days(settings: Settings) -> Iterator[DatasetDay]:
    exchange = exchange_named(settings.exchange)
    from_us, to_us = _parse_date("from", settings["from_"]), _parse_date("to", settings["to"])
    if to_us <= from_us:
        raise OptionsError(f"--to: expected a date after --from ({settings['from']}), got {settings['to']}", "to")
    for name in settings.datasets:
        dataset = dataset_named(name)
        if dataset.normalized not in exchange.data_types:
            raise OptionsError(f"--datasets: {exchange.name} has no {dataset.normalized}, which {name} is made of", "datasets")
        for symbol in settings.symbols:
            for day_us in range(from_us - from_us % DAY_US, to_us, DAY_US):
                target = settings.output_dir / to_file_name(exchange.name, name, to_timestamp(day_us)[:10], symbol)
                yield DatasetDay(dataset, symbol, max(day_us, from_us), min(day_us + DAY_US, to_us), target)


def _parse_date(name: str, text: str) -> int:
    try:
        return parse_date_us(text)
    except ValueError as error:
        raise OptionsError(f"--{name}: {error}", name) from None


async def _export(settings: Settings, days: list[DatasetDay]) -> int:
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    engine = Engine(settings)
    try:
        machine = await engine.start(publishing=False)
        # One after the other for each worker: a replay keeps one busy.
        turns = asyncio.Semaphore(max(settings.workers, 1))
        async with asyncio.TaskGroup() as tasks:
            for day in days:
                tasks.create_task(_write(machine, settings.exchange, day, turns))
    except* Exception as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    finally:
        await engine.stop()
    return 0


async def _export_lake(settings: Settings, days: list[DatasetDay]) -> int:
    """The same out of a lake, one after the other."""
    try:
        from ..lakehouse.lake import Lake
        from ..lakehouse.stored_messages import stored_messages
    except ImportError:
        raise MissingExtraError("--from-lake", "spark") from None

    settings.output_dir.mkdir(parents=True, exist_ok=True)
    lake = Lake.at(settings.from_lake, settings.lake_option)
    lake.check_exists()
    for day in days:
        if _is_there(day):
            continue
        case = day.dataset.normalized
        batches = stored_messages(lake, settings.exchange, day.symbol, case, day.start_us, day.end_us)
        computer = Computer([day.dataset.data_type])
        await _write_rows(day, _computed(computer, batches))
    return 0


async def _computed(computer: Computer, batches: Iterable[Sequence[Message]]) -> AsyncIterator[tuple[bytes, int]]:
    for batch in batches:
        messages = computer.feed(batch)
        yield to_csv_rows(messages), len(messages)


def _is_there(day: DatasetDay) -> bool:
    if day.target.exists():
        log.info("is there already", file=day.target)
        return True
    return False


async def _write(machine: Machine, exchange: str, day: DatasetDay, turns: asyncio.Semaphore) -> None:
    async with turns:
        if not _is_there(day):
            request = day_request(day.dataset, exchange, [day.symbol], day.start_us, day.end_us)
            async with aclosing(machine.replay("export", [request], form="csv")) as chunks:
                await _write_rows(day, ((bytes(chunk.data), chunk.messages) async for chunk in chunks))


async def _write_rows(day: DatasetDay, parts: AsyncIterator[tuple[bytes, int]]) -> None:
    messages = 0

    async def rows() -> AsyncIterator[bytes]:
        nonlocal messages
        async for data, count in parts:
            messages += count
            yield data

    output = LineOutput(day.target)
    await output.open()
    try:
        async for piece in to_pieces(day.dataset, rows()):
            await output.write(piece)
        await output.finish()
    finally:
        output.abandon()
    log.info("exported", file=day.target, messages=messages)
