"""What publishing costs the client of a replay: with a bus on and off, at its own pace and at full speed, and while the broker is away.

    python -m benchmarks publishing [-- --bus file --only full-speed --rounds 3 --outage 20]

Invariant: with and without a bus it is the same request to the same kind of server, in turns within a round; the median of the
rounds counts. The broker runs on the same cores, as do the clients: on two cores a ratio says what all of them cost together.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from benchmarks.drain import http_request
from benchmarks.replay_server import DRAIN_S, Cost, ReplayServer, running_server
from benchmarks.report import Table, spread, to_count
from benchmarks.sample_hour import fill, options
from tests.contract.bus_under_test import BusUnderTest, Fault, load_bus

QUEUE_BYTES = 64 * 2**20
PACED_TARGET, FULL_SPEED_TARGET, OUTAGE_TARGET = 0.99, 0.5, 1.0
MEMORY_TARGET_MB = QUEUE_BYTES / 2**20 + 100
CASES = ("paced", "full-speed", "outage")
# Rounds differ by this much on a machine that others use too.
NOISE = 0.1


@contextmanager
def with_bus(bus: BusUnderTest, folder: Path) -> Iterator[ReplayServer]:
    """A server that publishes; at its end all is delivered."""
    letters = {"queue-max-bytes": QUEUE_BYTES, "dead-letter-dir": folder / "dead-letters"}
    # Nothing of the tests between the bus and its service: that would take a share of the cores.
    flags = bus.flags(**bus.direct_keywords(), **letters)
    argv = ["--spool-dir", str(folder / "spool"), "--shutdown-timeout", f"{DRAIN_S - 10:.0f}s", *flags]
    with running_server(*argv) as server:
        yield server


def await_drained(server: ReplayServer) -> None:
    """What one round left in the queue is no cost of the next."""
    deadline = time.monotonic() + DRAIN_S
    while any((health := server.bus_health())[name] for name in ("queue_events", "in_flight_events", "spool_events")):
        if time.monotonic() > deadline:
            raise SystemExit(f"the bus does not take what was published: {health['last_error']}")
        time.sleep(0.1)


def paced(off: ReplayServer, on: ReplayServer, minutes: int, rounds: int, lines_a_second: float) -> None:
    """A client with a pace of its own should see no difference."""
    request = http_request("/replay-normalized", options("bitmex", minutes, "trade", "book_change"))
    reads: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
    for _ in range(rounds):
        reads["off"].append(off.read_at(request, lines_a_second))
        reads["on"].append(on.read_at(request, lines_a_second))
        await_drained(on)
    table = Table(
        f"A client that takes {to_count(lines_a_second)} lines/s",
        "publishing",
        "lines/s",
        "",
        "p99 gap",
        "p99.9 gap",
        "longest gap",
    )
    rates = {name: [read["lines_a_second"] for read in found] for name, found in reads.items()}
    for name, found in reads.items():
        gaps = [f"{median(read[gap] for read in found) * 1e3:.2f} ms" for gap in ("p99_s", "p999_s", "longest_s")]
        table.add(name, to_count(median(rates[name])), spread(rates[name]), *gaps)
    ratio = median(on_rate / off_rate for off_rate, on_rate in zip(rates["off"], rates["on"], strict=True))
    table.add("ratio", f"{ratio:.3f}")
    table.show()
    _judge(f"{PACED_TARGET} of the rate", ratio >= PACED_TARGET)


def full_speed(off: ReplayServer, on: ReplayServer, minutes: int, rounds: int) -> None:
    """Encoding and sending cost more than mapping: the cores are the limit. Processor time is of the server and its workers."""
    request = http_request("/replay-normalized", options("bitmex", minutes, "trade", "book_change"))
    costs: dict[str, list[Cost]] = {"off": [], "on": []}
    for _ in range(rounds):
        for name, server in (("off", off), ("on", on)):
            costs[name].append(server.run(request))
        await_drained(on)
    rates = {name: [cost.messages / cost.wall_s for cost in found] for name, found in costs.items()}
    table = Table("Full speed", "publishing", "messages/s", "", "of off", "processor us")
    ratio = median(on_rate / off_rate for off_rate, on_rate in zip(rates["off"], rates["on"], strict=True))
    for name, share in (("off", 1.0), ("on", ratio)):
        cpu_us = median(cost.cpu_s / cost.messages for cost in costs[name]) * 1e6
        table.add(name, to_count(median(rates[name])), spread(rates[name]), f"{share:.2f}", f"{cpu_us:.1f}")
    table.show()
    _judge(f"{FULL_SPEED_TARGET} on 2 cores", ratio >= FULL_SPEED_TARGET)


def outage(bus: BusUnderTest, folder: Path, minutes: int, seconds: float) -> None:
    """The response goes on as with the broker up, and memory stays within its bound; afterwards all is delivered."""
    request = http_request("/replay-normalized", options("bitmex", minutes, "trade", "book_change"))
    table = Table(
        f"The broker away for {seconds:.0f} s, replays one after another",
        "broker",
        "messages/s",
        "of up",
        "idle MB",
        "most MB",
        "spool MB",
    )
    up_rate, worst_ratio, worst_mb = 0.0, 1.0, 0.0
    faults: list[Fault] = [fault for fault in ("hang", "gone") if fault in bus.faults]
    for fault in (None, *faults):
        with with_bus(bus, folder / str(fault)) as server:
            server.run(request)  # counts the messages, and warms up
            await_drained(server)
            idle_mb = server.own_mb
            if fault is not None:
                bus.inject(fault)
            try:
                rate = _rate_for(lambda: server.run(request).messages, seconds)
                spool_mb = server.bus_health()["spool_bytes"] / 2**20
            finally:
                if fault is not None:
                    bus.heal()
            peak_mb = server.own_peak_mb
            await_drained(server)
        up_rate = up_rate or rate
        if fault is not None:
            worst_ratio = min(worst_ratio, rate / up_rate)
        worst_mb = max(worst_mb, peak_mb)
        table.add(fault or "up", to_count(rate), f"{rate / up_rate:.2f}", f"{idle_mb:.0f}", f"{peak_mb:.0f}", f"{spool_mb:.0f}")
    table.show()
    _judge(f"no slower than with the broker up (within {NOISE:.0%} of noise)", worst_ratio >= OUTAGE_TARGET - NOISE)
    _judge(f"memory of the server under queue-max-bytes + 100 MB = {MEMORY_TARGET_MB:.0f} MB", worst_mb < MEMORY_TARGET_MB)


def _rate_for(run: Callable[[], int], seconds: float) -> float:
    began, messages = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        messages += run()
    return messages / (time.monotonic() - began)


def _judge(wanted: str, is_met: bool) -> None:
    print(f"\nwanted: {wanted}: {'met' if is_met else 'not met'}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks publishing --")
    default_bus = "kafka" if find_spec("tests.contract.buses.kafka") else "file"
    parser.add_argument("--bus", default=default_bus, help="as its options begin")
    parser.add_argument("--only", choices=CASES, help="one of the tables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--pace", type=float, default=50_000, help="lines a second of the client that has a pace of its own")
    parser.add_argument("--outage", type=float, default=60.0, help="seconds that the broker is away")
    given = parser.parse_args(arguments)
    fill(given.minutes)
    with tempfile.TemporaryDirectory(prefix="publishing-") as temporary:
        folder = Path(temporary)
        (folder / "bus").mkdir()
        bus = load_bus(given.bus)(folder / "bus")
        try:
            print(f"\nbus: {given.bus}", flush=True)
            if given.only != "outage":
                with running_server() as off, with_bus(bus, folder) as on:
                    if given.only != "full-speed":
                        paced(off, on, given.minutes, given.rounds, given.pace)
                    if given.only != "paced":
                        full_speed(off, on, given.minutes, given.rounds)
            if given.only in (None, "outage"):
                outage(bus, folder, given.minutes, given.outage)
        finally:
            bus.close()


if __name__ == "__main__":
    main()
