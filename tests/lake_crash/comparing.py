"""Two lakes, row by row and without Spark: every table that either has, all its columns, and how often each row is there.

Invariant: unless it is asked for, no column is left out: none says when or by which batch a row was written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tardis_machine.lakehouse.storage import Storage, open_storage

__all__ = ["Comparison", "compare_lakes", "compare_table"]

LAYERS = ("bronze", "silver", "gold")


@dataclass(frozen=True)
class Comparison:
    """What one table has in two lakes."""

    table: str
    rows: int
    other_rows: int
    only_here: int
    only_there: int
    example: dict[str, Any] | None
    """A row that only one of them has."""

    @property
    def is_equal(self) -> bool:
        """Whether both have the same rows, each equally often."""
        return self.only_here == self.only_there == 0


def compare_lakes(lake: Path | Storage, other: Path | Storage) -> list[Comparison]:
    """All tables, front to back."""
    names = {
        ".".join(path.split("/")[-4:-2])
        for place in map(_storage, (lake, other))
        for layer in LAYERS
        for path in place.list_files(f"{place.root}/{layer}", f"{0:020}.json", below=True)
    }
    return [
        compare_table(name, lake, other) for name in sorted(names, key=lambda name: (LAYERS.index(name.partition(".")[0]), name))
    ]


def compare_table(
    name: str, lake: Path | Storage, other: Path | Storage, *, without: Collection[str] = (), where: str = "true"
) -> Comparison:
    """One table, but for some columns, and only the rows of a condition."""
    import duckdb
    import pyarrow as pa

    found = [_read(_storage(place), name) for place in (lake, other)]
    present = next(rows for rows in found if rows is not None)
    here, there = (present.slice(0, 0) if rows is None else rows for rows in found)
    with duckdb.connect() as database:
        database.register("here", here)
        database.register("there", there)
        columns = ", ".join(f'"{column}"' for column in here.column_names if column not in without)
        differing = [
            database.sql(
                f"SELECT {columns} FROM {one} WHERE {where} EXCEPT ALL SELECT {columns} FROM {two} WHERE {where}"
            ).to_arrow_table()
            for one, two in (("here", "there"), ("there", "here"))
        ]
    first = pa.concat_tables([rows.slice(0, 1) for rows in differing]).to_pylist()
    return Comparison(
        name, here.num_rows, there.num_rows, differing[0].num_rows, differing[1].num_rows, first[0] if first else None
    )


def _storage(lake: Path | Storage) -> Storage:
    return open_storage(lake) if isinstance(lake, Path) else lake


def _read(lake: Storage, name: str) -> Any:
    path = f"{lake.root}/{name.replace('.', '/')}"
    return lake.open_log(path).to_pyarrow_table() if lake.list_files(f"{path}/_delta_log", "*.json") else None
