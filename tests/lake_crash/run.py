"""One crash run: files that come bit by bit, a job that is killed at random points, one that then ends, and one that nobody disturbed.

Invariant: every job that is killed has had something to do, and was seen to do it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.lake_crash.comparing import Comparison, compare_lakes
from tests.lake_crash.events import MARKETS, Market, write_files
from tests.lake_crash.job import QUICK_START, LakeJob

__all__ = ["ALL_PRODUCTS", "CrashRun", "Outcome", "start_and_see"]

ALL_PRODUCTS = (
    *(
        "bars_1s",
        "bars_1m",
        "top_of_book",
        "book_state_10_1s",
        "trades_with_quotes",
        "markouts",
        "order_flow_1m",
        "volatility_1m",
    ),
    *("funding_1m", "liquidations_1m", "gaps", "data_quality"),
)
FILES_A_KILL = 10
LAYERS = {"bronze": 1, "silver": 1, "gold": 3}
"""And how much longer a job may work in each: a batch of gold leaves as many traces as there are products, and the first one twice that."""
IDLE_S = 90.0
LITTLE_LONGER_S = 2.0
"""So that it does not always die just when it has written something."""


@dataclass
class Outcome:
    """What came of it."""

    comparisons: list[Comparison]
    kills: int
    died_at: list[dict[str, int]]
    """For each kill, the batches that each stream had committed."""
    problems: list[str]
    undisturbed_s: float
    disturbed_s: float


class CrashRun:
    """Makes the files, and runs the jobs over them."""

    def __init__(
        self,
        folder: Path,
        *,
        events: int,
        kills: int,
        seed: int,
        most_traces: int = 16,
        gold: Sequence[str] = ALL_PRODUCTS,
        markets: Sequence[Market] = MARKETS,
        say: Callable[[str], None] = print,
    ) -> None:
        self._folder = folder
        self.bus, self.lake, self.undisturbed = folder / "bus", folder / "lake", folder / "undisturbed"
        self.kills = kills
        self._random = Random(seed)
        self._most_traces = most_traces
        self._gold = ",".join(gold)
        self._say = say
        self._files = write_files(folder / "written", events, FILES_A_KILL * (kills + 1), seed, markets)
        self.bus.mkdir()
        size_bytes = sum(file.stat().st_size for file in self._files)
        batch_bytes = size_bytes // (2 * (kills + 1))
        self.small_batches = ("--trigger", "500ms", "--lake-batch-bytes", str(batch_bytes))
        say(f"{events:,} events and some twice, in {len(self._files)} files of {size_bytes:,} bytes; {batch_bytes:,} a batch")

    def run(self) -> Outcome:
        """Blocks until it is over."""
        began = time.monotonic()
        died_at = self.kill_again_and_again()
        problems = self._end(self.job("last", self.lake, "--once"))
        disturbed_s = time.monotonic() - began
        self._say(f"the last job is through after {disturbed_s:.0f} s; now one that nobody disturbs")
        problems += self._end(self.job("undisturbed", self.undisturbed, "--once"))
        undisturbed_s = time.monotonic() - began - disturbed_s
        return Outcome(compare_lakes(self.lake, self.undisturbed), self.kills, died_at, problems, undisturbed_s, disturbed_s)

    def job(self, name: str, lake: Path, *options: str) -> LakeJob:
        """A job over all files that have come so far."""
        arguments = ("ingest", "--from", "files", "--file-dir", str(self.bus), "--lake", str(lake), "--master", "local[2]")
        layers = ("--until", "gold", "--gold", self._gold)
        # A job that is killed soon gains nothing from a JVM that compiles well; all else is as users run it.
        quick = {"JDK_JAVA_OPTIONS": QUICK_START}
        return LakeJob(*arguments, *layers, *options, log=self._folder / f"{name}.log", environ=quick)

    def kill_again_and_again(self) -> list[dict[str, int]]:
        """Kills as many jobs, each after some traces in one of the layers; the batches that were committed at each kill."""
        died_at = []
        job = self.job("killed", self.lake, *self.small_batches)
        for number in range(1, self.kills + 1):
            # Part of what is new is there when it starts, the rest comes while it runs.
            known, upto = (len(self._files) * share // (self.kills + 1) for share in (number - 1, number))
            self._reveal((known + upto) // 2)
            # Gold begins last, and is behind the others: a job that only has to do anything would never live to end a batch of it.
            layer = self._random.choice([*LAYERS])
            before, of_layer = count_traces(self.lake), count_traces(self.lake, layer)
            began = time.monotonic()
            start_and_see(job, self.lake)
            self._reveal(upto)
            self._let_work(job, layer, of_layer + self._random.randint(1, self._most_traces * LAYERS[layer]))
            only_driver = self._random.random() < 0.5
            lived_s = time.monotonic() - began
            job.kill(only_driver=only_driver)
            died_at.append(_batches(self.lake))
            at = ", ".join(f"{stream} {batches}" for stream, batches in died_at[-1].items())
            what = "the command" if only_driver else "all of it"
            own = f"{count_traces(self.lake, layer) - of_layer} of {layer}"
            left = f"left {count_traces(self.lake) - before} traces, {own}, in {lived_s:.0f} s"
            self._say(f"kill {number}/{self.kills}: {what}, which {left}; batches committed so far: {at or 'none'}")
        self._reveal(len(self._files))
        return died_at

    def _let_work(self, job: LakeJob, layer: str, traces: int) -> None:
        """Until so much stands in a layer, or nothing has been added to any for a while; and then a little longer."""
        seen, seen_at = count_traces(self.lake), time.monotonic()

        def is_enough() -> bool:
            nonlocal seen, seen_at
            now = count_traces(self.lake)
            if now != seen:
                seen, seen_at = now, time.monotonic()
            return count_traces(self.lake, layer) >= traces or time.monotonic() - seen_at > IDLE_S

        job.wait_until(is_enough)
        deadline = time.monotonic() + self._random.uniform(0, LITTLE_LONGER_S)
        job.wait_until(lambda: time.monotonic() >= deadline)

    def _reveal(self, upto: int) -> None:
        for file in self._files[:upto]:
            if file.exists():
                file.rename(self.bus / file.name)

    @staticmethod
    def _end(job: LakeJob) -> list[str]:
        job.start()
        code = job.wait()
        problems = [f"a job ended with exit code {code}:\n{job.tail}"] if code else []
        if "Traceback" in job.log.read_text(errors="replace"):
            problems.append(f"there is a traceback in {job.log}")
        return problems


def start_and_see(job: LakeJob, lake: Path) -> None:
    """Starts a job, and returns when it has left a first trace in its lake."""
    before = count_traces(lake)
    job.start()
    job.wait_until(lambda: count_traces(lake) != before)


def count_traces(lake: Path, layer: str = "") -> int:
    """What jobs have left: plans and ends of batches, and versions of tables. It grows as fast as a job works, on any machine."""
    places = (f"{layer or '*'}/*/_delta_log/*.json", f"_checkpoints/{layer}*/progress/*/*")
    return sum(1 for place in places for _ in lake.glob(place))


def _batches(lake: Path) -> dict[str, int]:
    return {
        stream.name.partition("-")[0]: sum(entry.name.isdigit() for entry in stream.glob("progress/commits/*"))
        for stream in sorted(lake.glob("_checkpoints/*"))
    }
