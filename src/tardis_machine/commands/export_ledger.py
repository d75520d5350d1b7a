"""`ledger.jsonl` beside files of backtests: what each day was counted as when it was made, and which files have it.

Invariant: what it tells of is whole; it is replaced as one, so that a line is never torn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ..errors import OptionsError
from ..eventbus.ledger import LedgerEntry

__all__ = ["ExportLedger", "Written", "write_whole"]


class Written(msgspec.Struct):
    """A line: what was written of a day and symbol."""

    file: str
    """The day and symbol, as datasets name their files."""
    start: str
    end: str
    paths: dict[str, str | None]
    """The file of each dataset, in the folder; None where there was nothing to write."""
    rows: int
    ledger: list[LedgerEntry]


class ExportLedger:
    """That of a folder, which is made where there is none."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = folder / "ledger.jsonl"
        try:
            text = self._file.read_bytes() if self._file.exists() else b""
            self._written = [msgspec.json.decode(line, type=Written) for line in text.splitlines()]
        except msgspec.MsgspecError as error:
            raise OptionsError(
                f"--output-dir: {self._file} is not the ledger of an export ({error}); choose another folder", "output-dir"
            ) from None

    def missing(self, file: str, start: str, end: str, datasets: Iterable[str]) -> tuple[str, ...]:
        """Which datasets of a day are not there. OptionsError where one is there with other times: its rows would be there twice."""
        missing = []
        for dataset in datasets:
            found = [line for line in self._written if line.file == file and dataset in line.paths]
            for line in found:
                if (line.start, line.end) != (start, end):
                    raise OptionsError(
                        f"--output-dir: {self._folder} has {dataset} of {file} from {line.start} to {line.end};"
                        " choose another folder, or the same dates",
                        "output-dir",
                    )
            if not any(self._is_there(line.paths[dataset]) for line in found):
                missing.append(dataset)
        return tuple(missing)

    def _is_there(self, path: str | None) -> bool:
        return path is None or (self._folder / path).exists()

    def add(self, written: Written) -> None:
        """Its files are there."""
        others = [line for line in self._written if line.file != written.file or not line.paths.keys() & written.paths.keys()]
        self._written = [*others, written]
        text = b"".join(msgspec.json.encode(line) + b"\n" for line in self._written)
        write_whole(self._file, lambda path: path.write_bytes(text))


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """A file that appears under its name when all of it is written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.new")
    try:
        write(unfinished)
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
