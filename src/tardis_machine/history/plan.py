"""Which slices of a replay lie in the cache, and which are to be fetched.

Invariant: the slices follow each other without gap or overlap from the start of the replay to its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cache import HOUR_US, CachedFile, FeedCache
from .slice import MINUTE_US

__all__ = ["Plan", "PlannedSlice"]


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """Minutes that come from one cached file (which may cover more), or are to be fetched (`file` is None)."""

    start_us: int
    minutes: int
    file: CachedFile | None

    @property
    def end_us(self) -> int:
        return self.start_us + self.minutes * MINUTE_US


class Plan:
    """Walks [start_us, stop_us) slice by slice. Looks into the cache as it goes: call it in a thread."""

    def __init__(self, cache: FeedCache, start_us: int, stop_us: int) -> None:
        self._cache = cache
        self._cursor_us = start_us
        self._stop_us = stop_us
        # Folders are listed once, when the walk reaches them; what it has passed is forgotten.
        self._listed_hours: set[int] = set()
        self._files: dict[int, list[CachedFile]] = {}

    @property
    def done(self) -> bool:
        return self._cursor_us >= self._stop_us

    def take(self, count: int, fetch_minutes: int) -> list[PlannedSlice]:
        """The next ones, at most `count`; those to be fetched are of `fetch_minutes` where the gap is that long."""
        slices: list[PlannedSlice] = []
        while len(slices) < count and not self.done:
            planned = self._next(fetch_minutes)
            slices.append(planned)
            self._cursor_us = planned.end_us
        return slices

    def _next(self, fetch_minutes: int) -> PlannedSlice:
        start_us = self._cursor_us
        if files := self._files_at(start_us):
            file = max(files, key=self._preference)
            return PlannedSlice(start_us, (min(file.end_us, self._stop_us) - start_us) // MINUTE_US, file)
        end_us = start_us + MINUTE_US
        limit_us = min(start_us + fetch_minutes * MINUTE_US, self._stop_us)
        while end_us < limit_us and not self._files_at(end_us):
            end_us += MINUTE_US
        return PlannedSlice(start_us, (end_us - start_us) // MINUTE_US, None)

    def _preference(self, file: CachedFile) -> tuple[bool, bool, bool, int]:
        """Whole files before those that must be cut, then zst before gz, then the longest."""
        return file.start_us == self._cursor_us, file.end_us <= self._stop_us, file.encoding == "zst", file.minutes

    def _files_at(self, minute_us: int) -> list[CachedFile]:
        """The files that cover this minute; those that begin in the hour before may reach into it."""
        hour_us = minute_us - minute_us % HOUR_US
        for listed_us in (hour_us - HOUR_US, hour_us):
            if listed_us not in self._listed_hours:
                self._list(listed_us)
        return self._files.get(minute_us, [])

    def _list(self, hour_us: int) -> None:
        self._listed_hours = {known for known in self._listed_hours if known >= hour_us - HOUR_US} | {hour_us}
        self._files = {minute: files for minute, files in self._files.items() if minute >= self._cursor_us}
        for file in self._cache.list_hour(hour_us):
            for minute_us in range(max(file.start_us, self._cursor_us), file.end_us, MINUTE_US):
                self._files.setdefault(minute_us, []).append(file)
