"""`tardis-machine export csv`: history as the CSV files that tardis.dev publishes, a file for each dataset, symbol and day.

Invariant: a file under its name is whole. What is there already is not made again, so that an export that was stopped goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from ..dates import parse_date_us
from ..engine import Engine, Machine
from ..errors import OptionsError
from ..exchanges import exchange_named
from ..history.datasets import to_file_name
from ..messages import to_timestamp
from ..pipeline.csv_files import DAY_US, day_request
from ..pipeline.csv_rows import Dataset, dataset_named
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
    return run_loop(_export(settings, list(_days(settings))))


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


async def _write(machine: Machine, exchange: str, day: DatasetDay, turns: asyncio.Semaphore) -> None:
    async with turns:
        if day.target.exists():
            log.info("is there already", file=day.target)
            return
        messages = 0
        output = LineOutput(day.target)
        await output.open()
        try:
            request = day_request(day.dataset, exchange, [day.symbol], day.start_us, day.end_us)
            async with aclosing(machine.replay("export", [request], form="csv")) as chunks:
                async for chunk in chunks:
                    await output.write(bytes(chunk.data) if messages else day.dataset.header + bytes(chunk.data))
                    messages += chunk.messages
            await output.finish()
        finally:
            output.abandon()
        log.info("exported", file=day.target, messages=messages)
