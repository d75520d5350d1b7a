"""The calls of the bus itself: connect, send, close.

Invariant: whatever a client library raises, the delivery is told; no event is taken for confirmed that was not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError
from ...telemetry import Logger
from ..contract import EventBus
from ..delivery import Delivery
from ..delivery.in_flight import Batch
from .clocks import Clocks
from .monitor import BusMonitor

if TYPE_CHECKING:
    from ..tracing import Tracing

__all__ = ["BusCalls"]

_CLOSE_S = 5.0


class BusCalls:
    """Calls one bus, and tells its delivery what came of it."""

    def __init__(
        self, bus: EventBus, delivery: Delivery, monitor: BusMonitor, clocks: Clocks, log: Logger, tracing: Tracing | None
    ) -> None:
        self._bus = bus
        self._delivery = delivery
        self._monitor = monitor
        self._clocks = clocks
        self._log = log
        self._tracing = tracing
        # The bus has answered the first `connect`.
        self._has_answered = asyncio.Event()
        # Its answer, where it can't be used.
        self._refusal: TerminalDeliveryError | None = None

    async def connect(self) -> None:
        """Connects."""
        refusal = None
        try:
            async with asyncio.timeout(self._bus.limits.send_timeout_s):
                await self._bus.connect()
        except Exception as error:  # whatever a client raises, events are waiting
            self._delivery.connect_failed(self._to_delivery_error(error, "connect"), self._clocks.now())
            refusal = error if isinstance(error, TerminalDeliveryError) else None
        else:
            self._delivery.connect_succeeded(self._bus.limits)
        if not self._has_answered.is_set():
            self._refusal = refusal
            self._has_answered.set()

    async def first_refusal(self, timeout_s: float) -> TerminalDeliveryError | None:
        """Why the bus can't be used, as the first `connect` says; None where it can, or does not say so in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_answered.wait()
        except TimeoutError:
            return None
        return self._refusal

    async def send(self, batch: Batch) -> None:
        """Sends a batch."""
        tracing = self._tracing
        span = None if tracing is None else tracing.start_batch(self._bus.name, batch.records)
        try:
            async with asyncio.timeout(self._bus.limits.send_timeout_s):
                failures = await self._bus.send(batch.records)
        except Exception as error:  # whatever a client raises, these events are not confirmed
            failed = self._to_delivery_error(error, "send")
            if tracing is not None and span is not None:
                tracing.fail_batch(span, failed)
            self._delivery.fail(batch, failed, self._clocks.now())
        else:
            if tracing is not None and span is not None:
                tracing.end_batch(span, failures)
            self._delivery.settle(batch, failures, self._clocks.now())
            self._monitor.note_answer(batch)

    async def close(self) -> None:
        """Closes the bus; nothing may be in flight."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._bus.close()
        except Exception as error:  # nothing is in flight, all is accounted for
            self._log.warning("the bus did not close as it should", bus=self._bus.name, error=str(error))

    def _to_delivery_error(self, error: Exception, doing: str) -> DeliveryError:
        if isinstance(error, DeliveryError):
            return error
        if isinstance(error, TimeoutError):
            seconds = self._bus.limits.send_timeout_s
            return TransientDeliveryError(f"{self._bus.name} did not answer a {doing} within {seconds:g} s")
        self._log.exception(f"a {doing} failed in an unforeseen way, and is tried again", cause=error, bus=self._bus.name)
        return TransientDeliveryError(f"{type(error).__name__}: {error}")
