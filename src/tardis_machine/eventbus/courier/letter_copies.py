"""Copies of dead letters, sent to a destination of their bus with headers that say why.

The file is what counts: it is written first, bounded, and what `replay --dead-letter` sends again. A copy is for those who watch the
bus. It goes through a connection of its own, so that it neither waits for what the bus refuses nor comes in its way.

Invariant: a copy is sent after its letter is durable, and one that can't be sent is counted and told, and costs nothing else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from ...errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError
from ...telemetry import DEAD_LETTER_COPIES, Logger, redact
from ..contract import EventBus, Failure, Record, Records, Route
from ..policy import Policy
from ..routing import Router, to_meta_entries

__all__ = ["ERROR_HEADERS", "LetterCopies", "to_copy"]

ERROR_HEADERS = ("errorReason", "errorDestination", "errorTime")
"""What a copy has beside the headers of its record; in the event's meta where the bus carries no headers."""

_REASON_LENGTH = 500
_WAITING_BYTES = 16 * 1024**2
_CLOSE_S = 5.0


def to_copy(record: Record, reason: str, now: datetime, route: Route) -> Record:
    """The record on its way to `route`, with the reason why its own destination does not have it."""
    said = (" ".join(reason.split())[:_REASON_LENGTH], record.destination, now.isoformat(timespec="milliseconds"))
    errors = dict(zip(ERROR_HEADERS, said, strict=True))
    if route.has_headers:
        headers = [(name, text.encode()) for name, text in errors.items()]
        more_bytes = sum(len(name) + len(value) for name, value in headers)
        route = msgspec.structs.replace(
            route, headers_before=(*route.headers_before, *headers), overhead_bytes=route.overhead_bytes + more_bytes
        )
    else:
        suffix = to_meta_entries(errors)
        route = msgspec.structs.replace(
            route, value_suffix=route.value_suffix + suffix, overhead_bytes=route.overhead_bytes + len(suffix)
        )
    return Record(route, record.event)


class LetterCopies:
    """Sends the copies of one bus's dead letters. `bus` is one of the same kind whose only destination is that of the copies."""

    def __init__(self, bus: EventBus, router: Router, policy: Policy, random: Callable[[], float], log: Logger) -> None:
        self._bus = bus
        self._router = router
        self._policy = policy
        self._random = random
        self._log = log
        self._waiting: deque[Record] = deque()
        self._waiting_bytes = 0
        self._is_connected = False
        # Sends as long as something waits.
        self._task: asyncio.Task[None] | None = None
        # Something could not be copied since the last copy that was sent, and was told.
        self._has_complained = False

    async def first_refusal(self, timeout_s: float) -> TerminalDeliveryError | None:
        """Why the destination can't be used, as the bus says at the start; None where it can, or does not say so in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._bus.connect()
        except TerminalDeliveryError as error:
            return error
        except Exception as error:  # whatever a client raises: it may pass, and is tried again when there is a copy to send
            self._log.warning("the destination of dead letters is not there yet", bus=self._bus.name, error=redact(str(error)))
        else:
            self._is_connected = True
        return None

    def put(self, letters: Sequence[tuple[Record, str]]) -> None:
        """These records are dead letters on disk, each for its reason."""
        now = datetime.now(UTC)
        for record, reason in letters:
            copy = to_copy(record, reason, now, self._router.route(record.event.stream))
            if copy.size_bytes > self._bus.limits.record_bytes:
                self._give_up(1, f"{copy.size_bytes} bytes are more than {self._bus.name} takes a record")
            elif self._waiting_bytes + copy.size_bytes > _WAITING_BYTES:
                self._give_up(1, "too many wait already")
            else:
                self._wait(copy)
        if self._waiting and self._task is None:
            self._task = asyncio.create_task(self._send_all())

    def _wait(self, copy: Record) -> None:
        self._waiting.append(copy)
        self._waiting_bytes += copy.size_bytes

    async def _send_all(self) -> None:
        tries = 0
        while batch := self._take_batch():
            try:
                failures = await self._send(batch)
            except asyncio.CancelledError:
                self._return(batch)
                raise
            if len(failures) < len(batch):
                tries, self._has_complained = 0, False
                DEAD_LETTER_COPIES.labels(self._bus.name, "sent").inc(len(batch) - len(failures))
            passing = [failure for failure in failures if not isinstance(failure.error, TerminalDeliveryError)]
            if len(passing) < len(failures):
                refused = next(failure for failure in failures if isinstance(failure.error, TerminalDeliveryError))
                self._give_up(len(failures) - len(passing), str(refused.error))
            if passing:
                tries += 1
                if tries > self._policy.max_retries:
                    self._give_up(len(passing), str(passing[0].error))
                    continue
                self._return([batch[failure.index] for failure in passing])
                await asyncio.sleep(self._policy.backoff_s(tries, self._random))
        self._task = None

    def _take_batch(self) -> list[Record]:
        limits, batch, batch_bytes = self._bus.limits, list[Record](), 0
        while self._waiting and len(batch) < min(limits.batch_records, self._policy.batch_records):
            batch_bytes += self._waiting[0].size_bytes
            if batch and batch_bytes > limits.batch_bytes:
                break
            batch.append(self._waiting.popleft())
            self._waiting_bytes -= batch[-1].size_bytes
        return batch

    def _return(self, copies: Sequence[Record]) -> None:
        """They are the next again."""
        self._waiting.extendleft(reversed(copies))
        self._waiting_bytes += sum(copy.size_bytes for copy in copies)

    async def _send(self, batch: list[Record]) -> Sequence[Failure]:
        try:
            async with asyncio.timeout(self._bus.limits.send_timeout_s):
                if not self._is_connected:
                    await self._bus.connect()
                    self._is_connected = True
                return await self._bus.send(Records.of(batch))
        except Exception as error:  # whatever a client raises, these copies were not confirmed
            self._is_connected = False
            failed = error if isinstance(error, DeliveryError) else TransientDeliveryError(f"{type(error).__name__}: {error}")
            return [Failure(index, failed) for index in range(len(batch))]

    def _give_up(self, count: int, reason: str) -> None:
        DEAD_LETTER_COPIES.labels(self._bus.name, "failed").inc(count)
        if not self._has_complained:
            self._has_complained = True
            self._log.error(
                "dead letters are in their files alone, as their destination does not take them",
                bus=self._bus.name,
                events=count,
                reason=redact(reason),
            )

    async def close(self) -> None:
        """Sends what waits, as far as that goes in a few seconds, and lets go of the connection."""
        sending = self._task
        if sending is not None:
            await asyncio.wait([sending], timeout=_CLOSE_S)
            if not sending.done():
                sending.cancel()
                await asyncio.wait([sending])
                self._give_up(len(self._waiting), "the machine was shut down before they were sent")
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._bus.close()
        except Exception as error:  # the letters are on disk
            self._log.warning("the destination of dead letters did not close as it should", error=redact(str(error)))
