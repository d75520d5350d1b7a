"""Several jobs on one lake at once: ingests from two buses, backfills, optimizing and verifying, of which one is killed in every round.

Both buses bring a part of the same records, so that the jobs also meet over the same events.

Invariant: what the lake has in the end is compared with one whose jobs ran one after the other, row by row.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType, TracebackType
from typing import Any, Self

import pyarrow.parquet as pq

from tardis_machine.lakehouse.storage import Storage, open_storage
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tests.lake_crash.comparing import Comparison, compare_lakes, compare_table
from tests.lake_crash.events import Market, write_files
from tests.lake_crash.job import QUICK_START, LakeJob
from tests.lake_crash.others import Others
from tests.lake_crash.run import Outcome, count_traces
from tests.servers.redis import RedisServer

__all__ = ["GOLD", "TogetherRun"]

IN_FILES: tuple[Market, ...] = (("bitmex", "XBTUSD", ("trade", "book_change")),)
IN_STREAM: tuple[Market, ...] = (("binance", "BTCUSDT", ("trade",)), ("deribit", "ETH-PERPETUAL", ("trade",)))
GOLD = ("bars_1m", "top_of_book", "gaps")
IDLE_S = 60.0
MASTER = "local[2,4]"
"""Two cores, and four attempts at a task: a worker that is killed ends no job."""
SHARED = 3
"""Of so many files the stream has the records of one."""
# What a backfill says of when it ran.
OF_BACKFILL = "bus = 'backfill' AND payload_case <> 'session_end'"
ITS_TIMES = ("value", "ingest_ts", "broker_timestamp")


class TogetherRun:
    """Makes what comes, and runs the jobs. A context: its servers end with it."""

    def __init__(
        self,
        folder: Path,
        *,
        rounds: int,
        events: int,
        seed: int,
        most_traces: int = 16,
        say: Callable[[str], None] = print,
        root: str | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`events` come from each bus; `root`: where the lakes lie, by default in the folder; `options` are those of its store."""
        self._folder, self._rounds, self._random, self._say = folder, rounds, Random(seed), say
        self.lake, self.undisturbed = (open_storage(f"{root or folder}/{name}", options) for name in ("lake", "undisturbed"))
        self._options, self._most_traces = options, most_traces
        self.bus = folder / "bus"
        self.bus.mkdir()
        self._files = write_files(folder / "in-files", events, 2 * (rounds + 1), seed, IN_FILES)
        others = write_files(folder / "in-stream", events, 2 * (rounds + 1), seed + 1, IN_STREAM)
        self._records = [_values(file) for file in others]
        for place, file in enumerate(self._files[::SHARED]):
            self._records[place * SHARED % len(self._records)] += _values(file)
        self._redis = RedisServer(folder / "redis")
        self._api = SampleHistoryApi(Recording(SampleMarket(seed, 0.02), disconnects_per_day=0)).serve_in_thread()
        self.deaths = Counter[str]()

    def __enter__(self) -> Self:
        self._redis.start()
        self._api_url = self._api.__enter__().url
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._api.__exit__(kind, error, trace)
        self._redis.stop()

    def run(self) -> Outcome:
        """Blocks until it is over."""
        began = time.monotonic()
        self.disturb()
        problems = self._end("last", self.lake)
        disturbed_s = time.monotonic() - began
        self._say(f"the last jobs are through after {disturbed_s:.0f} s; now others, one after the other")
        problems += self._end("undisturbed", self.undisturbed)
        undisturbed_s = time.monotonic() - began - disturbed_s
        return Outcome(self.compare(), self._rounds, [], self.deaths, "none", problems, undisturbed_s, disturbed_s)

    def disturb(self) -> None:
        """Has them all work, and kills one of them again and again; then all."""
        jobs = self._jobs("killed", self.lake, "--trigger", "500ms", "--auto-optimize")
        try:
            for number in range(1, self._rounds + 1):
                self._reveal(number / (self._rounds + 1))
                self._tell(self.lake, number)
                for job in jobs.values():
                    if not job.is_running:
                        job.start()
                victim, death = self._random.choice([*jobs]), self._random.choice(["all of it", "the command", "a worker"])
                self._let_work(jobs, self._random.randint(1, self._most_traces))
                self.deaths[f"{victim}: {death}"] += 1
                if death == "a worker":
                    jobs[victim].kill_worker()
                else:
                    jobs[victim].kill(only_driver=death == "the command")
                self._say(f"round {number} of {self._rounds}: {victim} was killed ({death})")
        finally:
            for job in jobs.values():
                job.kill()

    def _let_work(self, jobs: Mapping[str, LakeJob], traces: int) -> None:
        """Until so much more stands in the lake; RuntimeError where a job ended by itself."""
        upto, seen, seen_at = count_traces(self.lake) + traces, -1, time.monotonic()
        while (now := count_traces(self.lake)) < upto and time.monotonic() - seen_at < IDLE_S:
            if now != seen:
                seen, seen_at = now, time.monotonic()
            for name, job in jobs.items():
                if not job.is_running:
                    raise RuntimeError(f"{name} ended by itself; its log ends with:\n{job.tail}")
            time.sleep(0.2)

    def _end(self, name: str, lake: Storage) -> list[str]:
        """All that there is, by jobs one after the other; what went wrong with them."""
        self.give_all(lake)
        problems = []
        for job in self._jobs(name, lake, "--once").values():
            job.start()
            code = job.wait()
            problems += [f"a job ended with exit code {code}:\n{job.tail}"] if code else []
            problems += [f"there is a traceback in {job.log}"] if "Traceback" in job.log.read_text(errors="replace") else []
        return problems

    def give_all(self, lake: Storage) -> Others:
        """All that there is, on both buses, and what there is to be fetched."""
        self._reveal(1)
        return self._tell(lake, self._rounds)

    @property
    def redis_options(self) -> dict[str, Any]:
        """Where the stream is, as the jobs are told."""
        return {"host": "127.0.0.1", "port": self._redis.port, "stream": "events"}

    def _jobs(self, name: str, lake: Storage, *options: str) -> dict[str, LakeJob]:
        reached = [flag for option, value in self._options.items() for flag in ("--lake-option", f"{option}={value}")]
        common = ("--lake", lake.root, "--master", MASTER, *reached, *options)
        quick = {"JDK_JAVA_OPTIONS": QUICK_START}
        files = ("ingest", "--from", "files", "--file-dir", str(self.bus), "--until", "bronze")
        place = [word for option, value in self.redis_options.items() for word in (f"--redis-{option}", str(value))]
        stream = ("ingest", "--from", "redis", *place, "--until", "gold", "--gold", ",".join(GOLD))
        settings, once = str(self._settings(lake)), ("--once",) if "--once" in options else ()
        return {
            "files": LakeJob(*files, *common, log=self._folder / f"{name}-files.log", environ=quick),
            "others": LakeJob(
                settings, *once, program=("-m", "tests.lake_crash.others"), log=self._folder / f"{name}-others.log", environ=quick
            ),
            # Last, as it is what takes all that is in bronze further.
            "redis": LakeJob(*stream, *common, log=self._folder / f"{name}-redis.log", environ=quick),
        }

    def _settings(self, lake: Storage) -> Path:
        return self._folder / f"others-{lake.root.rpartition('/')[2]}.json"

    def _tell(self, lake: Storage, minutes: int) -> Others:
        others = Others(lake.root, dict(self._options), self._api_url, str(self._folder / "cache"), MASTER, minutes)
        others.save(self._settings(lake))
        return others

    def _reveal(self, share: float) -> None:
        """What comes by then, on both buses."""
        for file in self._files[: round(len(self._files) * share)]:
            if file.exists():
                file.rename(self.bus / file.name)
        upto = round(len(self._records) * share)
        for values in self._records[:upto]:
            for value in values:
                self._redis.ask("XADD", "events", "*", "value", value, "key", "k")
            values.clear()

    def compare(self) -> list[Comparison]:
        """The two lakes, without what tells when something was fetched."""
        both = (self.lake, self.undisturbed)
        apart = {"bronze.events", "silver.control_events"}
        return [
            *(item for item in compare_lakes(*both) if item.table not in apart),
            compare_table("bronze.events", *both, where="bus <> 'backfill'"),
            compare_table("bronze.events", *both, where=OF_BACKFILL, without=ITS_TIMES),
            compare_table("silver.control_events", *both, where="session NOT LIKE 'backfill|%'"),
        ]


def _values(file: Path) -> list[bytes]:
    values: list[bytes] = pq.read_table(file).column("value").to_pylist()
    return values
