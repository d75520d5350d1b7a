"""Files of the file bus read by executors themselves, for `tardis-events`; jobs of the lake have Spark plan them.

Invariant: a partition is a file, which is whole when it has its name. So an offset names all files that were read: this is for
folders of thousands of files, not of millions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from ...errors import TerminalDeliveryError
from ..storage import Folder
from .files import FILES, read_file
from .options import SourceOptions
from .partitions import OffsetRange, Offsets, PartitionOffset, PartitionReader
from .records import Columns

__all__ = ["FilesOptions", "FilesReader"]


class FilesOptions(SourceOptions, frozen=True, kw_only=True):
    """The folder."""

    dir: str | Path


class FilesReader(PartitionReader[FilesOptions]):
    """Reads the files of a folder and below."""

    name = "files"

    def __init__(self, options: FilesOptions) -> None:
        super().__init__(options)
        if "://" in str(options.dir):
            raise TerminalDeliveryError(f"files at {options.dir} are read with spark.read.parquet; tardis-events takes a folder")
        self._folder = Folder(str(Path(options.dir).absolute()))

    async def advance(self, start: Offsets, limit: int) -> dict[str, PartitionOffset]:
        """Whole files, in the order in which they were finished."""
        if self._folder.is_missing():
            raise TerminalDeliveryError(f"there is no folder {self._folder.root} to read files from")
        found = (Path(path) for path in self._folder.list_files(self._folder.root, FILES, below=True))
        new = sorted((path for path in found if str(path) not in start), key=lambda path: (path.stat().st_mtime_ns, path))
        offsets, rows = dict(start), 0
        for path in new:
            if rows >= limit:
                break
            count = self._rows(path)
            offsets[str(path)] = PartitionOffset(at="", read=count, began=0, closed=True)
            rows += count
        return offsets

    def _rows(self, path: Path) -> int:
        try:
            with self._folder.open_parquet(str(path)) as file:
                return int(file.metadata.num_rows)
        except pa.ArrowException as error:
            raise TerminalDeliveryError(f"{path} was not written by the file bus: {error}") from error

    async def split(self, partition: str, start: PartitionOffset | None, end: PartitionOffset) -> Sequence[OffsetRange]:
        """The file."""
        return [OffsetRange(partition, "0", str(end.read))]

    async def fetch(self, part: OffsetRange, after: str) -> tuple[Columns, str]:
        """Its next rows."""
        records = Columns()
        if int(after) >= int(part.until):
            return records, after
        modified_us = _modified_us(part.partition)
        for batch in read_file(self._folder, part.partition, modified_us):
            rows = batch.to_pydict()
            records.keys += rows["key"]
            records.values += rows["value"]
            records.headers += rows["headers"]
            records.positions += rows["position"]
            records.times_us += batch.column("broker_timestamp").cast(pa.int64()).to_pylist()
            records.destinations += rows["destination"]
        return records, part.until

    async def close(self) -> None:
        """There is nothing to let go of."""


def _modified_us(path: str) -> int:
    return Path(path).stat().st_mtime_ns // 1000
