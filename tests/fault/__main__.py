"""The command: runs, prints the ledger against what the consumer saw, and ends with 1 where anything is off."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.report import Table
from tardis_machine.settings.buses import BUS_MODULES
from tests.contract.bus_under_test import load_bus
from tests.fault.run import FaultRun, Outcome


def main() -> int:
    """Takes the name of a bus."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault", description=__doc__)
    parser.add_argument("bus", choices=tuple(BUS_MODULES), help="as its options begin")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=10, help="of each kind that the service can have")
    parser.add_argument("--kills", type=int, default=5, help="of the machine")
    parser.add_argument("--longest", type=float, default=6.0, help="seconds that a fault may last")
    parser.add_argument("--folder", type=Path, help="where all of it is kept, to look at it afterwards")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fault-") as temporary:
        folder = given.folder or Path(temporary)
        (folder / "bus").mkdir(parents=True)
        bus = load_bus(given.bus)(folder / "bus")
        try:
            run = FaultRun(
                bus,
                folder,
                events=given.events,
                seed=given.seed,
                faults_each=given.faults,
                kills=given.kills,
                longest_s=given.longest,
                say=partial(print, flush=True),
            )
            outcome = run.run()
        finally:
            bus.close()
        show(given.bus, given.seed, outcome)
    return 1 if outcome.problems else 0


def show(bus: str, seed: int, outcome: Outcome) -> None:
    """Prints the tables and the verdict."""
    audit = outcome.audit
    table = Table(
        f"{bus}, seed {seed}: ledgers against the consumer",
        *("payload case", "handed out", "in ledgers", "on the bus", "repeated", "lost", "out of order"),
    )
    for case, numbers in audit.rows().items():
        table.add(case, *(f"{number:,}" for number in numbers))
    totals = zip(*audit.rows().values(), strict=True)
    table.add("all", *(f"{sum(column):,}" for column in totals))
    table.show()
    faults = ", ".join(f"{name} {count}" for name, count in sorted(outcome.injected.items())) or "none"
    print(f"\nfaults of the broker: {faults}; the machine was killed {outcome.machine_kills} times; {outcome.seconds:.0f} s")
    print(f"sessions: {audit.sessions}, of them cut short {audit.incomplete}")
    print(
        f"memory of the machine: {outcome.idle_mb:.0f} MB idle, {outcome.peak_mb:.0f} MB at most, {outcome.limit_mb:.0f} MB allowed"
    )
    for problem in outcome.problems:
        print(f"problem: {problem}")
    print("verdict:", "something is off" if outcome.problems else "nothing lost, nothing out of order, repeats only as resends")


if __name__ == "__main__":
    sys.exit(main())
