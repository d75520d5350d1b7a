"""The publisher in a process of its own that is killed with -9, again and again, in write-ahead mode and without."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tardis_machine.bronze.event import digest_of
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent, SessionEnd

PROGRAM = """
import asyncio, json, os, signal, sys
from pathlib import Path
from tardis_machine.eventbus import plan_bus
from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.eventbus.publisher import Publisher
from tardis_machine.messages import Trade
from tardis_machine.settings import from_keywords

folder, mode, session, batches = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])

async def main():
    options = {"dir": folder / "out", "dead-letter-dir": folder / "dead", "max-batch-delay-ms": 20, "max-batch-size": 500,
               "queue-max-bytes": "300KiB"}
    settings = from_keywords({"file": options}, {})
    publisher = Publisher([plan_bus("file", settings.for_bus("file"))], spool_dir=folder / "spool", spool_mode=mode)
    await publisher.start()
    print(json.dumps({"carried": publisher.receipts[0].carried}), flush=True)
    if batches:
        encoder = BronzeEncoder(session_id=session, origin="replay", meta={"request_id": session})
        await publisher.session_start(session, source="tardis-machine/test", origin="replay", meta={"request_id": session})
        at = "2024-01-01T00:00:00.000000Z"
        for number in range(batches):
            trades = [Trade(symbol, "bitmex", f"{session}-{number}-{i}", 1.5, 2, "buy", at, at) for i in range(50) for symbol in "AB"]
            events = encoder.encode(trades)
            await publisher.publish(events)
            print(json.dumps({"published": [event.event_id.hex() for event in events]}), flush=True)
        publisher.session_end(session)
        if len(sys.argv) > 5:
            while publisher.receipts[0].confirmed <= batches * 100:
                await asyncio.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
    await publisher.close(60)

asyncio.run(main())
"""


def start(folder: Path, mode: str, session: str, batches: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", PROGRAM, str(folder), mode, session, str(batches)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def run_and_kill(folder: Path, mode: str, session: str, seconds: float) -> list[str]:
    """The ids that the process said were published before it was killed."""
    process = start(folder, mode, session, 100_000)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    lines = process.stdout.read().split("\n")
    process.wait()
    # The last line may be torn: then it was not said.
    return [event_id for line in lines[:-1] for event_id in json.loads(line)["published"]]


def run_to_the_end(folder: Path, mode: str, session: str = "", batches: int = 0) -> tuple[int, list[str]]:
    process = start(folder, mode, session, batches)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    lines = [json.loads(line) for line in output.splitlines()]
    return lines[0]["carried"], [event_id for line in lines[1:] for event_id in line["published"]]


def read_back(folder: Path) -> list[dict[str, Any]]:
    """All rows in the order of arrival, by nothing but pyarrow."""
    paths = sorted((folder / "out").glob("part-*.parquet"))
    return [row for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()]


def first_arrivals(rows: list[dict[str, Any]]) -> list[NormalizedEvent]:
    events = {}
    for row in rows:
        event = NormalizedEvent.FromString(row["value"])
        assert dict(row["headers"])["eventId"] == event.event_id.hex()
        events.setdefault((event.meta["session_id"], event.event_id), event)
    return list(events.values())


def assert_in_order(events: list[NormalizedEvent]) -> None:
    last: dict[tuple[str, str, str], int] = defaultdict(lambda: -1)
    for event in events:
        if event.WhichOneof("payload") == "trade":
            lane = (event.meta["session_id"], event.exchange, event.symbol)
            assert event.sequence == last[lane] + 1, "a hole, or a lane overtaken"
            last[lane] = event.sequence


def assert_ledger_is_exact(end: SessionEnd, events: list[NormalizedEvent]) -> None:
    of_session = [event for event in events if event.meta["session_id"] == end.session_id and event.HasField("trade")]
    by_symbol: dict[str, list[NormalizedEvent]] = defaultdict(list)
    for event in of_session:
        by_symbol[event.symbol].append(event)
    assert {entry.symbol: entry.count for entry in end.entries} == {symbol: len(found) for symbol, found in by_symbol.items()}
    for entry in end.entries:
        found = by_symbol[entry.symbol]
        assert int.from_bytes(entry.digest, "big") == digest_of([event.event_id for event in found])
        assert (entry.first_sequence, entry.last_sequence) == (found[0].sequence, found[-1].sequence)


@pytest.mark.timeout(240)
def test_write_ahead_loses_nothing_to_kill_9(tmp_path: Path) -> None:
    dice = random.Random(5)
    published: dict[str, list[str]] = {}
    for number in range(5):
        session = f"killed-{number}"
        published[session] = run_and_kill(tmp_path, "always", session, dice.uniform(0.1, 1.2))
    carried, published["whole"] = run_to_the_end(tmp_path, "always", "whole", 20)
    assert sum(map(len, published.values())) > 5000
    rows = read_back(tmp_path)
    events = first_arrivals(rows)
    ids = {(event.meta["session_id"], event.event_id.hex()) for event in events}
    missing = [event_id for session, found in published.items() for event_id in found if (session, event_id) not in ids]
    assert missing == []
    assert_in_order(events)
    ends = {event.session_end.session_id: event.session_end for event in events if event.HasField("session_end")}
    assert set(ends) == set(published)
    for session, end in ends.items():
        assert end.complete == (session == "whole")
        assert end.reason == ("" if end.complete else "the machine ended before the session did")
        assert_ledger_is_exact(end, events)
    # What came twice came from the spool.
    assert carried > 0
    assert not list((tmp_path / "spool" / "file").glob("*.spool"))
    assert not [path for path in (tmp_path / "out").iterdir() if not path.name.startswith("part-")], "no half file is left"


@pytest.mark.timeout(120)
def test_without_write_ahead_a_kill_is_seen_in_the_ledger(tmp_path: Path) -> None:
    run_and_kill(tmp_path, "overflow", "killed", 2.0)
    run_to_the_end(tmp_path, "overflow")
    events = first_arrivals(read_back(tmp_path))
    (end,) = [event.session_end for event in events if event.HasField("session_end")]
    assert end.session_id == "killed"
    assert not end.complete
    delivered = {symbol: sum(event.HasField("trade") and event.symbol == symbol for event in events) for symbol in "AB"}
    known = {entry.symbol: entry.count for entry in end.entries}
    # The ledger is at most about a second old; what it has and the bus lacks was in memory only.
    assert all(known[symbol] > 0 for symbol in "AB")
    assert all(delivered[symbol] > 0 for symbol in "AB")


@pytest.mark.parametrize("mode", ["overflow", "always"])
@pytest.mark.timeout(120)
def test_a_complete_session_stays_complete_when_its_machine_is_killed_right_after_its_end(tmp_path: Path, mode: str) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path), mode, "whole", "3", "die-after-the-end"]
    killed = subprocess.run(arguments, stdout=subprocess.PIPE, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    run_to_the_end(tmp_path, mode)
    ends = [
        event.session_end
        for event in (NormalizedEvent.FromString(row["value"]) for row in read_back(tmp_path))
        if event.HasField("session_end")
    ]
    assert ends
    assert {(end.complete, end.reason, sum(entry.count for entry in end.entries)) for end in ends} == {(True, "", 300)}
