"""Messages out of a lake: each once, in order, of one recorder; and the files that `export csv` makes of them."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import Event
from tardis_machine.commands.cli import main
from tardis_machine.computed import Computer
from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.stored_messages import stored_messages
from tardis_machine.messages import Message
from tardis_machine.pipeline.csv_rows import DATASETS, to_csv_rows
from tardis_machine.pipeline.normalizer import Normalizer
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording

START_US = 1_580_515_200_000_000  # 2020-02-01
DAY_US = 86_400_000_000
INSTANT = pa.timestamp("us", "UTC")
TABLES = {"trade": "trades", "book_change": "book_changes"}


def sample(*data_types: str) -> list[Message]:
    """Two minutes, an hour apart from each other."""
    recording = Recording(SampleMarket(1, 0.1), disconnects_per_day=0)
    normalizer = Normalizer("bitmex", data_types, START_US)
    filters = normalizer.filters(["XBTUSD"])
    first = START_US // 60_000_000
    return [
        m for minute in (0, 61) for m in normalizer.feed_lines(recording.minute("bitmex", first + minute, filters).splitlines())
    ]


def events(messages: Sequence[Message], session: str, **options: Any) -> list[Event]:
    return BronzeEncoder(**({"session_id": session, "origin": "replay"} | options)).encode(messages)


def store(lake: Path, told: Sequence[Event], *, is_counted: bool = True) -> None:
    """Rows of bronze, and of silver where these count."""
    for case in {event.stream.payload_case for event in told}:
        own = [event for event in told if event.stream.payload_case == case]
        rows = {
            "date": pa.array([event.local_ts_us for event in own], INSTANT).cast(pa.date32()),
            "exchange": pa.array([event.stream.exchange for event in own]),
            "symbol": pa.array([event.stream.symbol for event in own]),
            "payload_case": pa.array([case] * len(own)),
            "local_ts": pa.array([event.local_ts_us for event in own], INSTANT),
            "origin": pa.array([event.stream.origin for event in own]),
            "session": pa.array([event.stream.session_id for event in own]),
            "sequence": pa.array([event.sequence for event in own], pa.int64()),
            "event_id": pa.array([event.event_id for event in own]),
        }
        values = {"value": pa.array([event.value for event in own])}
        write_deltalake(lake / "bronze" / "events", pa.table(rows | values), mode="append", partition_by=["date", "exchange"])
        if is_counted:
            silver = pa.table({name: rows[name] for name in rows if name != "payload_case"})
            write_deltalake(lake / "silver" / TABLES[case], silver, mode="append", partition_by=["date", "exchange"])


def read(lake: Path, case: str) -> list[Message]:
    batches = stored_messages(Lake.at(lake), "bitmex", "XBTUSD", case, START_US, START_US + DAY_US)
    return [message for batch in batches for message in batch]


def test_each_message_comes_once_and_in_order(tmp_path: Path) -> None:
    messages = sample("trade", "book_change")
    told = events(messages, "s1")
    store(tmp_path, told[len(told) // 2 :])
    store(tmp_path, told[: len(told) // 2])
    store(tmp_path, told[:50], is_counted=False)  # came twice
    store(tmp_path, events(sample("trade")[:5], "s2"), is_counted=False)  # heard twice
    for case, kind in (("trade", "trade"), ("book_change", "book_change")):
        assert read(tmp_path, case) == [m for m in messages if m.__struct_config__.tag == kind]


def test_of_several_recorders_one_is_followed(tmp_path: Path) -> None:
    messages = sample("book_change")
    store(tmp_path, events(messages[:80], "l1", origin="realtime"))
    store(tmp_path, events(messages[:100], "l2", origin="realtime"))
    assert read(tmp_path, "book_change") == messages[:100]
    store(tmp_path, events(messages[:30], "r1"))
    assert read(tmp_path, "book_change") == messages[:30]


def test_a_message_in_parts_is_refused(tmp_path: Path) -> None:
    store(tmp_path, events(sample("book_change")[:3], "s1", book_changes="level"))
    with pytest.raises(LakeError, match=r"the lake has a message of XBTUSD at 2020-02-01T00:00:0.* in parts"):
        read(tmp_path, "book_change")


@pytest.mark.parametrize("dataset", ["trades", "incremental_book_L2", "quotes", "book_snapshot_5"])
def test_files_hold_what_a_replay_of_the_same_does(tmp_path: Path, dataset: str) -> None:
    layout = DATASETS[dataset]
    messages = sample(layout.normalized)
    store(tmp_path / "lake", events(messages, "s1"))
    asked = ["--exchange", "bitmex", "--symbols", "XBTUSD", "--from", "2020-02-01", "--to", "2020-02-02", "--datasets", dataset]
    assert main(["export", "csv", *asked, "--from-lake", str(tmp_path / "lake"), "--output-dir", str(tmp_path)]) == 0
    [file] = tmp_path.glob("*.csv.gz")
    assert file.name == f"bitmex_{dataset}_2020-02-01_XBTUSD.csv.gz"
    rows = to_csv_rows(Computer([layout.data_type]).feed(messages))
    assert gzip.decompress(file.read_bytes()) == layout.header + rows
    assert rows.count(b"\n") > 10


def test_a_lake_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--exchange", "bitmex", "--symbols", "X", "--from", "2020-02-01", "--to", "2020-02-02", "--datasets", "trades"]
    assert main(["export", "csv", *asked, "--from-lake", str(tmp_path / "no"), "--output-dir", str(tmp_path)]) != 0
    assert f"there is no lake in {tmp_path}/no" in capsys.readouterr().err
