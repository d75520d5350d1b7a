"""What is left: files that no batch was planned with, and rows behind the place where a stream stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tardis_machine.lakehouse.storage import Folder
from tardis_machine.lakehouse.unread import count_files, count_records, count_rows

LAKE = Folder("/lake")


def plan(log: Path, name: str, *files: str) -> None:
    """As Spark writes down the files of a batch."""
    log.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": f"file:///some%20where/{file}", "timestamp": 1, "batchId": 1}) for file in files]
    (log / name).write_text("\n".join(["v1", *lines]))


def test_files_are_left_until_a_batch_is_planned_with_them(tmp_path: Path) -> None:
    files = [f"some where/{name}" for name in ("a b.parquet", "c.parquet", "d.parquet", "e.parquet")]
    log = tmp_path / "sources" / "0"

    def left() -> Any:
        return count_files(files, Folder(str(tmp_path)), str(tmp_path))

    assert left() == {"files": 4}
    plan(log, "0", "a%20b.parquet")
    plan(log, ".1.tmp", "e.parquet")
    assert left() == {"files": 3}
    # What is joined holds all before it, which is then removed.
    plan(log, "9.compact", "a%20b.parquet", "c.parquet")
    plan(log, "10", "d.parquet", "long-gone.parquet")
    (log / "0").unlink()
    assert left() == {"files": 1}


def test_records_are_left_up_to_the_newest_that_a_source_tells_of() -> None:
    def between(start: Any, end: Any) -> int | None:
        return None if "torn" in end else end["at"] - start["at"]

    def left(latest: Any) -> Any:
        return count_records(between, [{"endOffset": {"at": 5}, "latestOffset": latest}])

    assert left({"at": 12}) == {"records": 7}
    assert left({"at": 4}) == {"records": 0}
    assert left(None) == left({"at": 12, "torn": 1}) == {}


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Four commits: 3 rows, 4 rows in two files, 5 rows, the last two joined; then 6 rows, and one more that removes rows."""
    place = tmp_path / "a table"
    for numbers, parts in (([1] * 3, ["x"]), ([2] * 4, ["x", "y"]), ([3] * 5, ["x"])):
        rows = {"n": numbers, "part": [parts[place % len(parts)] for place in range(len(numbers))]}
        write_deltalake(place, pa.table(rows), mode="append", partition_by=["part"])
    DeltaTable(place).optimize.compact()
    write_deltalake(place, pa.table({"n": [6] * 6, "part": ["z"] * 6}), mode="append")
    DeltaTable(place).delete("n = 3")
    return str(place)


def behind(table: str, version: int, index: int, *, is_snapshot: bool = False) -> Any:
    offset = {"reservoirVersion": version, "index": index, "isStartingVersion": is_snapshot}
    return count_rows("silver", LAKE, [{"description": f"DeltaSource[file:{table}]", "endOffset": offset}])


def test_rows_are_left_behind_a_place_in_a_tables_log(table: str) -> None:
    assert behind(table, 0, -1) == {"rows for silver": 3 + 4 + 5 + 6}
    assert behind(table, 1, -1) == {"rows for silver": 4 + 5 + 6}
    assert behind(table, 1, 0) == {"rows for silver": 2 + 5 + 6}
    assert behind(table, 2, -1) == {"rows for silver": 5 + 6}
    # Joining files brings no rows, and what a commit removes was read before.
    assert behind(table, 3, -1) == behind(table, 4, -1) == {"rows for silver": 6}
    assert behind(table, 5, -1) == behind(table, 6, -1) == {"rows for silver": 0}


def test_rows_are_left_behind_a_place_in_the_table_as_it_was_when_a_stream_began(table: str) -> None:
    assert behind(table, 1, -1, is_snapshot=True) == {"rows for silver": 3 + 4 + 5 + 6}
    assert behind(table, 1, 0, is_snapshot=True) == {"rows for silver": 4 + 5 + 6}
    assert behind(table, 1, 1, is_snapshot=True) == {"rows for silver": 2 + 5 + 6}
    assert behind(table, 1, 2, is_snapshot=True) == {"rows for silver": 5 + 6}


def test_nothing_is_told_of_what_can_not_be_known(table: str) -> None:
    begun = {"reservoirVersion": 0, "index": -1, "isStartingVersion": False}
    known = {"description": f"DeltaSource[file:{table}]", "endOffset": begun}
    assert count_rows("gold", LAKE, [known, {"description": "MemoryStream", "endOffset": begun}]) == {}
    assert count_rows("gold", LAKE, [known, {**known, "endOffset": None}]) == {}
    assert count_rows("gold", LAKE, [known, known]) == {"rows for gold": 36}
    Path(table, "_delta_log", f"{0:020}.json").unlink()
    assert count_rows("gold", LAKE, [known]) == {}
