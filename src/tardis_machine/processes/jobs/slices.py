"""The slices of one request of a job: opened one after the other, and cut where lines end.

Invariant: what is cut off depends on the slices alone, never on when they came, so that several processes which are given the same
slices cut them alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...errors import SliceError
from ...history.reader import read_slice, split_lines
from ...history.slice import Slice
from ...pipeline.replay import Segment
from .contract import Output, SliceDamaged, SliceOpened

__all__ = ["KEY_BYTES", "SLICE_WINDOW", "SliceQueue"]

# Slices that may wait in a worker for each request.
SLICE_WINDOW = 3
KEY_BYTES = 26
"""Of a line's timestamp, up to its microseconds: what messages are ordered by."""

_NEWLINE = ord("\n")


class SliceQueue:
    """What a request has still to read."""

    def __init__(self, stream: int, segments: list[Segment]) -> None:
        self.segments = segments
        # Which request of the job this is.
        self._stream = stream
        # Slices to read, each with the index of its segment.
        self._slices: deque[tuple[int, Slice]] = deque()
        # The decompressed lines of the slice in use, how much of them is used, and their segment.
        self._data = b""
        self._position = 0
        self._segment = 0
        # No more slices will come.
        self._ended = False
        # A damaged slice was reported, and its replacement has not come yet.
        self._awaits_replacement = False
        # How many slices at the head are replacements: if one of those is damaged too, there is no point in another.
        self._replacements = 0

    def add(self, segment: int, piece: Slice) -> None:
        """The next slice."""
        self._slices.append((segment, piece))

    def replace(self, segment: int, pieces: Sequence[Slice]) -> None:
        """What was fetched anew for the slice that was damaged."""
        self._slices.extendleft((segment, piece) for piece in reversed(pieces))
        self._replacements = len(pieces)
        self._awaits_replacement = False

    def end(self) -> None:
        """There are no more slices."""
        self._ended = True

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
            segment, piece = self._slices.popleft()
            try:
                self._data, self._position, self._segment = read_slice(piece), 0, segment
            except SliceError as error:
                if self._replacements:
                    raise
                self._awaits_replacement = True
                outputs.append(SliceDamaged(self._stream, segment, piece, str(error)))
                return
            self._replacements = max(0, self._replacements - 1)
            outputs.append(SliceOpened(self._stream, segment, piece, not self._replacements))

    def last_key(self, size_bytes: int) -> bytes:
        """The key of the line in which the next `size_bytes` end; the last one's where there are not so many."""
        data = self._data
        end = data.find(b"\n", self._position + size_bytes)
        if end < 0:
            end = len(data)
        while end > self._position:
            start = max(data.rfind(b"\n", self._position, end) + 1, self._position)
            if start < end:
                return data[start : start + KEY_BYTES]
            end -= 1
        return b""

    def take_to(self, key: bytes) -> Cut:
        """Cuts off all lines up to and with those of this key."""
        data, low, high = self._data, self._position, len(self._data)
        # Between low and high, both at the start of a line, lies the first line with a greater key.
        while low < high:
            middle = data.rfind(b"\n", low, (low + high) // 2) + 1 or low
            end = data.find(b"\n", middle) + 1 or high
            while data[middle] == _NEWLINE and middle > low:
                middle = (
                    data.rfind(b"\n", low, middle - 1) + 1 or low
                )  # an empty line has no key: it goes with the line before it
            if data[middle] == _NEWLINE or data[middle : middle + KEY_BYTES] <= key:
                low = end
            else:
                high = middle
        return self._cut(low)

    def take(self, size_bytes: int) -> Cut:
        """Cuts off about as many bytes, to the end of a line."""
        end = self._data.find(b"\n", self._position + size_bytes)
        return self._cut(len(self._data) if end < 0 else end + 1)

    def _cut(self, end: int) -> Cut:
        cut = Cut(self.segments[self._segment], self._data, self._position, end)
        self._position = end
        if not self.has_lines:
            self._data, self._position = b"", 0
        return cut


class Cut:
    """Some lines of a slice, not yet split: whoever leaves them to another need not look at them."""

    __slots__ = ("_data", "_end", "_start", "segment")

    def __init__(self, segment: Segment, data: bytes, start: int, end: int) -> None:
        self.segment = segment
        self._data = data
        self._start = start
        self._end = end

    @property
    def size_bytes(self) -> int:
        """How long it is."""
        return self._end - self._start

    def lines(self) -> list[bytes]:
        """The lines; an empty one is a lost connection."""
        return split_lines(self._data[self._start : self._end])
