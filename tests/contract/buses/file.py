"""The file bus in front of a folder, read back by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import duckdb

from tests.contract.bus_under_test import BusUnderTest, Delivered, Fault, Misconfiguration


class FileUnderTest(BusUnderTest):
    prefix = "file"
    faults: ClassVar[Sequence[Fault]] = ("gone",)
    cannot: ClassVar[dict[Fault, str]] = {
        "restart": "a folder has no process",
        "hang": "a folder answers or fails",
        "cut": "a folder has no connections",
        "partial": "a file is written as a whole",
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._disk = folder / "disk"
        self._out = self._disk / "out"

    def keywords(self) -> dict[str, Any]:
        return {"dir": self._out}

    def destination_option(self) -> tuple[str, str]:
        return "dir-routing", "events"

    def new_destination(self, name: str) -> str:
        return name

    def read_back(self) -> list[Delivered]:
        return list(self.each_record())

    def each_record(self) -> Iterator[Delivered]:
        """By DuckDB, which shares no code with pyarrow."""
        for path in sorted(self._out.glob("part-*.parquet")):
            query = f"SELECT destination, key, headers, value FROM read_parquet('{path}', file_row_number=true) ORDER BY file_row_number"
            for row in duckdb.sql(query).fetchall():
                yield Delivered(*row)

    def inject(self, fault: Fault) -> None:
        """What the folder is in goes, as a disk does that is no longer mounted, and nothing can be made there."""
        if self._disk.exists():
            self._disk.rename(self.folder / "away")
        self._disk.write_text("no folder")

    def heal(self) -> None:
        self._disk.unlink()
        if (self.folder / "away").exists():
            (self.folder / "away").rename(self._disk)

    def misconfigurations(self) -> Sequence[Misconfiguration]:
        taken = self.folder / "taken"
        taken.write_text("")
        return [
            Misconfiguration({"dir": taken}, "--file-dir: .*taken' is not a folder"),
            Misconfiguration({"max-bytes": "10"}, "expected a size of 1024 bytes or more"),
        ]
