"""The command: runs, prints what was compared, and ends with 1 where anything differs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Table
from tests.lake_crash.run import ALL_PRODUCTS, CrashRun, Outcome
from tests.lake_crash.together import TogetherRun
from tests.servers.seaweedfs import SeaweedServer

MOST_EVENTS_TOGETHER = 40_000
"""Of each bus: what is asked is whether jobs disturb each other, not how much they take."""


def main() -> int:
    """Takes how much, and how often."""
    parser = argparse.ArgumentParser(prog="python -m tests.lake_crash", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--traces",
        type=int,
        default=16,
        help="plans, ends and versions that a job may write in one layer before it is killed, three times as many in gold; with "
        "--together, all jobs in all layers",
    )
    parser.add_argument("--gold", default=",".join(ALL_PRODUCTS), help="the products to keep, with commas between them")
    parser.add_argument("--lake", choices=("folder", "s3"), default="folder", help="where the lakes lie; s3 starts a server")
    parser.add_argument(
        "--together",
        action="store_true",
        help="two ingests, backfills, optimizing and verifying at once, of which one is killed in each of so many rounds as --kills",
    )
    parser.add_argument("--folder", type=Path, help="where all of it is kept, to look at it afterwards")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lake-crash-") as temporary, ExitStack() as servers:
        place: dict[str, Any] = {}
        if given.lake == "s3":
            server = servers.enter_context(SeaweedServer(Path(temporary) / "server"))
            place = {"root": f"s3://{server.create_bucket('crash')}", "options": server.lake_options()}
        say, folder = partial(print, flush=True), given.folder or Path(temporary)
        if given.together:
            events = min(given.events, MOST_EVENTS_TOGETHER)
            with TogetherRun(
                folder, **place, events=events, rounds=given.kills, seed=given.seed, most_traces=given.traces, say=say
            ) as together:
                outcome = together.run()
            show(given.seed, outcome)
            return 0 if is_good(outcome) else 1
        with CrashRun(
            folder,
            **place,
            events=given.events,
            kills=given.kills,
            seed=given.seed,
            most_traces=given.traces,
            gold=given.gold.split(","),
            say=say,
        ) as run:
            outcome = run.run()
        show(given.seed, outcome)
    return 0 if is_good(outcome) else 1


def is_good(outcome: Outcome) -> bool:
    """Whether nothing differs, and nothing else was off."""
    return not outcome.problems and all(table.is_equal for table in outcome.comparisons)


def show(seed: int, outcome: Outcome) -> None:
    """Prints the table and the verdict."""
    table = Table(
        f"seed {seed}: a lake whose job was killed {outcome.kills} times, against one that nobody disturbed",
        *("table", "rows", "rows undisturbed", "only in the first", "only in the other"),
    )
    for item in outcome.comparisons:
        table.add(item.table, f"{item.rows:,}", f"{item.other_rows:,}", f"{item.only_here:,}", f"{item.only_there:,}")
    table.show()
    print(f"\nall columns of all rows; {outcome.disturbed_s:.0f} s with kills, {outcome.undisturbed_s:.0f} s without")
    print(
        f"killed: {', '.join(f'{what} {count}' for what, count in sorted(outcome.deaths.items()))}; the full disk: {outcome.disk}"
    )
    for item in outcome.comparisons:
        if item.example is not None:
            print(f"difference: {item.table}: {item.example}")
    for problem in outcome.problems:
        print(f"problem: {problem}")
    print("verdict:", "equal, row by row" if is_good(outcome) else "something is off")


if __name__ == "__main__":
    sys.exit(main())
