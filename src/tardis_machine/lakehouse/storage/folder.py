"""A folder: of this machine, or one that all machines of a cluster have mounted in the same place.

Invariant: a small file is written beside its place and renamed, so nobody reads half of it. What this module has written is on disk when
a call returns; what others wrote is, when `sync` does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .contract import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["Folder"]

_SCHEME = re.compile(r"^file:(//)?(?=/)")


class Folder(Storage):
    """A lake in a folder."""

    @property
    def local_folder(self) -> Path:
        """The root."""
        return Path(self.root)

    @property
    def renames(self) -> bool:
        """As folders do."""
        return True

    @property
    def spark_conf(self) -> dict[str, str]:
        """Nothing."""
        return {}

    @property
    def jars(self) -> None:
        """None."""
        return

    @property
    def log_options(self) -> None:
        """Nothing."""
        return

    def create(self) -> None:
        """Makes the folder and those above it."""
        _make_folder(Path(self.root))

    def is_missing(self) -> bool:
        """Whether there is no such folder."""
        return not Path(self.root).is_dir()

    def to_path(self, name: str) -> str:
        """Without `file:`."""
        return _SCHEME.sub("", name, count=1)

    def list_files(self, folder: str, pattern: str, *, below: bool = False) -> list[str]:
        """In no order."""
        found = Path(folder).rglob(pattern) if below else Path(folder).glob(pattern)
        return [str(path) for path in found]

    def read_text(self, path: str) -> str:
        """All of it, or nothing."""
        try:
            return Path(path).read_text()
        except FileNotFoundError:
            return ""

    def write_bytes(self, path: str, content: bytes | pa.Buffer) -> None:
        """Makes the folders above it too."""
        _make_folder(Path(path).parent)
        unfinished = Path(f"{path}.new")
        unfinished.write_bytes(content)
        _sync(unfinished)
        unfinished.rename(path)
        _sync(Path(path).parent)

    def open_parquet(self, path: str) -> pq.ParquetFile:
        """A column of it is read where it lies."""
        import pyarrow.parquet as pq
        from pyarrow.fs import LocalFileSystem

        # Spark, which rewrites files when it joins small ones, has instants of a type of its own.
        return pq.ParquetFile(path, coerce_int96_timestamp_unit="us", filesystem=LocalFileSystem())

    def create_file(self, path: str) -> pa.NativeFile:
        """It has its name from the start: nobody looks for one that no log names."""
        from pyarrow.fs import LocalFileSystem

        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return LocalFileSystem().open_output_stream(path)

    def remove_file(self, path: str) -> None:
        """At once."""
        with suppress(FileNotFoundError):
            Path(path).unlink()

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """As the folder has them."""
        return [os.stat(path).st_size if os.path.isfile(path) else None for path in paths]  # noqa: PTH113, PTH116 - there are many

    def sync(self, paths: Iterable[str]) -> None:
        """Files first, then each folder up to the root, once."""
        root, files = Path(self.root), [*map(Path, paths)]
        for file in files:
            _sync(file)
        for folder in dict.fromkeys(folder for file in files for folder in file.parents if folder.is_relative_to(root)):
            _sync(folder)

    def _has_log(self, path: str) -> bool:
        return Path(path, "_delta_log").is_dir()


def _make_folder(folder: Path) -> None:
    """A folder, with those above it that are missing; their names are on disk."""
    missing = [above for above in (folder, *folder.parents) if not above.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        _sync(made.parent)


def _sync(target: Path) -> None:
    """Returns when a file, or the names in a folder, are on disk."""
    fd = os.open(target, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
