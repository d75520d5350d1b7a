"""Events on disk until their bus has confirmed them: one folder a bus, segments of frames, and a note of what is done with.

Segments are read in the order of their numbers. New ones get even numbers; an odd one is written by a shutdown and holds what was
in memory only, at its place between two others. `acked.json` says how far each segment is done with; it may be behind the truth,
and then events are sent again.

With `sync` (write-ahead) what `append` returns for is on the disk itself; otherwise the kernel has it, and writes it by and by, at
the latest when the segment is full or the spool is closed.

Invariant: what was appended survives the death of the process, and with `sync` that of the machine. When the spool is opened, a
torn end is cut; a damaged middle is copied to `damaged`, reported and skipped, and all that is whole around it is read.

All methods block on the disk and belong to one thread.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..bronze.event import Event
from ..errors import SettingsError, TransientDeliveryError
from .durable_files import sync_folder, write_all
from .segment import StreamTable, count_events, encode_events, frames_of, is_torn, parse_event, read_run
from .spool_span import SpoolSpan

__all__ = ["Recovered", "Spool", "SpoolGroup"]

_SEGMENT = re.compile(r"(\d{12})\.spool")
_GROUP_EVENTS = 1000
_SEGMENT_BYTES = 64 * 1024**2


class SpoolGroup(msgspec.Struct):
    """Events that were read together."""

    span: SpoolSpan
    events: list[Event]
    accepted_us: int


class Recovered(msgspec.Struct):
    """What was found when the spool was opened."""

    events: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


class _Segment:
    """One file. What lies before `resume` is done with, what lies before `read_to` is in memory or done with."""

    __slots__ = ("done", "number", "path", "read_to", "resume", "size_bytes", "unread")

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.path = path
        self.size_bytes = 0
        self.resume = 0
        self.read_to = 0
        # Events beyond `read_to`.
        self.unread = 0
        # Stretches beyond `resume` that are done with, by their start.
        self.done: dict[int, int] = {}

    def ack(self, start: int, stop: int) -> None:
        self.done[start] = stop
        while self.resume in self.done:
            self.resume = self.done.pop(self.resume)


class Spool:
    """The spool of one bus; `lock` and `open` it first."""

    def __init__(self, folder: Path, max_bytes: int, *, sync: bool, segment_bytes: int = _SEGMENT_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._sync = sync
        self._segment_bytes = min(segment_bytes, max(max_bytes // 8, 1))
        self._segments: dict[int, _Segment] = {}
        self._table = StreamTable()
        # Those of which no description is left in their segment.
        self._lost_streams: set[bytes] = set()
        # The segment that is written to, and its file.
        self._current: _Segment | None = None
        self._current_fd = -1
        self._lock_fd = -1
        self._acked_as_written = ""
        self.last_segment = 0
        """The highest number in use, made even."""
        self.size_bytes = 0

    def lock(self) -> None:
        """Makes the folder this process's own."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock()
        except OSError as error:
            raise self._unusable(error) from error

    def open(self, on_event: Callable[[Event], None] | None = None) -> Recovered:
        """Cuts what is torn, and counts what is to be sent; `on_event` sees each of those events."""
        try:
            return self._recover(on_event)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> SettingsError:
        return SettingsError([f"the spool folder {self.folder} can't be used: {error.strerror or error}"])

    def _lock(self) -> None:
        self._lock_fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock_fd, 32, 0).decode(errors="replace").strip()
            os.close(self._lock_fd)
            self._lock_fd = -1
            held_by = f"process {owner}" if owner else "another process"
            raise SettingsError(
                [f"the spool folder {self.folder} is in use by {held_by}; choose another with --spool-dir"]
            ) from None
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, str(os.getpid()).encode(), 0)

    def _recover(self, on_event: Callable[[Event], None] | None) -> Recovered:
        recovered = Recovered()
        resumes = self._read_acked()
        found = sorted((int(name[1]), path) for path in self.folder.iterdir() if (name := _SEGMENT.fullmatch(path.name)))
        for number, path in found:
            segment = self._segments[number] = _Segment(number, path)
            self._examine(segment, resumes.get(number, 0), recovered.problems)
            recovered.events += segment.unread
            if on_event is not None:
                self._visit(segment, on_event)
        # A segment may be gone and its note not, as whoever removed it died: no other may have its number.
        highest = max([*self._segments, *resumes], default=0)
        self.last_segment = highest + highest % 2
        self.size_bytes = sum(segment.size_bytes for segment in self._segments.values())
        return recovered

    def _read_acked(self) -> dict[int, int]:
        try:
            return {int(number): int(offset) for number, offset in json.loads((self.folder / "acked.json").read_bytes()).items()}
        except (FileNotFoundError, ValueError, AttributeError):
            return {}  # events are sent again

    def _examine(self, segment: _Segment, resume: int, problems: list[str]) -> None:
        """Counts the events from `resume` on, sets aside what is damaged, cuts what is torn."""
        size_bytes = segment.path.stat().st_size
        resume = min(resume, size_bytes)
        with _mapped(segment.path, size_bytes) as data:
            count_events(data[:resume], 0, self._table)
            position = resume
            while position < size_bytes:
                count, position = count_events(data, position, self._table)
                segment.unread += count
                broken = next(frames_of(data, position), None)
                if broken is None:
                    break
                if broken.stop == size_bytes and is_torn(data[position:]):
                    problems.append(f"{segment.path.name}: cut a torn end of {size_bytes - position} bytes")
                    size_bytes = position
                else:
                    problems.append(self._quarantine(segment, position, bytes(data[position : broken.stop])))
                    position = broken.stop
        os.truncate(segment.path, size_bytes)
        segment.size_bytes = size_bytes
        segment.resume = segment.read_to = resume

    def _visit(self, segment: _Segment, on_event: Callable[[Event], None]) -> None:
        with _mapped(segment.path, segment.size_bytes) as data:
            for frame in frames_of(data, segment.read_to):
                if frame.body is not None and frame.is_event:
                    stored = parse_event(frame.body)
                    stream = self._table.get(stored.stream_hash)
                    if stream is not None:
                        on_event(Event(stream, stored.event_id, stored.value, stored.sequence, stored.local_ts_us))

    def _quarantine(self, segment: _Segment, start: int, data: bytes) -> str:
        folder = self.folder / "damaged"
        folder.mkdir(exist_ok=True)
        copy = folder / f"{segment.number:012d}-{start}.bin"
        copy.write_bytes(data)
        return f"{segment.path.name}: {len(data)} damaged bytes at {start} were skipped, and copied to {copy}"

    def close(self) -> None:
        """Writes down what is done with, and unlocks."""
        if self._lock_fd < 0:
            return
        try:
            self.persist()
            self.seal()
        finally:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def append(self, groups: Sequence[tuple[Sequence[Event], int]], *, in_new_segment: bool = False) -> list[SpoolSpan]:
        """Writes groups of events, each with the time of its acceptance, behind all others; they are yet to be read.

        Raises a Transient error where there is no room, and has then written nothing.
        """
        if in_new_segment or (self._current is not None and self._current.size_bytes >= self._segment_bytes):
            self.seal()
        if self._current is None:
            self._create(self.last_segment + 2)
            self.last_segment += 2
        return self._write(groups)

    def insert(self, after_segment: int | None, groups: Sequence[tuple[Sequence[Event], int]]) -> list[SpoolSpan]:
        """Writes groups right behind a segment, None: behind all. For a shutdown, when nothing else is written any more."""
        number = self.last_segment + 2 if after_segment is None else after_segment + 1
        if self._current is None or self._current.number != number:
            self.seal()
            self._create(number)
            self.last_segment = max(self.last_segment, number + number % 2)
        return self._write(groups)

    def _create(self, number: int) -> None:
        segment = _Segment(number, self.folder / f"{number:012d}.spool")
        # With O_DSYNC a write returns when it is on the disk: one call, as two take the interpreter's lock from who sends once more.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_DSYNC if self._sync else 0)
        try:
            self._current_fd = os.open(segment.path, flags, 0o600)
        except OSError as error:
            raise self._unwritable(error) from error
        segment.size_bytes = segment.resume = segment.read_to = os.fstat(self._current_fd).st_size
        self._segments[number] = self._current = segment
        self._table.start_segment()
        if self._sync:
            sync_folder(self.folder)

    def _write(self, groups: Sequence[tuple[Sequence[Event], int]]) -> list[SpoolSpan]:
        segment = self._current
        assert segment is not None
        parts: list[bytes] = []
        spans: list[SpoolSpan] = []
        end = segment.size_bytes
        for events, accepted_us in groups:
            data = encode_events(events, accepted_us, self._table)
            parts.append(data)
            spans.append(SpoolSpan(segment.number, end, end + len(data), len(events)))
            end += len(data)
        added_bytes = end - segment.size_bytes
        if self.size_bytes + added_bytes > self.max_bytes:
            self._table.start_segment()
            raise TransientDeliveryError(f"the spool {self.folder} is full: it holds {self.size_bytes} of {self.max_bytes} bytes")
        try:
            write_all(self._current_fd, b"".join(parts))
        except OSError as error:
            self._table.start_segment()
            self._cut(segment)
            raise self._unwritable(error) from error
        segment.size_bytes = end
        segment.unread += sum(span.count for span in spans)
        self.size_bytes += added_bytes
        return spans

    def _cut(self, segment: _Segment) -> None:
        """Cuts off what was not written whole; where not even that can be done, the segment is written to no more."""
        try:
            os.ftruncate(self._current_fd, segment.size_bytes)
        except OSError:
            os.close(self._current_fd)
            self._current, self._current_fd = None, -1

    def _unwritable(self, error: OSError) -> TransientDeliveryError:
        return TransientDeliveryError(f"the spool {self.folder} can't be written: {error.strerror or error}")

    def seal(self) -> None:
        """Writes the segment at hand to the disk itself, and begins another one with the next event."""
        if self._current is None:
            return
        os.fdatasync(self._current_fd)
        os.close(self._current_fd)
        self._current = None
        self._current_fd = -1

    def skip(self, spans: Iterable[SpoolSpan]) -> None:
        """These events are still in memory and need not be read; nothing before them is unread."""
        for span in spans:
            segment = self._segments[span.segment]
            segment.read_to = span.stop
            segment.unread -= span.count

    def read(self, max_bytes: int) -> tuple[list[SpoolGroup], int, list[str]]:
        """The next events, how many are lost to damage since the spool was opened, and a sentence for each damage.

        A session's end is in a group by itself; other groups are small.
        """
        waiting = [segment for segment in self._segments.values() if segment.read_to < segment.size_bytes]
        if not waiting:
            return [], 0, []
        segment = min(waiting, key=lambda segment: segment.number)
        window = max(max_bytes, 1)
        while True:
            try:
                groups, problems = self._read_groups(segment, window)
            except OSError as error:
                raise TransientDeliveryError(f"the spool {self.folder} can't be read: {error.strerror or error}") from error
            if groups is not None:
                break
            window *= 2
        segment.unread -= sum(group.span.count for group in groups)
        lost = 0
        if segment.read_to == segment.size_bytes:
            lost, segment.unread = segment.unread, 0
        return groups, lost, problems

    def _read_groups(self, segment: _Segment, window: int) -> tuple[list[SpoolGroup] | None, list[str]]:
        """None where the window does not hold one frame."""
        base = segment.read_to
        with segment.path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), min(window, segment.size_bytes - base), base)
        is_last = base + len(data) == segment.size_bytes
        groups: list[SpoolGroup] = []
        problems: list[str] = []
        group_start = position = 0

        def add_group(events: list[Event], stop: int, accepted_us: int) -> None:
            nonlocal group_start
            groups.append(
                SpoolGroup(SpoolSpan(segment.number, base + group_start, base + stop, len(events)), events, accepted_us)
            )
            group_start = stop

        while position < len(data):
            events, position, accepted_us = read_run(data, position, self._table, _GROUP_EVENTS)
            if events:
                add_group(events, position, accepted_us)
                continue
            frame = next(frames_of(memoryview(data), position), None)
            if frame is None or (frame.body is None and frame.stop == len(data) and not is_last):
                break  # nothing is left, or the rest of it is yet to be read
            if frame.body is None:
                problems.append(self._quarantine(segment, base + frame.start, data[frame.start : frame.stop]))
            elif frame.is_event:
                event, accepted_us = self._to_event(segment, frame.body)
                if event is not None:
                    add_group([event], frame.stop, accepted_us)
            position = frame.stop
        if position == 0:
            return None, []
        if group_start < position:
            segment.ack(base + group_start, base + position)  # no event is in it
        segment.read_to = base + position
        return groups, problems

    def _to_event(self, segment: _Segment, body: memoryview) -> tuple[Event | None, int]:
        stored = parse_event(body)
        stream = self._table.get(stored.stream_hash)
        if stream is None and stored.stream_hash not in self._lost_streams:
            with _mapped(segment.path, segment.size_bytes) as data:
                for frame in frames_of(data):
                    if frame.body is not None and not frame.is_event:
                        self._table.learn(frame.body)
            stream = self._table.get(stored.stream_hash)
        if stream is None:
            self._lost_streams.add(stored.stream_hash)
            return None, 0
        return Event(stream, stored.event_id, stored.value, stored.sequence, stored.local_ts_us), stored.accepted_us

    def ack(self, spans: Iterable[SpoolSpan]) -> None:
        """All events of these are resolved; `persist` writes it down."""
        for span in spans:
            self._segments[span.segment].ack(span.start, span.stop)

    def persist(self) -> int:
        """Removes segments that are done with and notes how far the others are; how many bytes became free."""
        freed_bytes = 0
        for segment in [segment for segment in self._segments.values() if segment.resume == segment.size_bytes]:
            if segment is self._current:
                self.seal()
            segment.path.unlink(missing_ok=True)
            del self._segments[segment.number]
            freed_bytes += segment.size_bytes
        self.size_bytes -= freed_bytes
        acked = json.dumps({number: segment.resume for number, segment in sorted(self._segments.items()) if segment.resume})
        if acked != self._acked_as_written:
            temporary = self.folder / "acked.json.new"
            temporary.write_text(acked)
            temporary.replace(self.folder / "acked.json")
            self._acked_as_written = acked
        return freed_bytes


@contextmanager
def _mapped(path: Path, size_bytes: int) -> Iterator[memoryview]:
    """The file's bytes, without reading it into memory."""
    if size_bytes == 0:
        yield memoryview(b"")
        return
    with path.open("rb") as file:
        # Not closed by hand: it ends with the last view of it.
        yield memoryview(mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ))
