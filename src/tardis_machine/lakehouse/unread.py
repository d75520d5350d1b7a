"""What a stream has not read yet, for whoever watches it.

Spark tells where the last batch ended, and of some sources where they end; how many files are left stands in the checkpoint of their
stream, how many rows in the log of their table.

Invariant: it is counted, never guessed; where it can't be known, nothing is told.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from .storage import Storage

__all__ = ["count_files", "count_records", "count_rows", "unread_since_s"]


def count_records(
    between: Callable[[Mapping[str, Any], Mapping[str, Any]], int | None], sources: Sequence[Mapping[str, Any]]
) -> Mapping[str, int]:
    """Those between where a batch ended and where its source does; `between` counts them."""
    (source,) = sources
    records = between(source["endOffset"], source["latestOffset"]) if source["latestOffset"] else None
    return {} if records is None else {"records": max(records, 0)}


def count_files(files: Iterable[str], checkpoints: Storage, progress: str) -> Mapping[str, int]:
    """Those that no batch was planned with; `progress` is where in `checkpoints` Spark writes that down."""
    planned = {*_planned_files(checkpoints, f"{progress}/sources/0")}
    return {"files": sum(_name(file) not in planned for file in files)}


def _planned_files(storage: Storage, log: str) -> Iterator[str]:
    """Their names. Spark writes a file for each batch, and now and then one that holds all before it."""
    entries = [re.fullmatch(r"(\d+)(\.compact)?", _name(path)) for path in storage.list_files(log, "[0-9]*")]
    batches = {int(entry[1]): entry for entry in entries if entry is not None}
    joined = max((batch for batch, entry in batches.items() if entry[2]), default=-1)
    for batch, entry in batches.items():
        if batch >= joined:
            # The first line is the version of the format.
            lines = storage.read_text(f"{log}/{entry[0]}").splitlines()[1:]
            yield from (_name(unquote(json.loads(line)["path"])) for line in lines)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def count_rows(layer: str, lake: Storage, sources: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    """Those that Delta tables of a lake have behind where a batch ended."""
    counts = [_rows_behind(lake, source) for source in sources]
    return {} if None in counts else {f"rows for {layer}": sum(count or 0 for count in counts)}


def _rows_behind(storage: Storage, source: Mapping[str, Any]) -> int | None:
    described = re.fullmatch(r"DeltaSource\[(.*)\]", source["description"])
    offset = source["endOffset"]
    if described is None or not offset:
        return None
    table = storage.to_path(described[1])
    version, index, rows = offset["reservoirVersion"], offset["index"], 0
    if offset["isStartingVersion"]:
        rows = sum(_rows_of_snapshot(storage, table, version)[index + 1 :])
        version, index = version + 1, -1
    numbers = _commits_from(storage, table, version)
    if numbers is None:
        return None
    for number in numbers:
        rows += sum(_rows_of_commit(_commit(storage, table, number))[index + 1 :])
        index = -1
    return rows


def _commits_from(storage: Storage, table: str, version: int) -> list[int] | None:
    """The commits from a version on; None where old ones of them were removed from the log."""
    entries = storage.list_files(f"{table}/_delta_log", "[0-9]*[0-9].json")
    commits = sorted(number for entry in entries if (number := int(_name(entry).removesuffix(".json"))) >= version)
    return None if commits and commits[0] > version else commits


def _commit(storage: Storage, table: str, version: int) -> str:
    return storage.read_text(f"{table}/_delta_log/{version:020}.json")


@lru_cache(maxsize=32)
def _rows_of_snapshot(storage: Storage, table: str, version: int) -> list[int]:
    """By file, in the order in which a stream reads a table that was there before it."""
    files = pa.table(storage.open_log(table, version).get_add_actions(flatten=True))
    ordered = files.sort_by([("modification_time", "ascending"), ("path", "ascending")])
    return [rows or 0 for rows in ordered.column("num_records").to_pylist()]


def _rows_of_commit(commit: str) -> list[int]:
    """By file, in the order in which a stream reads what was added later; commits that change or join rows are passed over."""
    actions = [json.loads(line) for line in commit.splitlines()]
    changes = [action for action in actions if any(action.get(kind, {}).get("dataChange") for kind in ("add", "remove"))]
    if any("remove" in action for action in changes):
        return []
    return [json.loads(action["add"].get("stats") or "{}").get("numRecords", 0) for action in changes]


def unread_since_s(lake: Storage, table_id: str, table: str) -> float:
    """For how many seconds rows of a table have been waiting for the stream that is furthest behind; 0 where none is behind.

    One that is further behind than the table's log goes back can't go on, and is not waited for.
    """
    unread = [_first_unread(lake, table, offset) for offset in _read_to(lake, table_id)]
    written_ms = [int(found[1]) for commit in unread if (found := re.search(r'"commitInfo":\{"timestamp":(\d+)', commit))]
    return max(0.0, time.time() - min(written_ms) / 1000) if written_ms else 0.0


def _first_unread(storage: Storage, table: str, offset: Mapping[str, Any]) -> str:
    """The commit that brought the first rows that a stream has not read; empty where it has read all, or can't go on."""
    version, index = offset["reservoirVersion"], offset["index"]
    if offset["isStartingVersion"]:
        if sum(_rows_of_snapshot(storage, table, version)[index + 1 :]):
            return _commit(storage, table, version)
        version, index = version + 1, -1
    for number in _commits_from(storage, table, version) or ():
        commit = _commit(storage, table, number)
        if sum(_rows_of_commit(commit)[index + 1 :]):
            return commit
        index = -1
    return ""


def _read_to(lake: Storage, table_id: str) -> Iterator[Mapping[str, Any]]:
    """Up to where each stream has read a table for certain, whichever job it is of."""
    planned: dict[str, list[int]] = {}
    ended: set[tuple[str, int]] = set()
    for path in lake.list_files(f"{lake.root}/_checkpoints", "[0-9]*", below=True):
        folder, _, name = path.rpartition("/")
        progress, _, kind = folder.rpartition("/")
        if progress.endswith("/progress") and name.isdigit():
            if kind == "offsets":
                planned.setdefault(progress, []).append(int(name))
            elif kind == "commits":
                ended.add((progress, int(name)))
    for progress, batches in planned.items():
        last = max(batches)
        # One that has not ended may have to be run again, from where the one before it ended.
        batch = last if (progress, last) in ended else sorted(batches)[-2:][0]
        for line in lake.read_text(f"{progress}/offsets/{batch}").splitlines()[2:]:
            offset = json.loads(line) if line != "-" else None
            if isinstance(offset, dict) and offset.get("reservoirId") == table_id:
                yield offset if (progress, batch) in ended else offset | {"index": -1}
