"""Books that buses split, and their one row of silver for the whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import Event
from tardis_machine.bronze.splitting import split_event
from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.commits import Commits
from tardis_machine.lakehouse.gold.book_state import BOOK_STATE
from tardis_machine.lakehouse.silver.book_changes import BOOK_CHANGES
from tardis_machine.lakehouse.silver.book_snapshots import BOOK_SNAPSHOTS
from tardis_machine.lakehouse.silver.whole_books import BOOK_PARTS
from tardis_machine.lakehouse.tables import Table
from tardis_machine.lakehouse.verify import verify
from tardis_machine.messages import UNSET, BookChange, BookLevel, BookSnapshot, Message, to_timestamp
from tests.spark.lake_under_test import START_US, LakeUnderTest

LEVELS = 40


def books(session: str = "s1") -> tuple[list[Event], Event]:
    """Five changes of a book, a second apart, and a snapshot."""
    bids = [BookLevel(9000 - n, 1 + n) for n in range(LEVELS)]
    asks = [BookLevel(9001 + n, 1 + n) for n in range(LEVELS)]
    times = [to_timestamp(START_US + n * 1_000_000) for n in range(5)]
    messages: list[Message] = [BookChange("A", "bitmex", True, bids, asks, at, at) for at in times]
    messages.append(BookSnapshot("A", "bitmex", "book_snapshot_40_1s", LEVELS, 1000, UNSET, bids, asks, times[0], times[0]))
    *changes, snapshot = BronzeEncoder(session_id=session, origin="replay", clock_us=lambda: START_US).encode(messages)
    return changes, snapshot


def split(event: Event, max_bytes: int) -> list[bytes]:
    parts = split_event(event, max_bytes)
    assert parts is not None
    return [part.value for part in parts]


def wholes(lake: LakeUnderTest, *tables: Table) -> list[dict[str, Any]]:
    """The rows of tables, a whole a row."""
    rows = [row.asDict(recursive=True) for table in tables for row in lake.lake.read(lake.spark, table).collect()]
    return sorted(rows, key=lambda row: (row.get("name") is not None, row["sequence"]))


def dying(write: Callable[..., Any], after: Table) -> Callable[..., Any]:
    """What writes to tables; the process ends right after it has written to one of them."""

    def write_and_die(*arguments: Any) -> Any:
        written = write(*arguments)
        if after in arguments:
            raise RuntimeError("killed")
        return written

    return write_and_die


# A batch takes Spark seconds: it gets two.
@pytest.mark.parametrize(("files", "dies_after"), [(4, BOOK_CHANGES.table), (2, BOOK_PARTS)])
def test_a_book_is_one_row_however_many_buses_split_it_and_whenever_its_parts_come(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, dies_after: Table
) -> None:
    """And though the job dies between the books of its last batch and their parts."""
    lake = LakeUnderTest(spark, tmp_path)
    (whole, apart, by_two, late, lost), snapshot = books()
    few, many = {id(book): split(book, 900) for book in (whole, apart, by_two, late, lost)}, split(by_two, 600)
    assert all(1 < len(parts) < len(many) for parts in few.values())
    of_snapshot = split(snapshot, 900)
    batches = [
        [whole.value, *few[id(whole)], few[id(apart)][0], *few[id(late)][1:], *few[id(lost)][1:]],
        # In the reverse order, twice, beside another bus's parts of the same book, of which one is lacking.
        [*reversed(few[id(apart)]), *few[id(apart)], *many[1:], *of_snapshot],
        [*few[id(by_two)], *few[id(by_two)], few[id(whole)][0], *of_snapshot],
        # The last part; and a whole that was put together long ago.
        [few[id(late)][0], apart.value, many[0], snapshot.value],
    ]
    step = len(batches) // files
    *earlier, last = ([value for batch in batches[n : n + step] for value in batch] for n in range(0, len(batches), step))
    for number, values in enumerate(earlier):
        lake.bus.write(str(number), values)
    # One byte a batch means one file a batch.
    lake.ingest(max_batch_bytes=1)
    lake.bus.write("last", last)
    with monkeypatch.context() as patch:
        patch.setattr(Commits, "commit", dying(Commits.commit, dies_after))
        with pytest.raises(LakeError, match="killed"):
            lake.ingest()
    lake.ingest()
    found = wholes(lake, BOOK_CHANGES.table, BOOK_SNAPSHOTS.table)
    assert [row["event_id"] for row in found] == [event.event_id for event in (whole, apart, by_two, late, snapshot)]
    first = found[0]
    assert [row["price"] for row in first["bids"]] == [9000 - n for n in range(LEVELS)]
    for row in found:
        assert (row["bids"], row["asks"], row["exchange"], row["symbol"]) == (first["bids"], first["asks"], "bitmex", "A")
        assert (row["date"], row["session"], row["origin"]) == (first["date"], "s1", "replay")
        assert (row["part"], row["part_count"], row["whole_event_id"]) == (None, None, None)
    assert [row["is_snapshot"] for row in found[:-1]] == [True] * 4
    assert (found[-1]["name"], found[-1]["depth"]) == ("book_snapshot_40_1s", LEVELS)
    parts = lake.lake.read(lake.spark, BOOK_PARTS).select("event_id").collect()
    brought = {value for batch in batches for value in batch} - {whole.value, apart.value, snapshot.value}
    assert len(parts) == len({row["event_id"] for row in parts}) == len(brought)


def test_gold_and_verify_know_books_that_were_put_together(lake: LakeUnderTest) -> None:
    (one, *_, other), snapshot = books()
    lake.bus.write("a", [*split(one, 900)[:1], snapshot.value])
    lake.bus.write("b", [*split(one, 900)[1:], *split(other, 700), *split(snapshot, 700)])
    lake.ingest(until="gold", gold=("book_state_50_1s",), max_batch_bytes=1)
    states = DeltaTable(lake.lake.path(BOOK_STATE)).to_pyarrow_table().sort_by("local_ts").to_pylist()
    assert len(states) == 2
    for state in states:
        assert [level["price"] for level in state["bids"]] == [9000 - n for n in range(LEVELS)]
    # What silver lost is missing, and nothing else.
    DeltaTable(lake.lake.path(BOOK_PARTS)).delete("sequence = 4 AND part = 1")
    missing = [found for found in verify(lake.spark, lake.lake).missing if found.stage.startswith("silver")]
    assert [(found.stage, found.first_sequence, found.events) for found in missing] == [("silver.book_changes", 4, 1)]
