"""What can't be delivered, kept in files that people can read and `tardis-machine replay --dead-letter` can send again.

One JSON object a line: the reason, where it was to go, and the whole event. A file is appended to by one process, which holds a
lock on it.

Invariant: a letter that `write` returned for is durable. A torn last line is not a letter. All files of a folder together are no
larger than told.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ..bronze.event import Event, EventStream
from ..errors import TerminalDeliveryError, TransientDeliveryError
from .contract import Record
from .durable_files import sync_folder, write_all

__all__ = ["DeadLetter", "DeadLetters", "dead_letter_files", "read_dead_letters"]

_FILE_BYTES = 64 * 1024**2
_MAX_BYTES = 1024**3


class DeadLetter(msgspec.Struct):
    """One event that its bus would not take."""

    reason: str
    bus: str
    time: str
    destination: str
    key: str
    stream: EventStream
    sequence: int
    local_ts_us: int
    event_id: str
    """Hexadecimal."""
    value: bytes
    """Base64 in the file."""

    @property
    def event(self) -> Event:
        """As it was published."""
        return Event(self.stream, bytes.fromhex(self.event_id), self.value, self.sequence, self.local_ts_us)


class DeadLetters:
    """Writes the letters of one bus; blocks on the disk."""

    def __init__(self, bus: str, folder: Path, max_bytes: int = _MAX_BYTES, *, file_bytes: int = _FILE_BYTES) -> None:
        self._bus = bus
        self._folder = folder
        self.max_bytes = max_bytes
        self._file_bytes = file_bytes
        # The file at hand, and its size.
        self._fd = -1
        self._file_size_bytes = 0
        self.size_bytes = 0
        """All files of the folder, as far as it is known: others may remove some."""

    def measure(self) -> None:
        """Looks how large the files of the folder are."""
        try:
            self.size_bytes = sum(path.stat().st_size for path in self._folder.glob("*.jsonl"))
        except OSError:
            self.size_bytes = 0  # it is not there, or can't be used: `write` will tell

    def write(self, letters: Iterable[tuple[Record, str]]) -> None:
        """Keeps records, each with the reason why it can't be delivered; all of them or, with a Transient error, none."""
        now = datetime.now(UTC)
        data = b"".join(self._to_line(record, reason, now) for record, reason in letters)
        try:
            self._make_sure_of_room(len(data))
            if self._fd < 0 or self._file_size_bytes >= self._file_bytes:
                self._start_file(now)
            self._append(data)
        except OSError as error:
            raise TransientDeliveryError(f"dead letters can't be written to {self._folder}: {error.strerror or error}") from error

    def _make_sure_of_room(self, more_bytes: int) -> None:
        if self._fd < 0 or self.size_bytes + more_bytes > self.max_bytes:
            self.measure()  # some may have been sent again
        if self.size_bytes + more_bytes > self.max_bytes:
            raise TransientDeliveryError(
                f"the dead letters in {self._folder} have {self.size_bytes} bytes, and {more_bytes} more are past "
                f"--{self._bus}-dead-letter-max-bytes ({self.max_bytes}): send them again with "
                "'tardis-machine replay --dead-letter', remove them, or allow more"
            )

    def _to_line(self, record: Record, reason: str, now: datetime) -> bytes:
        event = record.event
        letter = DeadLetter(
            reason=reason,
            bus=self._bus,
            time=now.isoformat(timespec="milliseconds"),
            destination=record.destination,
            key=record.key,
            stream=event.stream,
            sequence=event.sequence,
            local_ts_us=event.local_ts_us,
            event_id=event.event_id.hex(),
            value=event.value,
        )
        return msgspec.json.encode(letter) + b"\n"

    def _start_file(self, now: datetime) -> None:
        self.close()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{now:%Y%m%dT%H%M%S.%f}-{os.getpid()}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file_size_bytes = 0
        sync_folder(self._folder)

    def _append(self, data: bytes) -> None:
        try:
            write_all(self._fd, data)
            os.fdatasync(self._fd)
        except OSError:
            try:
                os.ftruncate(self._fd, self._file_size_bytes)
            except OSError:
                self.close()  # a torn last line is no letter: the next ones go to another file
            raise
        self._file_size_bytes += len(data)
        self.size_bytes += len(data)

    def close(self) -> None:
        """Lets go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def dead_letter_files(folder: Path) -> list[Path]:
    """Files with letters that no process is writing to, oldest first."""
    return [path for path in sorted(folder.glob("*.jsonl")) if not _is_being_written(path)]


def _is_being_written(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_dead_letters(path: Path) -> Iterator[DeadLetter]:
    """The letters of a file, in the order they were written; a Terminal error where a line is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                try:
                    yield msgspec.json.decode(line, type=DeadLetter)
                except msgspec.MsgspecError as error:
                    raise TerminalDeliveryError(f"line {number} of {path} is not a dead letter: {error}") from None


def batches_of(letters: Iterable[DeadLetter], size: int = 1000) -> Iterator[Sequence[DeadLetter]]:
    """Letters by the batch."""
    batch: list[DeadLetter] = []
    for letter in letters:
        batch.append(letter)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
