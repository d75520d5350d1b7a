"""One batch on its way to JetStream: written as lines, in one of three ways, until every record is confirmed or refused.

Invariant: a record is written to the stream of its subject only once those before it in its lane are stored, or can't be stored
without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ....errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError
from ...contract import Records, Route
from .connection import NatsConnection
from .lines import LineParts, numbers, sequence_ends, to_line
from .replies import BatchReplies, Replies, SingleReplies

__all__ = ["Sending"]

# Lines are written while the next ones are made.
_SLICE_RECORDS = 500

Errors = dict[int, DeliveryError]
"""What became of records that are not confirmed, by their index in the batch."""


class Sending:
    """A batch, and where it goes. `indices` are of records whose subjects belong to one stream."""

    def __init__(
        self, connection: NatsConnection, batch: Records, parts: Mapping[Route, LineParts], ack_timeout_s: float
    ) -> None:
        self._connection = connection
        self._batch = batch
        self._parts = parts
        self._ack_timeout_s = ack_timeout_s

    def denials(self) -> Errors:
        """Records that are known not to be allowed."""
        denied = {route for route in self._parts if self._connection.is_denied(route.destination)}
        if not denied:
            return {}
        return {index: _not_allowed(route) for index, route in enumerate(self._batch.routes) if route in denied}

    async def in_order(self, indices: Sequence[int]) -> Errors:
        """One numbered sequence; where a record ends it, a further one with those that need not wait for that record."""
        errors: Errors = {}
        while indices:
            replies = BatchReplies(len(indices))
            await self._exchange(replies, indices, sequence_ends(len(indices)))
            stored, error, scope = replies.outcome()
            if error is None:
                break
            failed, rest = indices[stored], indices[stored + 1 :]
            errors[failed] = error
            if scope == "stream":
                return errors | dict.fromkeys(rest, error)
            route = self._batch.routes[failed]
            errors |= {index: error for index in rest if self._waits_for(route, self._batch.routes[index], scope, error)}
            indices = [index for index in rest if index not in errors]
        return errors

    @staticmethod
    def _waits_for(failed: Route, route: Route, scope: str, error: DeliveryError) -> bool:
        if scope == "subject":
            return route.destination == failed.destination
        # What will never be stored holds up nobody.
        return isinstance(error, TransientDeliveryError) and route.lane == failed.lane

    async def singly(self, indices: Sequence[int], *, at_once: bool) -> Errors:
        """Each record has a reply of its own; `at_once` all are on their way together, else one of each lane."""
        errors: Errors = {}
        blocked: dict[tuple[str, str], DeliveryError] = {}
        for wave in [indices] if at_once else self._waves(indices):
            errors |= {index: blocked[lane] for index in wave if (lane := self._batch.routes[index].lane) in blocked}
            free = [index for index in wave if index not in errors]
            if not free:
                continue
            replies = SingleReplies(len(free))
            await self._exchange(replies, free, numbers()[: len(free)])
            for number, error in replies.errors.items():
                errors[free[number]] = error
                if isinstance(error, TransientDeliveryError):
                    blocked[self._batch.routes[free[number]].lane] = error
        return errors

    def _waves(self, indices: Sequence[int]) -> list[list[int]]:
        """The first records of all lanes, then the second ones, and so on."""
        waves: list[list[int]] = []
        seen: dict[tuple[str, str], int] = {}
        for index in indices:
            lane = self._batch.routes[index].lane
            count = seen[lane] = seen.get(lane, 0) + 1
            if count > len(waves):
                waves.append([])
            waves[count - 1].append(index)
        return waves

    async def unconfirmed(self, indices: Sequence[int]) -> Errors:
        """The server has read them: that is all that is known. What may not be written it reported before."""
        await self._write(indices, b"", [b""] * len(indices))
        await self._connection.flush()
        denied = self.denials()
        return {index: denied[index] for index in indices if index in denied}

    async def _exchange(self, replies: Replies, indices: Sequence[int], ends: Sequence[bytes]) -> None:
        """Writes records, each with its own end of a reply subject, and returns when all replies that matter are there."""
        connection = self._connection
        with connection.expecting(replies) as reply:
            await self._write(indices, reply, ends)
            while not replies.done.done():
                heard = connection.heard
                waits: list[asyncio.Future[Any]] = [replies.done, connection.lost]
                await asyncio.wait(waits, timeout=self._ack_timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if connection.lost.done():
                    raise connection.lost.result()
                if not replies.done.done() and connection.heard == heard:
                    silent = f"confirmed nothing for {self._ack_timeout_s:g} s"
                    raise TransientDeliveryError(f"the NATS server {connection.server.address} {silent}")
        error = replies.done.result()
        if error is not None:
            raise error

    async def _write(self, indices: Sequence[int], reply: bytes, ends: Sequence[bytes]) -> None:
        routes, events, parts = self._batch.routes, self._batch.events, self._parts
        address = self._connection.server.address
        for start in range(0, len(indices), _SLICE_RECORDS):
            stop = start + _SLICE_RECORDS
            pairs = zip(indices[start:stop], ends[start:stop], strict=True)
            lines = b"".join([to_line(events[index], parts[routes[index]], reply, end) for index, end in pairs])
            try:
                async with asyncio.timeout(self._ack_timeout_s):
                    await self._connection.write(lines)
            except TimeoutError:
                raise TransientDeliveryError(f"the NATS server {address} accepts no more data") from None
            except OSError as error:
                raise TransientDeliveryError(f"the NATS server {address} is gone: {error}") from error


def _not_allowed(route: Route) -> TerminalDeliveryError:
    return TerminalDeliveryError(f"the NATS user may not publish to {route.destination}")
