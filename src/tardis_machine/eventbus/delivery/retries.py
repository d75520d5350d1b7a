"""What is done with single records that failed: they are tried again in the order of their lane, or given up.

A record is given up after `max_retries`, but only where the bus has confirmed others since it first failed: else it is the bus that
does not work, and retries cost nothing. Nor is it given up where too many of its destination were, in a row (`refusals`). A record
whose batch failed as a whole, with nothing else in it, is a suspect: it may be the one that makes the bus fail. It is set aside
while others are tried.

Invariant: a record that is tried again is in front of all others of its lane.
"""

from __future__ import annotations

from collections.abc import Callable

from ..policy import Policy
from .disk_work import Undeliverable
from .lanes import Lane, Lanes
from .record_groups import RecordGroup, RecordRange
from .refusals import Refusals
from .send_outcome import SendOutcome

__all__ = ["Retries"]

# Single records that may be set aside in a row, to find out whether they or the bus are at fault.
_SUSPECTS_AT_MOST = 3


class Retries:
    """The retries of one bus."""

    def __init__(self, policy: Policy, lanes: Lanes, refusals: Refusals, random: Callable[[], float]) -> None:
        self._policy = policy
        self._lanes = lanes
        self._refusals = refusals
        self._random = random
        # Records set aside since something was last confirmed.
        self._suspects = 0
        # How many records the bus has confirmed: what grows shows that it works.
        self.confirmed = 0

    def note_confirmed(self, count: int) -> None:
        """The bus confirmed so many."""
        self.confirmed += count
        self._suspects = 0

    def set_aside(self, group: RecordGroup, error: BaseException, now: float, outcome: SendOutcome) -> bool:
        """Takes a record that was alone in a batch that failed as a whole for a suspect. False: there are enough of them."""
        lane = group.records.routes[0].lane
        if not self._lanes.is_suspect(lane):
            if self._suspects >= _SUSPECTS_AT_MOST:
                return False
            self._suspects += 1
        self.retry(lane, [group], error, self.confirmed, now, outcome, is_suspect=True)
        return True

    def retry(
        self,
        lane: Lane,
        groups: list[RecordGroup],
        error: BaseException,
        confirmed_before: int,
        now: float,
        outcome: SendOutcome,
        *,
        is_suspect: bool = False,
    ) -> None:
        """Puts single records of a lane that failed back into it, or gives the first one up, which has used a try."""
        attempts, confirmed_before = self._lanes.note_failure(lane, groups[0].first, confirmed_before)
        is_worn_out = attempts > self._policy.max_retries and self.confirmed > confirmed_before
        if is_worn_out and self._refusals.admit([lane[0]]):
            is_suspect = False
            outcome.undeliverable.append(Undeliverable(groups[0], f"gave up after {attempts} tries: {error}"))
            groups = groups[1:]
        outcome.retried.extend([RecordRange(group, 0, 1) for group in groups])
        self._lanes.pause(lane, groups, now + self._policy.backoff_s(attempts, self._random), is_suspect=is_suspect)
