"""A lake to test, and a writer of files as the file bus leaves them before it."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.lakehouse import ingest
from tardis_machine.lakehouse.ingest import Ingest, PlannedStream
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.sources.files import FilesSource
from tardis_machine.lakehouse.streams import Counts
from tardis_machine.lakehouse.tables import EVENTS, QUARANTINE, Table
from tardis_machine.messages import Message, Trade, to_timestamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

START_US = 1_580_515_200_000_000  # 2020-02-01
FILE_SCHEMA = pa.schema(
    {"value": pa.binary(), "key": pa.string(), "headers": pa.map_(pa.string(), pa.string()), "destination": pa.string()}
)


def trades(count: int, *, start: int = 0, symbol: str = "XBTUSD") -> list[Message]:
    """Trades a millisecond apart, each different from the others."""
    return [
        Trade(
            symbol=symbol,
            exchange="bitmex",
            id=f"t{n}",
            price=9000 + n % 7 / 2,
            amount=n + 1,
            side=("buy", "sell", "unknown")[n % 3],  # type: ignore[arg-type]
            timestamp=to_timestamp(START_US + n * 1000, milliseconds=True),
            local_timestamp=to_timestamp(START_US + n * 1000 + 250),
        )
        for n in range(start, start + count)
    ]


def encode(messages: Sequence[Message], session: str = "s1", **options: Any) -> list[bytes]:
    """The messages' events, as one session publishes them."""
    return [
        event.value
        for event in BronzeEncoder(session_id=session, origin="replay", clock_us=lambda: START_US, **options).encode(messages)
    ]


class FileBus:
    """A folder of Parquet files, as the file bus writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def write(self, name: str, values: Sequence[bytes | None]) -> None:
        rows = [{"value": v, "key": "k", "headers": [("payloadCase", "trade")], "destination": "events"} for v in values]
        unfinished = self.folder / f".{name}"
        pq.write_table(pa.Table.from_pylist(rows, FILE_SCHEMA), unfinished)
        # Spark takes files in the order of their times, of which it knows the milliseconds; the kernel gives those of one tick the same.
        time.sleep(0.002)
        os.utime(unfinished, ns=(time.time_ns(),) * 2)
        unfinished.rename(self.folder / f"part-{name}.parquet")


class LakeUnderTest:
    """A lake with a file bus before it."""

    def __init__(self, spark: SparkSession, folder: Path, lake: Lake | None = None) -> None:
        """`lake`: by default one in the folder."""
        self.spark = spark
        self.bus = FileBus(folder / "bus")
        self.lake = lake or Lake.at(folder / "lake")
        self.source = FilesSource(self.bus.folder)

    def ingest(self, **options: Any) -> dict[str, int]:
        """Takes in what is there; rows written by table."""
        counts = Ingest(self.spark, self.lake, self.source, **options).run_once()
        return dict(sum((Counter(stream.rows) for stream in counts), Counter()))

    def rows(self, table: Table, *without: str) -> list[tuple[Any, ...]]:
        """All rows, sorted."""
        frame = self.lake.read(self.spark, table).drop(*without)
        return sorted((tuple(map(comparable, row)) for row in frame.collect()), key=repr)

    def count(self, table: Table) -> int:
        return self.lake.read(self.spark, table).count()

    @property
    def events(self) -> list[tuple[Any, ...]]:
        # When a file was finished is not the same in two runs of a test.
        return self.rows(EVENTS, "broker_timestamp")

    @property
    def quarantine(self) -> list[tuple[Any, ...]]:
        return self.rows(QUARANTINE, "broker_timestamp")


class Watched(NamedTuple):
    """A stream that an ingest ran."""

    stream: PlannedStream
    query: StreamingQuery


@contextmanager
def watched_streams() -> Iterator[list[Watched]]:
    """All streams that are started meanwhile."""
    started: list[Watched] = []

    def planned(name: str, start: Callable[[float | None, Counts | None], Any], count_left: Any) -> PlannedStream:
        def start_and_note(trigger_s: float | None, counts: Counts | None) -> Any:
            query, writer = start(trigger_s, counts)
            started.append(Watched(stream, query))
            return query, writer

        stream = PlannedStream(name, start_and_note, count_left)
        return stream

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "PlannedStream", planned)
        yield started


def assert_left_is_what_comes_later(watched: Watched, what: str) -> None:
    """After each batch of a stream that ended, what is said to be left is what the batches after it had."""
    batches = [json.loads(progress.json)["sources"] for progress in watched.query.recentProgress]
    rows = [sum(source["numInputRows"] for source in sources) for sources in batches]
    assert len([count for count in rows if count]) > 1
    assert [watched.stream.count_left(sources)[what] for sources in batches] == [
        sum(rows[place + 1 :]) for place in range(len(rows))
    ]


def make_older(folder: Path, seconds: float) -> None:
    """Files below a folder, and what the logs of tables say of when files were removed, as they would be some time later."""
    for path in folder.rglob("*.parquet"):
        written_s = path.stat().st_mtime - seconds - 1
        os.utime(path, (written_s, written_s))
    for entry in folder.rglob("_delta_log/*.json"):
        older = re.sub(
            r'"deletionTimestamp":(\d+)',
            lambda found: f'"deletionTimestamp":{int(found[1]) - int(seconds * 1000) - 1000}',
            entry.read_text(),
        )
        entry.write_text(older)
        # Hadoop's own sum over the file.
        entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)


def comparable(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, dict) else value
