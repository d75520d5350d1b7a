"""Which recorder's book is followed, where several recorded one market.

Changes of a book say nothing of those before them, so what two recorders heard can't be put together change by change. Each has a book of
its own, and at every instant one of them is followed:

- of the recorders that have a book and were heard in the last two seconds: one that has lost no change since its snapshot before one
  that has, then the one whose snapshot is oldest, as a book that stands is not left without need
- where there is none such: the one that was heard last, with its book or without

All replays are one recorder, as they are of one recording; each live session is one of its own. A recorder that was not heard for a
day, while another was, is forgotten.

Invariant: what is followed at an instant depends on nothing that came after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...computed.order_book import PlainOrderBook
from .windows import HOUR_US, SECOND_US

__all__ = ["FORGET_US", "RECORDER", "SILENT_US", "Recorder", "choose", "forget_silent"]

RECORDER = "CASE WHEN origin = 'realtime' THEN coalesce(session, '') ELSE 'replay' END"
"""Who recorded a row of silver, in SQL."""
SILENT_US = 2 * SECOND_US
"""Longer than messages of two connections are apart; a live stream that leaves a market to another one says no more of it."""
FORGET_US = 24 * HOUR_US


class Recorder:
    """The book of one recorder."""

    __slots__ = ("book", "crossed", "event_us", "has_gap", "heard_us", "name", "sequence", "since_us", "snapshot_left")

    def __init__(self, name: str | None) -> None:
        # None: whoever it was, in a lake of an earlier release.
        self.name = name
        # None: there is none before a snapshot, and after a lost connection.
        self.book: PlainOrderBook | None = None
        # When the last snapshot came, and when anything did.
        self.since_us = self.heard_us = -(1 << 62)
        # The exchange's time of the last change.
        self.event_us: int | None = None
        # The number of the last change where numbers are dense, and whether one was missing since the snapshot.
        self.sequence: int | None = None
        self.has_gap = False
        # Of a snapshot that comes a level at a time, how many levels are still to come.
        self.snapshot_left = 0
        # Levels that were removed at this instant, as the book was crossed.
        self.crossed = 0

    def open(self) -> PlainOrderBook:
        """The book, made where there is none."""
        if self.book is None:
            self.book = PlainOrderBook(on_removed=self._count_crossed)
        return self.book

    def _count_crossed(self, *_: object) -> None:
        self.crossed += 1

    def count(self, sequence: int | None) -> None:
        """Notes the number of a change; None where numbers say nothing."""
        if sequence is not None:
            self.has_gap = self.has_gap or (self.sequence is not None and sequence > self.sequence + 1)
            self.sequence = sequence


def choose(recorders: Mapping[str | None, Recorder], now_us: int) -> Recorder | None:
    """The one that is followed; None where there is none."""
    if len(recorders) < 2:
        return next(iter(recorders.values()), None)
    heard = [item for item in recorders.values() if item.book is not None and now_us - item.heard_us <= SILENT_US]
    if heard:
        return min(heard, key=lambda item: (item.has_gap, item.since_us, item.name or ""))
    return max(recorders.values(), key=lambda item: (item.heard_us, item.name or ""))


def forget_silent(recorders: dict[str | None, Recorder], now_us: int) -> None:
    """Drops those that were not heard for a day, but for the last one that was."""
    silent = [name for name, item in recorders.items() if now_us - item.heard_us > FORGET_US]
    if silent:
        last = max(recorders.values(), key=lambda item: (item.heard_us, item.name or ""))
        for name in silent:
            if recorders[name] is not last:
                del recorders[name]
