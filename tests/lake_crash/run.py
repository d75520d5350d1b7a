"""One crash run: files that come bit by bit, a job that is killed at random points, one that then ends, and one that nobody disturbed.

Invariant: every job that is killed has had something to do, and was seen to do it.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import MappingProxyType, TracebackType
from typing import Literal, Self

from tardis_machine.lakehouse.storage import Storage, open_storage
from tests.fault.small_disk import SmallDisk
from tests.fault.stepping_clock import SteppingClock, why_no_clock
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
LEAST_DISK_BYTES = 256 * 2**20
LAKE_SHARE = 8
"""How much larger than its events a lake may get, with all that killed jobs left in it."""
LITTLE_LONGER_S = 2.0
"""So that it does not always die just when it has written something."""
OUTLIVES_S = 20.0
"""How long a job may go on that lost a worker or has no room, or whose clock is wrong, before it is killed as a whole."""
BACK_AT_MOST_S = 3600
Death = Literal["all of it", "the command", "a worker", "a full disk", "no descriptor", "the clock back"]
"""What is killed with -9: the job and its JVM, the command alone, or one of the processes that run Python for Spark; or its lake's disk
is full, or none of its processes may open anything more, or its time of day steps back by up to an hour, and stays so for all jobs after
it."""
GOES_ON: Sequence[Death] = ("a worker", "a full disk", "no descriptor", "the clock back")
"""After these a job may live for a while."""


@dataclass
class Outcome:
    """What came of it."""

    comparisons: list[Comparison]
    kills: int
    died_at: list[dict[str, int]]
    """For each kill, the batches that each stream had committed."""
    deaths: Counter[str]
    disk: str
    """What full meant."""
    problems: list[str]
    undisturbed_s: float
    disturbed_s: float


class CrashRun:
    """Makes the files, and runs the jobs over them. A context: its lake's disk goes at the end."""

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
        root: str | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`root`: where the lakes lie, by default in the folder; `options` are those of its store."""
        self._folder = folder
        self.bus, self._options = folder / "bus", options
        self.lake = open_storage(f"{root or folder / 'disk'}/lake", options)
        self.undisturbed = open_storage(f"{root or folder}/undisturbed", options)
        self._is_on_disk = root is None
        self.kills = kills
        self._random = Random(seed)
        self._most_traces = most_traces
        self._gold = ",".join(gold)
        self._say = say
        self._files = write_files(folder / "written", events, FILES_A_KILL * (kills + 1), seed, markets)
        self.bus.mkdir()
        size_bytes = sum(file.stat().st_size for file in self._files)
        self.disk = SmallDisk(folder / "disk", max(LEAST_DISK_BYTES, LAKE_SHARE * size_bytes))
        # A store refuses who tells the wrong time.
        self._clock = SteppingClock(folder) if self._is_on_disk and why_no_clock() is None else None
        self.deaths = Counter[str]()
        batch_bytes = size_bytes // (2 * (kills + 1))
        self.small_batches = ("--trigger", "500ms", "--lake-batch-bytes", str(batch_bytes))
        say(f"{events:,} events and some twice, in {len(self._files)} files of {size_bytes:,} bytes; {batch_bytes:,} a batch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.disk.close()

    def run(self) -> Outcome:
        """Blocks until it is over."""
        began = time.monotonic()
        died_at = self.kill_again_and_again()
        problems = self._end(self.job("last", self.lake, "--once"))
        disturbed_s = time.monotonic() - began
        self._say(f"the last job is through after {disturbed_s:.0f} s; now one that nobody disturbs")
        problems += self._end(self.job("undisturbed", self.undisturbed, "--once"))
        undisturbed_s = time.monotonic() - began - disturbed_s
        compared = compare_lakes(self.lake, self.undisturbed)
        return Outcome(compared, self.kills, died_at, self.deaths, self.disk.how, problems, undisturbed_s, disturbed_s)

    def job(self, name: str, lake: Storage, *options: str) -> LakeJob:
        """A job over all files that have come so far."""
        arguments = ("ingest", "--from", "files", "--file-dir", str(self.bus), "--lake", lake.root, "--master", "local[2]")
        reached = [flag for name, value in self._options.items() for flag in ("--lake-option", f"{name}={value}")]
        layers = ("--until", "gold", "--gold", self._gold)
        # A job that is killed soon gains nothing from a JVM that compiles well; all else is as users run it.
        environ = {"JDK_JAVA_OPTIONS": QUICK_START}
        if self._clock is not None and lake is self.lake:
            environ |= self._clock.environ
        return LakeJob(*arguments, *reached, *layers, *options, log=self._folder / f"{name}.log", environ=environ)

    def kill_again_and_again(self) -> list[dict[str, int]]:
        """Kills as many jobs, each after some traces in one of the layers; the batches that were committed at each kill."""
        died_at = []
        deaths: list[Death] = [
            *("all of it", "the command", "a worker", "no descriptor"),
            *(["a full disk"] if self.disk.is_own and self._is_on_disk else []),
            *(["the clock back"] if self._clock is not None else []),
        ]
        self._random.shuffle(deaths)
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
            lived_s = time.monotonic() - began
            death = deaths[number % len(deaths)]
            self._die(job, death)
            died_at.append(_batches(self.lake))
            at = ", ".join(f"{stream} {batches}" for stream, batches in died_at[-1].items())
            own = f"{count_traces(self.lake, layer) - of_layer} of {layer}"
            left = f"left {count_traces(self.lake) - before} traces, {own}, in {lived_s:.0f} s"
            self._say(f"kill {number}/{self.kills}: {death} of a job that {left}; batches committed so far: {at or 'none'}")
        self._reveal(len(self._files))
        return died_at

    def _die(self, job: LakeJob, death: Death) -> None:
        self.deaths[death] += 1
        if death == "a worker":
            job.wait_until(job.kill_worker)
        elif death == "a full disk":
            self.disk.fill(0)
        elif death == "no descriptor":
            job.deny_descriptors()
        elif death == "the clock back":
            assert self._clock is not None
            self._clock.step(-self._random.randint(1, BACK_AT_MOST_S))
        if death in GOES_ON:
            deadline = time.monotonic() + self._random.uniform(0, OUTLIVES_S)
            while job.is_running and time.monotonic() < deadline:
                time.sleep(0.1)
        job.kill(only_driver=death == "the command")
        if death == "a full disk":
            self.disk.empty(0)

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


def start_and_see(job: LakeJob, lake: Storage) -> None:
    """Starts a job, and returns when it has left a first trace in its lake."""
    before = count_traces(lake)
    job.start()
    job.wait_until(lambda: count_traces(lake) != before)


def count_traces(lake: Storage, layer: str = "") -> int:
    """What jobs have left: plans and ends of batches, and versions of tables. It grows as fast as a job works, on any machine."""
    folders = [layer] if layer else ["bronze", "silver", "gold"]
    entries = sum(len(lake.list_files(f"{lake.root}/{folder}", f"{'[0-9]' * 20}.json", below=True)) for folder in folders)
    steps = lake.list_files(f"{lake.root}/_checkpoints", "*", below=True)
    of_layer = re.compile(rf"/_checkpoints/{layer}[^/]*/progress/[^/]+/[^/]+$")
    return entries + sum(of_layer.search(step) is not None for step in steps)


def _batches(lake: Storage) -> dict[str, int]:
    steps = sorted(lake.list_files(f"{lake.root}/_checkpoints", "*", below=True))
    streams = [found[1] for step in steps if (found := re.search(r"/_checkpoints/([a-z]+)[^/]*/progress/commits/\d+$", step))]
    return dict(Counter(streams))
