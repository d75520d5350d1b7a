"""The slices of one request of a replay: opened one after the other, and cut where lines end.

Invariant: every line of every slice is taken once, in order. A slice that is damaged is replaced before anything behind it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakSet

from ...errors import SliceError
from ...history.reader import is_at_most, read_slice
from ...history.slice import Slice
from ...pipeline.replay import Period
from ...recorded_line import KEY_LENGTH, Lines
from .contract import Output, SliceDamaged, SliceOpened

__all__ = ["SLICE_WINDOW", "SliceQueue"]

# Slices that may wait in a worker for each request.
SLICE_WINDOW = 3

# What may lie decompressed before its time comes, as a rule a few megabytes; and of how many requests at a time: most of a hundred
# may have clients that read slowly.
AHEAD_BYTES = 1024 * 1024
MOST_AHEAD = 8

_NEWLINE = ord("\n")
# Decompressing needs no lock of the interpreter's, and goes on beside the mappers.
_reader = ThreadPoolExecutor(1, "slices")


class _ReadAhead:
    """A slice that is being read before its time."""

    def __init__(self, item: Slice) -> None:
        self.item = item
        self._lines = _reader.submit(read_slice, item)

    def lines(self) -> bytes:
        """Read here where that has not begun: others may be read first."""
        return read_slice(self.item) if self._lines.cancel() else self._lines.result()


# Those that somebody holds.
_ahead: WeakSet[_ReadAhead] = WeakSet()


class SliceQueue:
    """What a request has still to read."""

    def __init__(self, request: int, periods: list[Period]) -> None:
        self._request = request
        self._periods = periods
        # Slices to read, each with the index of its period.
        self._slices: deque[tuple[int, Slice]] = deque()
        # The first of them, being read.
        self._ahead: _ReadAhead | None = None
        # The decompressed lines of the slice in use, how much of them is used, and the index of their period.
        self._data = b""
        self._position = 0
        self._period = 0
        # No more slices will come.
        self._ended = False
        # A damaged slice was reported, and its replacement has not come yet.
        self._awaits_replacement = False
        # How many slices at the head are replacements: if one of those is damaged too, there is no point in another.
        self._replacements = 0

    def add(self, period: int, item: Slice) -> None:
        """The next slice."""
        self._slices.append((period, item))

    def replace(self, period: int, items: Sequence[Slice]) -> None:
        """What was fetched anew for the slice that was damaged."""
        self._slices.extendleft((period, item) for item in reversed(items))
        self._replacements = len(items)
        self._awaits_replacement = False

    def end(self) -> None:
        """There are no more slices."""
        self._ended = True

    @property
    def period(self) -> Period:
        """Of the lines that were taken last."""
        return self._periods[self._period]

    @property
    def has_lines(self) -> bool:
        """Whether a slice is open and not used up."""
        return self._position < len(self._data)

    @property
    def ready(self) -> bool:
        """Whether reading gets on: to lines, to the next slice, or to the end."""
        return self.has_lines or (not self._awaits_replacement and (bool(self._slices) or self._ended))

    @property
    def exhausted(self) -> bool:
        """Whether all was read."""
        return self._ended and not self._awaits_replacement and not self._slices and not self.has_lines

    def open(self, outputs: list[Output]) -> None:
        """Opens slices until one has lines, where there are any; raises where a slice is damaged that was just fetched anew."""
        while not self.has_lines and self._slices and not self._awaits_replacement:
            period, item = self._slices.popleft()
            try:
                self._data, self._position, self._period = self._read(item), 0, period
            except SliceError as error:
                if self._replacements:
                    raise
                self._awaits_replacement = True
                outputs.append(SliceDamaged(self._request, period, item, str(error)))
                return
            self._replacements = max(0, self._replacements - 1)
            if not self._replacements:
                outputs.append(SliceOpened(self._request))

    def _read(self, item: Slice) -> bytes:
        """The lines of a slice, mostly read by now; the next one is begun."""
        ahead, self._ahead = self._ahead, None
        data = ahead.lines() if ahead is not None and ahead.item is item else read_slice(item)
        ahead = None
        if self._slices and len(_ahead) < MOST_AHEAD and is_at_most(self._slices[0][1], AHEAD_BYTES):
            self._ahead = _ReadAhead(self._slices[0][1])
            _ahead.add(self._ahead)
        return data

    def last_key(self, size_bytes: int) -> bytes:
        """The key of the line in which the next `size_bytes` end; the last one's where there are not so many."""
        data = self._data
        end = data.find(b"\n", self._position + size_bytes)
        if end < 0:
            end = len(data)
        while end > self._position:
            start = max(data.rfind(b"\n", self._position, end) + 1, self._position)
            if start < end:
                return data[start : start + KEY_LENGTH]
            end -= 1
        return b""

    def take_to(self, key: bytes) -> Lines:
        """Takes all lines up to and with those of this key."""
        data, low, high = self._data, self._position, len(self._data)
        # Between low and high, both at the start of a line, lies the first line with a greater key.
        while low < high:
            middle = data.rfind(b"\n", low, (low + high) // 2) + 1 or low
            end = data.find(b"\n", middle) + 1 or high
            # An empty line has no key: it goes with the line before it.
            while data[middle] == _NEWLINE and middle > low:
                middle = data.rfind(b"\n", low, middle - 1) + 1 or low
            if data[middle] == _NEWLINE or data[middle : middle + KEY_LENGTH] <= key:
                low = end
            else:
                high = middle
        return self._take(low)

    def take(self, size_bytes: int) -> Lines:
        """Takes about as many bytes, to the end of a line."""
        end = self._data.find(b"\n", self._position + size_bytes)
        return self._take(len(self._data) if end < 0 else end + 1)

    def _take(self, end: int) -> Lines:
        lines = Lines(self._data, self._position, end)
        self._position = end
        if not self.has_lines:
            self._data, self._position = b"", 0
        return lines
