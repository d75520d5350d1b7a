"""`tardis-machine stream`: keeps live data flowing to the buses, or to standard output if none is on, until it is told to stop.

Invariant: everything received before SIGTERM is published and drained; exit code 0 means
that all of it was confirmed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import aclosing
from uuid import uuid4

from ..engine import Engine, LiveMachine
from ..errors import UndeliveredError
from ..pipeline.frames import Form
from ..pipeline.request import SinceRequest, StreamRequest
from ..settings import Settings
from ..telemetry import get_logger
from .event_loop import Interruption, run_loop
from .exit_codes import FAILED, INTERRUPTED
from .line_output import STDOUT, LineOutput
from .request_flags import stream_requests

__all__ = ["run"]

log = get_logger("stream")

ROUTE = "stream"
SUMMARY_INTERVAL_S = 30.0


def run(settings: Settings) -> int:
    """The `stream` command."""
    return run_loop(_run(settings, stream_requests(settings)))


async def _run(settings: Settings, requests: Sequence[StreamRequest] | Sequence[SinceRequest]) -> int:
    output = None if settings.buses else LineOutput(STDOUT)
    engine, interruption = Engine(settings), Interruption()
    machine = await engine.start_live()
    if output is not None:
        await output.open()
    streams = [_CountedStream(machine, request, output) for request in requests]
    work = asyncio.create_task(_run_all(streams))
    summing = asyncio.create_task(_log_summaries(streams))
    interrupted = asyncio.create_task(interruption.requested.wait())
    log.info("streaming", requests=len(streams), buses=", ".join(settings.buses) or "none")
    await asyncio.wait([work, interrupted], return_when=asyncio.FIRST_COMPLETED)
    summing.cancel()
    interrupted.cancel()
    if not work.done():
        log.info("stopping", shutdown_timeout_s=settings.shutdown_timeout)
        await asyncio.gather(machine.live.stop(settings.shutdown_timeout), machine.since.stop(settings.shutdown_timeout))
        await asyncio.wait([work], timeout=settings.shutdown_timeout)
        work.cancel()
    failure = (await asyncio.gather(work, return_exceptions=True))[0]
    try:
        await interruption.drain(engine.stop, engine)
    except UndeliveredError as error:
        log.error("stopped with events undelivered", error=str(error))
    receipts = [] if engine.publisher is None else engine.publisher.receipts
    for receipt in receipts:
        print(receipt, file=sys.stderr)
    _log_summary("streamed", streams)
    if isinstance(failure, Exception):
        raise failure
    if not all(receipt.is_complete for receipt in receipts):
        return FAILED
    return INTERRUPTED if interruption.signal == signal.SIGINT and output is not None else 0


async def _run_all(streams: Sequence[_CountedStream]) -> None:
    await asyncio.gather(*(stream.run() for stream in streams))


class _CountedStream:
    """One live request, and how much came of it."""

    def __init__(self, machine: LiveMachine, request: StreamRequest | SinceRequest, output: LineOutput | None) -> None:
        self.exchange = request.live.exchange if isinstance(request, SinceRequest) else request.exchange
        self._request = request
        self.messages = 0
        self._machine = machine
        self._output = output

    async def run(self) -> None:
        """Returns when the machine stops."""
        form: Form = "none" if self._output is None else "lines"
        request, request_id = self._request, uuid4().hex
        if isinstance(request, SinceRequest):
            messages = self._machine.replay_since(ROUTE, [request], form=form, transport="cli", request_id=request_id)
        else:
            messages = self._machine.stream(ROUTE, [request], form=form, transport="cli", request_id=request_id, holds_up=True)
        async with aclosing(messages) as chunks:
            async for chunk in chunks:
                self.messages += chunk.messages
                if self._output is not None:
                    await self._output.write(chunk.data)


async def _log_summaries(streams: Sequence[_CountedStream]) -> None:
    while True:
        await asyncio.sleep(SUMMARY_INTERVAL_S)
        _log_summary("streaming", streams)


def _log_summary(what: str, streams: Sequence[_CountedStream]) -> None:
    for stream in streams:
        log.info(what, exchange=stream.exchange, messages=stream.messages)
