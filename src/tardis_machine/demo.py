"""The demo: everything at once, on embedded defaults. Sample history -> server -> file bus -> Spark -> tables and a chart.

Invariant: it walks through the same doors as a user does, counts at each of them, and fails where the counts differ.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import Any

from .app import TardisMachine
from .errors import LakeError
from .history.slice import MINUTE_US
from .messages import to_timestamp
from .sample.history_api import SampleHistoryApi
from .sample.market import Market
from .settings import Settings
from .telemetry import setup_logging

__all__ = ["run"]

EXCHANGE, SYMBOL = "bitmex", "XBTUSD"
# The first day of a month: real history of it is free.
FROM_US = 1_580_515_200_000_000  # 2020-02-01
DATA_TYPES = ("trade", "book_change", "derivative_ticker")
SILVER = {"trade": "silver.trades", "book_change": "silver.book_changes", "derivative_ticker": "silver.derivative_tickers"}
ASK = 'tardis-machine lake sql "select * from silver.trades limit 5" --lake'
CHART_QUERY = f"""
    select date_trunc('second', local_ts) as time, avg(price) as price, sum(amount) as volume
    from silver.trades where symbol = '{SYMBOL}' group by 1 order by 1
"""  # noqa: S608 - a constant


def run(settings: Settings) -> int:
    """The `demo` command; 0 when every stage has seen the same events."""
    from rich.console import Console

    setup_logging("text", "debug" if settings.debug else "warning")
    console = Console()
    folder = Path(settings.demo_dir).absolute()
    # Made anew each time: the counts are of this run.
    for part in ("events", "spool", "lake"):
        shutil.rmtree(folder / part, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    stages: dict[str, Mapping[str, int]] = {}
    with _upstream(settings, console) as api_url:
        stages |= asyncio.run(_serve_and_ask(settings, folder, api_url, console))
    stages |= _land(settings, folder, console)
    return _report(stages, folder, console)


@contextmanager
def _upstream(settings: Settings, console: Any) -> Iterator[str]:
    """The history API: a stand-in that serves the sample market, or with `--demo-real` the real one."""
    if settings.demo_real:
        console.print(f"[bold]history[/]   {settings.api_url}")
        yield settings.api_url
        return
    console.print(f"[bold]history[/]   a sample market (seed {settings.demo_seed}) behind a stand-in of the history API")
    with SampleHistoryApi(Market(seed=settings.demo_seed)).serve_in_thread() as api:
        yield api.url


async def _serve_and_ask(settings: Settings, folder: Path, api_url: str, console: Any) -> dict[str, Mapping[str, int]]:
    """Asks a machine for history as a client does; what it publishes goes to files."""
    import aiohttp

    # Sample history is not what the shared cache is for.
    cache_dir = settings.cache_dir if settings.demo_real else folder / "cache" / str(settings.demo_seed)
    machine = TardisMachine(
        api_url=api_url,
        api_key=settings.api_key,
        cache_dir=cache_dir,
        spool_dir=folder / "spool",
        file={"dir": folder / "events"},
    )
    await machine.start(port=0)
    to_us = FROM_US + settings.demo_minutes * MINUTE_US
    options = {
        "exchange": EXCHANGE,
        "symbols": [SYMBOL],
        "from": to_timestamp(FROM_US),
        "to": to_timestamp(to_us),
        "dataTypes": DATA_TYPES,
        "withDisconnectMessages": True,
    }
    received: Counter[str] = Counter()
    try:
        url = f"http://127.0.0.1:{machine.port}/replay-normalized"
        console.print(f"[bold]server[/]    {url}: {settings.demo_minutes} minutes of {EXCHANGE} {SYMBOL}")
        started = time.monotonic()
        async with aiohttp.ClientSession() as http, http.post(url, json=options) as response:
            if response.status != 200:
                raise LakeError(f"the server answered {response.status}: {await response.text()}")
            with _progress(console, settings.demo_minutes) as advance:
                async for line in response.content:
                    message = json.loads(line)
                    received[message["type"]] += 1
                    advance(message["localTimestamp"])
        total = received.total()
        console.print(f"[bold]received[/]  {total:,} messages in {time.monotonic() - started:.1f} s")
    finally:
        [receipt] = await machine.stop()
    console.print(f"[bold]published[/] {receipt.published:,} events, confirmed {receipt.confirmed:,}, lost {receipt.lost}")
    return {"received by the client": received, "in the files of the bus": _count_files(folder / "events")}


def _count_files(folder: Path) -> dict[str, int]:
    """Records by payload case, the last part of their key, read without any code of the bus."""
    import pyarrow.parquet as pq

    counts: Counter[str] = Counter()
    for file in folder.rglob("*.parquet"):
        for entry in pq.read_table(file, columns=["key"])["key"].value_counts().to_pylist():
            counts[entry["values"].rpartition("|")[2]] += entry["counts"]
    return counts


@contextmanager
def _progress(console: Any, minutes: int) -> Iterator[Any]:
    """A bar over the minutes of history that have gone by."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("[bold]replay[/]   "),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} minutes"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=minutes)
        seen: set[str] = set()

        def advance(local_timestamp: str) -> None:
            minute = local_timestamp[:16]
            if minute not in seen:
                seen.add(minute)
                progress.update(task, completed=len(seen))

        yield advance


def _land(settings: Settings, folder: Path, console: Any) -> dict[str, Mapping[str, int]]:
    """The files to bronze and silver, with Spark inside this process."""
    from .lakehouse.chart import draw_chart
    from .lakehouse.ingest import Ingest
    from .lakehouse.session import start_session
    from .lakehouse.sql import query
    from .lakehouse.tables import Lake

    started = time.monotonic()
    with console.status("[bold]spark[/]     starting"):
        spark = start_session(
            master=settings.master, remote=settings.remote, conf=settings.spark_conf, jars_dir=settings.spark_jars
        )
    lake = Lake.at(folder / "lake")
    with console.status("[bold]spark[/]     files -> bronze -> silver"):
        Ingest(spark, lake, "files", SimpleNamespace(file_dir=folder / "events")).run_once()
        bronze = query(spark, lake, "select payload_case, count(*) from bronze.events group by 1").collect()
        silver = {case: query(spark, lake, f"select * from {table}").count() for case, table in SILVER.items()}  # noqa: S608
        draw_chart(query(spark, lake, CHART_QUERY).toPandas(), folder / "trades.png", f"{EXCHANGE} {SYMBOL}")
    console.print(f"[bold]landed[/]    in {lake.root} in {time.monotonic() - started:.1f} s, Spark's start included")
    spark.stop()
    return {"bronze.events": dict(map(tuple, bronze)), "silver": silver}


def _report(stages: Mapping[str, Mapping[str, int]], folder: Path, console: Any) -> int:
    from rich.table import Table

    table = Table(title="Events at each stage")
    for name in ("stage", *DATA_TYPES, ""):
        table.add_column(name, justify="left" if name in ("stage", "") else "right")
    first = next(iter(stages.values()))
    agree = True
    for stage, counts in stages.items():
        same = all(counts.get(kind, 0) == first.get(kind, 0) for kind in DATA_TYPES)
        agree &= same
        table.add_row(stage, *(f"{counts.get(kind, 0):,}" for kind in DATA_TYPES), "[green]✓[/]" if same else "[red]✗[/]")
    console.print(table)
    console.print(f"chart: {folder / 'trades.png'}")
    console.print(f"ask:   {ASK} {quote(str(folder / 'lake'))}", soft_wrap=True)
    if not agree:
        console.print("[red]the counts differ: something was lost or repeated on the way[/]")
    return 0 if agree else 1
