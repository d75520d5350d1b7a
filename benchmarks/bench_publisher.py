"""The publisher's own cost: events a second through it, against the same bus given ready batches, in one run.

Raw is the file bus itself, one batch after another, with records that are routed and cut already. The publisher gets the same
events a thousand at a time, as a replay hands them over, with its queue, ledger and accounts. The two take turns; the best round of
each counts. Rates and ratios are by the clock, as the publisher works while the bus writes: that needs both cores to itself.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import Table, to_count
from tardis_machine.eventbus import plan_bus
from tardis_machine.eventbus.contract import Event, Record
from tardis_machine.eventbus.encoding import BronzeEncoder
from tardis_machine.eventbus.file import FileBus, create_routing
from tardis_machine.eventbus.publisher import Publisher
from tardis_machine.eventbus.routing import Router
from tardis_machine.messages import Trade, to_timestamp
from tardis_machine.settings import from_keywords

META = {"request_id": "0f8fad5b", "route": "/replay-normalized", "transport": "http", "app_version": "0.1.0"}
HANDED_OVER = 1000
TARGET_RATIO = 0.75
TARGET_EVENTS_A_SECOND = 300_000


def make_events(count: int) -> list[Event]:
    encoder = BronzeEncoder(session_id="7c9e6679", origin="replay", meta=META)
    trades = []
    for number in range(count):
        at = to_timestamp(1_559_347_200_000_000 + number * 137)
        trades.append(Trade(("XBTUSD", "ETHUSD")[number % 2], "bitmex", f"id-{number}", 8000.5, 1 + number % 9, "buy", at, at))
    return encoder.encode(trades)


class Took(NamedTuple):
    """Seconds by the clock, and of the processor."""

    wall_s: float
    cpu_s: float

    @classmethod
    def since(cls, start: Took) -> Took:
        return cls(time.perf_counter() - start.wall_s, time.process_time() - start.cpu_s)

    @classmethod
    def now(cls) -> Took:
        return cls(time.perf_counter(), time.process_time())


async def run_raw(events: Sequence[Event], folder: Path, batch_size: int) -> Took:
    """The bus alone."""
    bus = FileBus(folder / "out")
    await bus.connect()
    router = Router("file", create_routing({}))
    records = [Record(router.route(event.stream), event) for event in events]
    batches = [records[start : start + batch_size] for start in range(0, len(records), batch_size)]
    started = Took.now()
    for batch in batches:
        await bus.send(batch)
    return Took.since(started)


async def run_publisher(events: Sequence[Event], folder: Path, mode: str) -> Took:
    """Until all is confirmed."""
    options = {"dir": folder / "out", "dead-letter-dir": folder / "dead", "queue-max-bytes": "1GiB"}
    plan = plan_bus("file", from_keywords({"file": options}, {}).for_bus("file"))
    publisher = Publisher([plan], spool_dir=folder / "spool", spool_mode=mode)  # type: ignore[arg-type]
    await publisher.start()
    await publisher.session_start("7c9e6679", source="tardis-machine/bench", origin="replay", meta=META)
    batches = [events[start : start + HANDED_OVER] for start in range(0, len(events), HANDED_OVER)]
    started = Took.now()
    for batch in batches:
        await publisher.publish(batch)
        await asyncio.sleep(0)
    publisher.session_end("7c9e6679")
    (receipt,) = await publisher.close(120)
    took = Took.since(started)
    assert receipt.confirmed == len(events) + 1, receipt
    return took


def hand_over_cost(events: Sequence[Event], folder: Path) -> float:
    """Microseconds of the event loop's thread for each event in `publish` itself."""

    async def run() -> float:
        options = {
            "dir": folder / "out",
            "dead-letter-dir": folder / "dead",
            "queue-max-bytes": "1GiB",
            "max-batch-delay-ms": "1m",
        }
        options |= {"max-batch-size": 10_000_000, "max-bytes": "1GiB"}
        plan = plan_bus("file", from_keywords({"file": options}, {}).for_bus("file"))
        publisher = Publisher([plan], spool_dir=folder / "spool")
        await publisher.start()
        spent = 0.0
        for start in range(0, len(events), HANDED_OVER):
            batch = events[start : start + HANDED_OVER]
            before = time.thread_time()
            await publisher.publish(batch)
            spent += time.thread_time() - before
        await publisher.close(120)
        return spent / len(events) * 1e6

    return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    events = make_events(arguments.events)
    gc.collect()
    gc.freeze()
    best: dict[str, Took] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(arguments.rounds):
            folder = Path(temporary) / str(number)
            took = {
                "raw": asyncio.run(run_raw(events, folder / "raw", 50_000)),
                "publisher": asyncio.run(run_publisher(events, folder / "publisher", "overflow")),
                "write-ahead": asyncio.run(run_publisher(events, folder / "ahead", "always")),
            }
            best = {name: Took(*map(min, this, best.get(name, this))) for name, this in took.items()}
        cost_us = min(hand_over_cost(events, Path(temporary) / f"cost-{number}") for number in range(arguments.rounds))
    size = sum(len(event.value) for event in events) / len(events)
    table = Table(
        f"{to_count(len(events))} trades of {size:.0f} bytes, Parquet with zstd, fsync and rename; best of {arguments.rounds}",
        *("", "events/s", "processor us", "of raw"),
    )
    for name, this in best.items():
        ratio = best["raw"].wall_s / this.wall_s
        table.add(name, to_count(len(events) / this.wall_s), f"{this.cpu_s / len(events) * 1e6:.2f}", f"{ratio:.2f}")
    table.show()
    print(f"\npublish() takes {cost_us:.2f} us an event of the event loop;", end=" ")
    rate, ratio = len(events) / best["publisher"].wall_s, best["raw"].wall_s / best["publisher"].wall_s
    verdict = "met" if ratio >= TARGET_RATIO and rate >= TARGET_EVENTS_A_SECOND else "not met"
    print(f"wanted on an idle machine: {TARGET_RATIO} of raw and {TARGET_EVENTS_A_SECOND // 1000} k events/s: {verdict}")


if __name__ == "__main__":
    main()
