"""The order in which records came, and which of them are not resolved yet.

Invariant: ordinals grow by one for each record. The end of a session is given out only when every record that came before it is
resolved, other ends aside, and when its ledger is on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator

from ..spool_span import SpoolSpan
from .record_groups import Arrival, RecordGroup

__all__ = ["ArrivalOrder"]


class ArrivalOrder:
    """All arrivals of one bus that are in memory and have unresolved records."""

    def __init__(self) -> None:
        # The ordinal of the next record.
        self._next_ordinal = 0
        # Oldest first, but for the ends of sessions; those that are resolved leave when they are the oldest.
        self._open: deque[Arrival] = deque()
        # The same for the ends of sessions.
        self._open_ends: deque[Arrival] = deque()
        # The ends of sessions that wait.
        self._waiting_ends: deque[RecordGroup] = deque()
        # Where the spool has records that it need not keep any longer.
        self._resolved_spans: list[SpoolSpan] = []
        # Sessions whose end is resolved.
        self._ended_sessions: list[str] = []

    @property
    def waiting_ends(self) -> Iterable[RecordGroup]:
        """The ends of sessions that wait."""
        return self._waiting_ends

    @property
    def oldest_at(self) -> float | None:
        """When the oldest record that is not resolved was accepted."""
        found = (_oldest(self._open), _oldest(self._open_ends))
        return min((arrival.accepted_at for arrival in found if arrival is not None), default=None)

    @property
    def unresolved_in_spool(self) -> int:
        """How many records that are not resolved are in the spool too."""
        return sum(arrival.unresolved for arrival in (*self._open, *self._open_ends) if arrival.span is not None)

    def enter(self, group: RecordGroup) -> bool:
        """Numbers the records of a group. False: it is the end of a session, and waits until `release_ends` gives it out."""
        arrival = group.arrival
        arrival.first = group.first = self._next_ordinal
        self._next_ordinal += len(group)
        if arrival.ends_session is None:
            self._open.append(arrival)
            return True
        self._open_ends.append(arrival)
        self._waiting_ends.append(group)
        return False

    def release_ends(self, unwritten: Container[str | None]) -> Iterator[RecordGroup]:
        """The ends of sessions that need not wait any longer; those of `unwritten` sessions wait for the disk."""
        oldest = _oldest(self._open)
        while self._waiting_ends and (oldest is None or oldest.first > self._waiting_ends[0].first):
            if self._waiting_ends[0].arrival.ends_session in unwritten:
                return
            yield self._waiting_ends.popleft()

    def resolve(self, arrival: Arrival, count: int) -> None:
        """So many more records of an arrival are confirmed, or dead letters."""
        arrival.unresolved -= count
        if arrival.unresolved:
            return
        if arrival.span is not None:
            self._resolved_spans.append(arrival.span)
        if arrival.ends_session is not None:
            self._ended_sessions.append(arrival.ends_session)

    def take_resolved_spans(self) -> list[SpoolSpan]:
        """Where the spool has records that were resolved since the last call."""
        spans, self._resolved_spans = self._resolved_spans, []
        return spans

    def take_ended_sessions(self) -> list[str]:
        """Sessions whose end was resolved since the last call."""
        sessions, self._ended_sessions = self._ended_sessions, []
        return sessions


def _oldest(arrivals: deque[Arrival]) -> Arrival | None:
    while arrivals and not arrivals[0].unresolved:
        arrivals.popleft()
    return arrivals[0] if arrivals else None
