"""The publisher's own cost: events a second through it, against the same client library sending ready bytes, in one run.

Raw is `benchmarks/raw/<bus>.py`: records that are routed already, as fast as the library goes, with the same durability. The
publisher gets the same events a thousand at a time, bundled as workers hand them over, with its queue, ledger and accounts;
write-ahead has each on disk first. They take turns; rates are medians, and a ratio is the median of the rounds' own, beside the
least of them, all on the event loop that commands run on. By the clock, with the service on the same machine: that needs its cores
to itself.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, Literal

from benchmarks.report import Table, spread, to_count
from tardis_machine.bronze.bundle import Bundle
from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import Event
from tardis_machine.commands.event_loop import run_loop
from tardis_machine.eventbus import plan_bus
from tardis_machine.eventbus.contract import Record
from tardis_machine.eventbus.publisher import BusPlan, Publisher
from tardis_machine.eventbus.routing import Router
from tardis_machine.messages import Trade, to_timestamp
from tardis_machine.settings import from_keywords
from tardis_machine.settings.buses import BUS_MODULES
from tests.contract.bus_under_test import load_bus

META = {"request_id": "0f8fad5b", "route": "/replay-normalized", "transport": "http", "app_version": "0.1.0"}
HANDED_OVER = 1000
TARGET_RATIO = 0.75
AHEAD_TARGET_RATIO = 0.6
"""Of the publisher that does not write ahead."""
DEFAULT_EVENTS = 50_000

Keywords = Mapping[str, Any]


def buses() -> list[str]:
    """Those that have a raw side, and can be tested."""
    folders = (Path(__file__).parent / "raw", Path(__file__).parents[1] / "tests" / "contract" / "buses")
    return [bus for bus in BUS_MODULES if all((folder / f"{bus}.py").exists() for folder in folders)]


def make_events(count: int) -> list[Event]:
    encoder = BronzeEncoder(session_id="7c9e6679", origin="replay", meta=META)
    trades = []
    for number in range(count):
        at = to_timestamp(1_559_347_200_000_000 + number * 137)
        trades.append(Trade(("XBTUSD", "ETHUSD")[number % 2], "bitmex", f"id-{number}", 8000.5, 1 + number % 9, "buy", at, at))
    return [*encoder.encode(trades)]


def make_plan(bus: str, keywords: Keywords, folder: Path) -> BusPlan:
    options = {**keywords, "dead-letter-dir": folder / "dead", "queue-max-bytes": "1GiB"}
    return plan_bus(bus, from_keywords({bus: options}, {}).for_bus(bus))


def measure_raw(raw: ModuleType, bus: str, keywords: Keywords, events: Sequence[Event], folder: Path) -> float:
    """Seconds until all is confirmed, from when it is connected."""
    plan = make_plan(bus, keywords, folder)
    router = Router(bus, plan.routing, carries_headers=plan.bus.limits.carries_headers)
    records = [Record(router.route(event.stream), event) for event in events]

    began = 0.0

    def begin() -> None:
        nonlocal began
        began = time.perf_counter()

    run_loop(raw.send_ready(keywords, records, begin))
    return time.perf_counter() - began


def bundled(events: Sequence[Event]) -> list[Bundle]:
    """As they come from a worker."""
    return [Bundle.of(events[start : start + HANDED_OVER]) for start in range(0, len(events), HANDED_OVER)]


def measure_publisher(
    bus: str, keywords: Keywords, events: Sequence[Event], folder: Path, mode: Literal["overflow", "always"]
) -> float:
    """Seconds until all is confirmed."""
    bundles = bundled(events)

    async def run() -> float:
        publisher = Publisher([make_plan(bus, keywords, folder)], spool_dir=folder / "spool", spool_mode=mode)
        await publisher.start()
        await publisher.session_start("7c9e6679", source="tardis-machine/bench", origin="replay", meta=META)
        started = time.perf_counter()
        for bundle in bundles:
            await publisher.publish(bundle)
            await asyncio.sleep(0)
        publisher.session_end("7c9e6679")
        (receipt,) = await publisher.close(600)
        assert receipt.confirmed == len(events) + 1, receipt
        return time.perf_counter() - started

    return run_loop(run())


def measure_bus(bus: str, events: Sequence[Event], rounds: int, folder: Path) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """For each variant: events a second in each round, by the way of sending."""
    raw = import_module(f"benchmarks.raw.{bus}")
    under_test = load_bus(bus)(folder)
    try:
        for variant, further in getattr(raw, "VARIANTS", {"": {}}).items():
            keywords = {**under_test.direct_keywords(), **(further(under_test) if callable(further) else further)}
            rates: dict[str, list[float]] = {}
            for number in range(rounds):
                place = folder / f"{variant or 'plain'}-{number}"
                took = {"raw": measure_raw(raw, bus, keywords, events, place / "raw")}
                took["publisher"] = measure_publisher(bus, keywords, events, place / "publisher", "overflow")
                if not variant:
                    took["write-ahead"] = measure_publisher(bus, keywords, events, place / "ahead", "always")
                for name, seconds in took.items():
                    rates.setdefault(name, []).append(len(events) / seconds)
            yield f"{bus} {variant}".rstrip(), rates
    finally:
        under_test.close()


def ratios_of(rates: Sequence[float], others: Sequence[float]) -> list[float]:
    """Of each round."""
    return [rate / other for rate, other in zip(rates, others, strict=True)]


def judge(bus: str, variant: str, way: str, rates: Mapping[str, Sequence[float]]) -> str:
    """Whether it is as fast as is wanted."""
    raw_side = import_module(f"benchmarks.raw.{bus}")
    if way == "write-ahead":
        return _verdict(median(ratios_of(rates[way], rates["publisher"])) >= AHEAD_TARGET_RATIO)
    if way != "publisher":
        return ""
    of_raw = ratios_of(rates[way], rates["raw"])
    is_each = variant in getattr(raw_side, "EACH_ROUND", ())
    # Events a second that it has to reach on an idle machine.
    least_rate = getattr(raw_side, "TARGETS", {}).get(variant.removeprefix(bus).strip(), 0)
    is_met = (min(of_raw) if is_each else median(of_raw)) >= TARGET_RATIO and median(rates[way]) >= least_rate
    return (
        _verdict(is_met)
        + (" in each round" if is_each else "")
        + (f", with {to_count(least_rate)} events/s" if least_rate else "")
    )


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "not met"


def hand_over_cost(events: Sequence[Event], folder: Path) -> float:
    """Microseconds of the event loop's thread for each event in `publish` itself."""

    async def run() -> float:
        keywords = {"dir": folder / "out", "max-batch-delay-ms": "1m", "max-batch-size": 10_000_000, "max-bytes": "1GiB"}
        publisher = Publisher([make_plan("file", keywords, folder)], spool_dir=folder / "spool")
        await publisher.start()
        spent = 0.0
        for bundle in bundled(events):
            before = time.thread_time()
            await publisher.publish(bundle)
            spent += time.thread_time() - before
        await publisher.close(120)
        return spent / len(events) * 1e6

    return run_loop(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bus", action="append", choices=buses(), help="one of them; may be repeated; all by default")
    parser.add_argument("--events", type=int, help="by default what each bus's raw side says")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    table = Table(
        f"Trades until they are confirmed; median of {arguments.rounds} rounds",
        *("", "events", "bytes", "events/s", "spread", "of raw", "least", "of publisher"),
        f"wanted: {TARGET_RATIO} of raw, {AHEAD_TARGET_RATIO} of publisher",
    )
    events: list[Event] = []
    with tempfile.TemporaryDirectory() as temporary:
        for bus in arguments.bus or buses():
            raw = import_module(f"benchmarks.raw.{bus}")
            count = arguments.events or getattr(raw, "EVENTS", DEFAULT_EVENTS)
            if len(events) < count:
                events = make_events(count)
                gc.collect()
                gc.freeze()
            size = sum(len(event.value) for event in events[:count]) / count
            for variant, rates in measure_bus(bus, events[:count], arguments.rounds, Path(temporary) / bus):
                for way, found in rates.items():
                    of_raw = ratios_of(found, rates["raw"])
                    cells = (to_count(median(found)), spread(found), f"{median(of_raw):.2f}", f"{min(of_raw):.2f}")
                    of_publisher = f"{median(ratios_of(found, rates['publisher'])):.2f}" if way == "write-ahead" else ""
                    verdict = judge(bus, variant, way, rates)
                    table.add(f"{variant}: {way}", to_count(count), f"{size:.0f}", *cells, of_publisher, verdict)
        cost_us = min(hand_over_cost(events, Path(temporary) / f"cost-{number}") for number in range(3))
    table.show()
    print(f"\npublish() takes {cost_us:.2f} us an event of the event loop.")


if __name__ == "__main__":
    main()
