"""The file bus against a real folder, and against a disk that is full or read-only."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest

from tardis_machine.bronze.event import EventStream
from tardis_machine.eventbus.buses.file import FileBus, to_table
from tardis_machine.eventbus.contract import Record
from tardis_machine.eventbus.publisher import Publisher
from tardis_machine.eventbus.routing import Router, Routing
from tests.contract.buses.file import FileUnderTest
from tests.contract.conformance import BusConformance, pytest_generate_tests
from tests.unit.eventbus.events import make_events, make_stream

__all__ = ["pytest_generate_tests"]


class TestFileBus(BusConformance):
    under_test = FileUnderTest


def make_records(routing: Routing, *streams: EventStream, count: int = 3) -> list[Record]:
    router = Router("file", routing)
    return [Record(router.route(stream), event) for stream in streams for event in make_events(stream, count)]


def test_the_columns_are_those_that_the_lake_reads() -> None:
    same = make_records(
        Routing(destination="events", static_headers={"desk": "delta"}), make_stream("A"), make_stream("B", "quote")
    )
    varied = make_records(
        Routing(destination="events", routing={"quote": "quotes"}, meta_headers_prefix="m-"),
        make_stream("A"),
        make_stream("B", "quote", session="s2", extra="é"),
    )
    for records in (same, varied, same[:1]):
        table = to_table(records)
        names = {"value": "binary", "key": "string", "headers": "map<string, string>", "destination": "string"}
        assert {field.name: str(field.type) for field in table.schema} == names
        assert table.to_pylist() == [
            {
                "value": record.value,
                "key": record.key,
                "headers": [(name, value.decode()) for name, value in record.headers],
                "destination": record.destination,
            }
            for record in records
        ]


async def test_one_batch_is_one_file_named_in_order(tmp_path: Path) -> None:
    bus = FileBus(tmp_path)
    await bus.connect()
    batches = [make_records(Routing(destination="events"), make_stream()) for _ in range(5)]
    for batch in batches:
        assert await bus.send(batch) == []
    paths = sorted(tmp_path.iterdir())
    assert all(re.fullmatch(rf"part-\d{{8}}T\d{{6}}\.\d{{6}}-{os.getpid()}-\d{{6}}\.parquet", path.name) for path in paths)
    found = [pyarrow.parquet.read_table(path).column("value").to_pylist() for path in paths]
    assert found == [[record.value for record in batch] for batch in batches]
    assert pyarrow.parquet.ParquetFile(paths[0]).metadata.row_group(0).column(0).compression == "ZSTD"


async def test_files_stay_in_order_when_the_clock_steps_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [make_records(Routing(destination="events"), make_stream(), count=number) for number in range(1, 5)]
    (tmp_path / "part-of-something-else.parquet").touch()
    bus = FileBus(tmp_path)
    now_ns = time.time_ns()
    for number, batch in enumerate(batches):
        if number == 2:
            bus = FileBus(tmp_path)  # after a start, too
        monkeypatch.setattr(time, "time_ns", lambda number=number: now_ns - number * 3600 * 10**9)
        await bus.connect()
        assert await bus.send(batch) == []
    (tmp_path / "part-of-something-else.parquet").unlink()
    by_name = sorted(tmp_path.iterdir())
    assert [pyarrow.parquet.read_metadata(path).num_rows for path in by_name] == [1, 2, 3, 4]
    times = [path.stat().st_mtime_ns // 1000 for path in by_name]
    assert times == [now_ns // 1000 + number for number in range(4)]


async def test_a_half_file_is_never_seen_and_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid, content in ((dead.pid, "half"), (os.getpid(), "failed"), (os.getppid(), "being written")):
        (tmp_path / f".part-20240101T000000.000000-{pid}-000001.parquet.new").write_text(content)
    bus = FileBus(tmp_path)
    await bus.connect()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["being written"]
    names: set[str] = set()
    sending = asyncio.create_task(bus.send(make_records(Routing(destination="events"), make_stream(), count=100_000)))
    while not sending.done():
        for path in tmp_path.glob("part-*"):
            names.add(path.name)
            assert pyarrow.parquet.read_metadata(path).num_rows == 100_000
        await asyncio.sleep(0.001)
    await sending


async def test_a_send_that_was_cancelled_leaves_no_file(tmp_path: Path) -> None:
    bus = FileBus(tmp_path)
    await bus.connect()
    sending = asyncio.create_task(bus.send(make_records(Routing(destination="events"), make_stream(), count=50_000)))
    await asyncio.sleep(0.005)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    seen: set[str] = set()
    for _ in range(200):
        seen |= {path.name[:6] for path in tmp_path.iterdir()}
        await asyncio.sleep(0.01)
    assert seen <= {".part-"}
    assert list(tmp_path.iterdir()) == []


async def test_files_are_rotated_by_size_and_by_age(tmp_path: Path) -> None:
    under_test = FileUnderTest(tmp_path)
    plan = under_test.plan(**{"max-bytes": "100KiB", "max-batch-delay-ms": "50ms"})
    publisher = Publisher([plan], spool_dir=tmp_path / "spool")
    await publisher.start()
    await publisher.publish(make_events(make_stream(), 2000, size=150))
    await asyncio.sleep(0.01)
    await publisher.flush(30)
    sizes = [pyarrow.parquet.read_table(path).nbytes for path in (tmp_path / "disk" / "out").iterdir()]
    assert len(sizes) >= 4
    assert max(sizes) < 200_000
    await publisher.publish(make_events(make_stream(), 1, first=2000))
    async with asyncio.timeout(10):
        while len(list((tmp_path / "disk" / "out").glob("part-*"))) == len(sizes):
            await asyncio.sleep(0.01)
    await publisher.close(10)


SMALL_DISK = """
import asyncio, json, os, subprocess, sys
from pathlib import Path
from tardis_machine.eventbus import plan_bus
from tardis_machine.eventbus.publisher import Publisher
from tardis_machine.settings import from_keywords
from tests.unit.eventbus.events import make_events, make_stream

