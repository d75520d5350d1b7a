"""What else works on a lake while events are taken in: backfills, optimizing and verifying, at once and over and over, in one process.

    python -m tests.lake_crash.others SETTINGS.json [--once]

Invariant: it ends with 1 when one of them fails; what it is asked to bring is whole when it ends with 0.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from tardis_machine.lakehouse.backfill import Backfill
from tardis_machine.lakehouse.lake import Lake, check_table
from tardis_machine.lakehouse.optimize import MIN_RETAIN_S, optimize
from tardis_machine.lakehouse.session import start_session
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.lakehouse.verify import verify
from tardis_machine.pipeline.request import parse_normalized_request

PAUSE_S = 0.5


class Others(msgspec.Struct):
    """What they are told, in a file that may change meanwhile."""

    lake: str
    options: dict[str, str]
    api_url: str
    cache_dir: str
    master: str
    minutes: int = 1
    """How many there are to bring, each of a day of its own."""

    def requests(self) -> list[dict[str, object]]:
        """One a minute."""
        return [
            {
                "exchange": "deribit",
                "symbols": ["BTC-PERPETUAL"],
                "from": f"2020-03-{day:02}T00:00:00.000Z",
                "to": f"2020-03-{day:02}T00:01:00.000Z",
                "dataTypes": ["trade", "book_change"],
            }
            for day in range(1, self.minutes + 1)
        ]

    def save(self, path: Path) -> None:
        """At once, for whoever reads it just then."""
        unfinished = path.with_suffix(".new")
        unfinished.write_bytes(msgspec.json.encode(self))
        unfinished.rename(path)


def main() -> int:
    """Until SIGTERM, or once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", type=Path)
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args()

    def told() -> Others:
        return msgspec.json.decode(given.settings.read_bytes(), type=Others)

    lake = Lake.at(told().lake, told().options)
    spark = start_session(master=told().master, storage=lake.storage)
    stop, has_failed = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def bring() -> None:
        requests = [parse_normalized_request(request) for request in told().requests()]
        Backfill(spark, lake, requests, told().api_url, None, told().cache_dir).run(is_stopped=stop.is_set)

    def join() -> None:
        if check_table(lake, EVENTS):
            [*_] = optimize(spark, lake, retain_s=MIN_RETAIN_S)

    def look() -> None:
        if check_table(lake, EVENTS):
            outcome = verify(spark, lake)
            print(json.dumps({"whole": outcome.is_whole, "sessions": len(outcome.sessions)}), flush=True)

    def again_and_again(work: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                work()
                if given.once:
                    break
                stop.wait(PAUSE_S)
        except BaseException:
            traceback.print_exc()
            has_failed.set()
            stop.set()

    threads = [threading.Thread(target=again_and_again, args=(work,), daemon=True) for work in (bring, join, look)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
    spark.stop()
    return int(has_failed.is_set())


if __name__ == "__main__":
    sys.exit(main())
