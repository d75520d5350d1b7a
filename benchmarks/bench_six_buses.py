"""All six buses on at once, and one of them dead: what the other five still confirm a second, against what they do with six alive.

    python -m benchmarks six_buses [-- --dead kafka --fault hang --seconds 6]

The same events go to all, as fast as the fastest bus takes them; what a slower one has no room for goes to its spool, as does all for
the dead one, which dies before the first event. With and without it they take turns.

Invariant: a bus's speed is counted between two confirmations of its own, so that the size of its batches does not matter.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import cycle
from pathlib import Path
from statistics import median

from benchmarks.bench_publisher import META, Keywords, bundled, buses, make_events, make_plan
from benchmarks.report import Table, to_count
from tardis_machine.bronze.bundle import Bundle
from tardis_machine.eventbus.publisher import Publisher
from tests.contract.bus_under_test import Fault, load_bus

TARGET_RATIO = 0.9
EVENTS = 100_000
# How far those who publish may be ahead of the fastest bus.
AHEAD_EVENTS = 20_000
# Smaller batches than by default, so that a few seconds see many confirmations of each bus.
BATCHES: Mapping[str, Mapping[str, object]] = {
    "kafka": {"max-batch-size": 5_000},
    "redis": {"max-batch-size": 5_000},
    "file": {"max-batch-size": 5_000, "max-batch-delay-ms": 100},
}
# How long the start waits for buses, and how long all but a dead one may take.
CONNECT_S = 2.0
CONNECTED_S = 60.0
LOOK_S = 0.02


class Speed:
    """How fast one bus confirms."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def look(self, now: float, confirmed: int) -> None:
        if not self._seen or confirmed > self._seen[-1][1]:
            self._seen.append((now, confirmed))

    @property
    def events_a_second(self) -> float:
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_at - first_at) if last > first else 0.0


async def measure(
    keywords: Mapping[str, Keywords], bundles: Sequence[Bundle], folder: Path, seconds: float, dead: str | None = None
) -> dict[str, float]:
    """Events that each bus confirms a second."""
    plans = [make_plan(name, {**its, **BATCHES.get(name, {})}, folder / name) for name, its in keywords.items()]
    publisher = Publisher(plans, spool_dir=folder / "spool")
    await publisher.start(CONNECT_S)
    deadline = time.perf_counter() + CONNECTED_S
    while any(health.state != "connected" and health.bus != dead for health in publisher.health()):
        assert time.perf_counter() < deadline, publisher.health()
        await asyncio.sleep(LOOK_S)
    await publisher.session_start("7c9e6679", source="tardis-machine/bench", origin="replay", meta=META)
    speeds = {name: Speed() for name in keywords}
    published, most, looked_at = 0, 0, 0.0
    endless: Iterator[Bundle] = cycle(bundles)
    until = time.perf_counter() + seconds
    while (now := time.perf_counter()) < until:
        if now - looked_at >= LOOK_S:
            receipts, looked_at = publisher.receipts, now
            for receipt in receipts:
                speeds[receipt.bus].look(now, receipt.confirmed)
            most = max(receipt.confirmed for receipt in receipts)
        if published - most < AHEAD_EVENTS:
            bundle = next(endless)
            await publisher.publish(bundle)
            published += len(bundle)
        await asyncio.sleep(0 if published - most < AHEAD_EVENTS else LOOK_S / 10)
    await publisher.abort()
    return {name: speed.events_a_second for name, speed in speeds.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks six_buses --")
    parser.add_argument(
        "--dead", action="append", choices=["kafka", "redis", "nats"], help="one of them; may be repeated; all by default"
    )
    parser.add_argument("--fault", choices=["gone", "hang"], default="gone")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args(arguments)
    fault: Fault = given.fault
    bundles = bundled(make_events(EVENTS))
    gc.collect()
    gc.freeze()
    table = Table(f"Events/s while one bus is {fault}; the median of {given.rounds} rounds", "", "six alive", "one dead", "ratio")
    worst = 1.0
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        under_test = {name: stack.enter_context(closing(load_bus(name)(folder / name))) for name in buses()}
        keywords = {name: bus.direct_keywords() for name, bus in under_test.items()}

        def speeds(place: str, dead: str | None = None) -> dict[str, float]:
            return asyncio.run(measure(keywords, bundles, folder / place, given.seconds, dead))

        speeds("warm-up")
        for dead in given.dead or ["kafka", "redis", "nats"]:
            rounds: list[tuple[dict[str, float], dict[str, float]]] = []
            for number in range(given.rounds):
                alive = speeds(f"{dead}-{number}-alive")
                under_test[dead].inject(fault)
                try:
                    rounds.append((alive, speeds(f"{dead}-{number}-dead", dead)))
                finally:
                    under_test[dead].heal()
            for name in under_test:
                if name != dead:
                    before, after = (median(found[which][name] for found in rounds) for which in (0, 1))
                    ratio = median(after[name] / alive[name] for alive, after in rounds)
                    worst = min(worst, ratio)
                    table.add(f"{dead} dead: {name}", to_count(before), to_count(after), f"{ratio:.2f}")
    table.show()
    print(f"\nwanted: {TARGET_RATIO} of the speed for each of the other five: {'met' if worst >= TARGET_RATIO else 'not met'}")


if __name__ == "__main__":
    main()
