"""Own recordings of live data, in the layout of the cache: a folder for the filters of a stream, a file for each of its minutes.

    {record-dir}/feeds/{exchange}/{sha256 of the filters}/filters.json
                                                         /recorder.lock         held by the process that records
                                                         /{start in us}.journal  the minute at hand, as it is heard
                                                         /{YYYY}/{MM}/{DD}/{HH}/{mm}.json.zst

Invariant: a minute under its final name is whole, or says by empty lines where nobody listened. What a process that died had heard of
its last minute is in its journal, and is found by the next one that looks.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import zstandard

from ..errors import SliceError
from ..filters import Filter, to_compact_json
from ..messages import parse_timestamp_us
from .cache import FeedCache, check_exchange, make_folder
from .reader import check_lines, decompress
from .slice import to_slice_name

__all__ = ["RecordedFeed", "find_feeds", "recorded_exchanges", "recover_journals"]

_FILTERS = "filters.json"
_LOCK = "recorder.lock"
_JOURNAL = ".journal"


class RecordedFeed:
    """What was recorded of one exchange with one set of filters. Synchronous.

    To write, `claim` it: one process at a time records a feed.
    """

    def __init__(self, record_dir: Path, exchange: str, filters: tuple[Filter, ...]) -> None:
        """`filters` are optimized ones."""
        self.exchange = exchange
        self.filters = filters
        self._cache = FeedCache(record_dir, exchange, filters)
        self._lock: int | None = None
        # The journal that is written to: its minute, and its descriptor.
        self._open: tuple[int, int] | None = None
        # A minute is sealed in a thread while the next one is written.
        self._mutex = threading.Lock()

    @property
    def folder(self) -> Path:
        """Names it in the log."""
        return self._cache.folder

    def read(self, start_us: int) -> bytes | None:
        """The lines of a minute; None where it was not recorded. SliceError where its file is damaged, OSError where it can't be read."""
        name = to_slice_name(self.exchange, start_us, 1)
        file = self._cache.find(start_us, 1)
        if file is None:
            return None
        lines = decompress(Path(file.path).read_bytes(), file.encoding, name)
        check_lines(lines, name)
        return lines

    def claim(self) -> bool:
        """Whether this process may write, now and until `release`. Takes in what one before it has left."""
        if self._lock is None:
            make_folder(self.folder)
            lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._lock = lock
            _write_durably(self.folder / _FILTERS, to_compact_json(self.filters))
            for start_us in self.journals:
                self.seal(start_us, is_cut=True)
        return True

    def release(self) -> None:
        """Lets another process write."""
        self._close_journal()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def append(self, start_us: int, data: bytes) -> None:
        """Adds lines to the journal of a minute, or begins it. OSError where not all of them fit."""
        with self._mutex:
            if self._open is None or self._open[0] != start_us:
                self._close_open()
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._open = start_us, os.open(self._to_journal(start_us), flags, 0o600)
            view = memoryview(data)
            while view:
                view = view[os.write(self._open[1], view) :]

    def _close_journal(self, start_us: int | None = None) -> None:
        """The one of a minute, or whichever is open."""
        with self._mutex:
            if start_us is None or (self._open is not None and self._open[0] == start_us):
                self._close_open()

    def _close_open(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def seal(self, start_us: int, *, is_cut: bool = False) -> None:
        """Makes a minute of its journal. `is_cut`: what was heard at its end is missing.

        Where the minute is there already, because the recorder was started again within it, an empty line stands between.
        """
        self._close_journal(start_us)
        journal = self._to_journal(start_us)
        data = journal.read_bytes()
        # A process that dies, and a full disk, may leave a line torn.
        lines = data[: data.rfind(b"\n") + 1]
        before = self._read_before(start_us)
        if lines and before.endswith(lines):
            lines = before  # it was written, and the journal had only to go
        else:
            if is_cut or len(lines) < len(data):
                lines += b"\n"
            if before:
                lines = before.rstrip(b"\n") + b"\n\n" + lines.lstrip(b"\n")
        _write_durably(Path(self._cache.to_path(start_us, 1, "zst")), zstandard.compress(lines))
        journal.unlink()

    def _read_before(self, start_us: int) -> bytes:
        try:
            return self.read(start_us) or b""
        except SliceError:
            return b""  # it can't be read by anyone

    @property
    def journals(self) -> list[int]:
        """The minutes at hand, or those that a process which died has left."""
        names = [file.stem for file in self.folder.glob(f"*{_JOURNAL}")]
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    @property
    def first_us(self) -> int | None:
        """When its first minute began; None where there is none."""
        folder = self.folder
        for _ in ("year", "month", "day", "hour"):
            parts = sorted(part for part in folder.glob("[0-9]*") if part.is_dir())
            if not parts:
                return None
            folder = parts[0]
        year, month, day, hour = folder.parts[-4:]
        hour_us = parse_timestamp_us(f"{year}-{month}-{day}T{hour}:00:00.000Z")
        return min((file.start_us for file in self._cache.list_hour(hour_us)), default=None)

    def _to_journal(self, start_us: int) -> Path:
        return self.folder / f"{start_us}{_JOURNAL}"


def find_feeds(record_dir: Path, exchange: str) -> list[RecordedFeed]:
    """All that was recorded of an exchange, the oldest first."""
    found: list[tuple[float, str, RecordedFeed]] = []
    for file in (record_dir / "feeds" / check_exchange(exchange)).glob(f"*/{_FILTERS}"):
        with suppress(OSError, msgspec.MsgspecError):
            filters = tuple(msgspec.json.decode(file.read_bytes(), type=list[Filter]))
            feed = RecordedFeed(record_dir, exchange, filters)
            if feed.folder == file.parent:
                found.append((file.stat().st_mtime, file.parent.name, feed))
    return [feed for *_, feed in sorted(found, key=lambda item: item[:2])]


def recorded_exchanges(record_dir: Path) -> list[str]:
    """The exchanges of which there are recordings."""
    return sorted({file.parent.parent.name for file in (record_dir / "feeds").glob(f"*/*/{_FILTERS}")})


def recover_journals(record_dir: Path) -> list[str]:
    """Takes in the last minutes of processes that died; names them. Those of processes that run stay."""
    recovered: list[str] = []
    for exchange in recorded_exchanges(record_dir):
        for feed in find_feeds(record_dir, exchange):
            minutes = [to_slice_name(exchange, start_us, 1) for start_us in feed.journals]
            if minutes and feed.claim():
                feed.release()
                recovered += minutes
    return recovered


def _write_durably(path: Path, data: bytes) -> None:
    """Under a name of its own, then under the final one, which also a power cut leaves with nothing less."""
    make_folder(path.parent)
    draft = path.with_name(f"{path.name}.{os.getpid()}.unconfirmed")
    try:
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