folder, trouble = Path(sys.argv[1]), sys.argv[2]
disk = folder / "disk"

def remount(mode):
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)

async def main():
    options = {"dir": disk / "out", "dead-letter-dir": folder / "dead", "max-batch-delay-ms": 20, "queue-max-bytes": "1MiB",
               "retry-backoff-ms": 20, "retry-backoff-max-ms": 100}
    plan = plan_bus("file", from_keywords({"file": options}, {}).for_bus("file"))
    publisher = Publisher([plan], spool_dir=folder / "spool")
    await publisher.start()
    filler = disk / "filler"
    if trouble == "full":
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(os.urandom(64 * 1024))
                    file.flush()
            except OSError:
                pass
    else:
        remount("ro")
    stream = make_stream()
    for start in range(0, 20_000, 1000):
        await publisher.publish(make_events(stream, 1000, first=start, size=200))
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    health = publisher.health()[0]
    print(json.dumps({"state": health.state, "error": health.last_error, "confirmed": publisher.receipts[0].confirmed}))
    receipt = str(publisher.receipts[0])
    filler.unlink() if trouble == "full" else remount("rw")
    await publisher.close(30)
    import pyarrow.parquet
    rows = [row for path in sorted((disk / "out").glob("part-*")) for row in pyarrow.parquet.read_table(path).to_pylist()]
    hidden = [path.name for path in (disk / "out").iterdir() if path.name.startswith(".")]
    print(json.dumps({"rows": len(rows), "hidden": hidden, "receipt": receipt, "complete": publisher.receipts[0].is_complete}))

asyncio.run(main())
"""


@pytest.mark.parametrize(("trouble", "reason"), [("full", "No space left on device"), ("read-only", "Read-only file system")])
def test_a_disk_that_is_full_or_read_only_is_an_error_in_health_and_loses_nothing(
    tmp_path: Path, trouble: str, reason: str
) -> None:
    (tmp_path / "disk").mkdir()
    mount = 'mount -t tmpfs -o size=16m tmpfs "$1/disk" && exec "$0" -c "$3" "$1" "$2"'
    # A disk of its own, seen by this process alone.
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, sys.executable, str(tmp_path), trouble, SMALL_DISK]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=90).stdout
    in_trouble, afterwards = (json.loads(line) for line in output.splitlines())
    assert in_trouble["state"] == "spooling"
    assert in_trouble["error"].startswith(f"files can't be written to {tmp_path}/disk/out: ")
    assert reason in in_trouble["error"]
    assert reason in afterwards["receipt"]
    assert afterwards["rows"] == 20_001
    assert afterwards["hidden"] == []
    assert afterwards["complete"]
