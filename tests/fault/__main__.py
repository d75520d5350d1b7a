"""The command: runs, prints the ledgers against what the consumers saw, and ends with 1 where anything is off."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.report import Table
from tardis_machine.settings.buses import BUS_MODULES
from tests.contract.bus_under_test import load_bus
from tests.fault.run import FaultRun, Outcome
from tests.fault.samples import TOLERANCE

BROKERS = [name for name in BUS_MODULES if name != "file"]


def main() -> int:
    """Takes the names of buses."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault", description=__doc__)
    parser.add_argument(
        "buses", nargs="*", metavar="bus", help=f"as its options begin: {', '.join(BUS_MODULES)}; none: all brokers"
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=10, help="of each kind that a service can have")
    parser.add_argument("--kills", type=int, default=5, help="of the machine, and of each kind that it can have")
    parser.add_argument("--longest", type=float, default=6.0, help="seconds that a fault may last")
    parser.add_argument("--slow-readers", type=int, default=1000, help="beside all others")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="rounds of all faults for so long, in place of --events")
    parser.add_argument("--pace", type=float, default=400, help="lines a second that clients read in a soak")
    parser.add_argument("--folder", type=Path, help="where all of it is kept, to look at it afterwards")
    given = parser.parse_args()
    names = given.buses or BROKERS
    if unknown := set(names).difference(BUS_MODULES):
        parser.error(f"bus: expected {', '.join(BUS_MODULES)}, got {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="fault-") as temporary, ExitStack() as stack:
        folder = given.folder or Path(temporary)
        buses = []
        for name in names:
            (folder / "buses" / name).mkdir(parents=True)
            buses.append(load_bus(name)(folder / "buses" / name))
            stack.callback(buses[-1].close)
        run = FaultRun(
            buses,
            folder,
            events=given.events,
            seed=given.seed,
            faults_each=given.faults,
            kills=given.kills,
            longest_s=given.longest,
            slow_readers=given.slow_readers,
            soak_s=None if given.soak is None else given.soak * 60,
            lines_a_second=given.pace,
            say=partial(print, flush=True),
        )
        outcome = run.run()
        show(given.seed, outcome)
    return 1 if outcome.problems else 0


def show(seed: int, outcome: Outcome) -> None:
    """Prints the tables and the verdict."""
    for bus, audit in outcome.audits.items():
        table = Table(
            f"{bus}, seed {seed}: ledgers against the consumer",
            *("payload case", "handed out", "in ledgers", "on the bus", "repeated", "lost", "out of order"),
        )
        for case, numbers in audit.rows().items():
            table.add(case, *(f"{number:,}" for number in numbers))
        totals = zip(*audit.rows().values(), strict=True)
        table.add("all", *(f"{sum(column):,}" for column in totals))
        table.show()
        ahead = (
            f"; live trades that clients got just before a cut, and the bus not: {audit.live_ahead}" if audit.live_ahead else ""
        )
        print(f"sessions: {audit.sessions}, of them live {audit.live_sessions}, cut short {audit.incomplete}{ahead}")
    if outcome.rounds:
        show_samples(outcome)
    faults = ", ".join(f"{of} {fault} {count}" for (of, fault), count in sorted(outcome.injected.items())) or "none"
    print(f"\nfaults: {faults}; the machine was killed {outcome.machine_kills} times; {outcome.seconds:.0f} s")
    print(f"beside them: {outcome.slow_readers} slow readers at most, {outcome.live_trades:,} live trades handed out")
    print(f"the full disk: {outcome.disk}")
    for fault, reason in outcome.cannot.items():
        print(f"left out: {fault}: {reason}")
    print(
        f"memory of the machine: {outcome.idle_mb:.0f} MB idle, {outcome.peak_mb:.0f} MB at most, {outcome.limit_mb:.0f} MB allowed"
    )
    for problem in outcome.problems:
        print(f"problem: {problem}")
    print("verdict:", "something is off" if outcome.problems else "nothing lost, nothing out of order, repeats only as resends")


def show_samples(outcome: Outcome) -> None:
    """What was held in each round, from low to high water."""
    table = Table(
        "what the machine held, low water to high water", "round", "memory, MB", "its processes, MB", "descriptors", "processes"
    )
    for number, low, high in outcome.rounds:
        table.add(str(number), *(f"{least:.0f} to {most:.0f}" for least, most in zip(low, high, strict=True)))
    table.show()
    more = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in TOLERANCE._asdict().items())
    print(f"low water of the last round may be a tenth above that of the first, and besides: {more}")


if __name__ == "__main__":
    sys.exit(main())
