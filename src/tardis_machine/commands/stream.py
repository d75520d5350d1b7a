"""`tardis-machine stream`: keeps live data flowing to the buses, or to standard output if none is on, until it is told to stop.

Invariant: a request that fails is started again. Everything received before SIGTERM is published and drained; exit code 0 means
that all of it was confirmed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..engine import Engine, LiveMachine
from ..errors import UndeliveredError, WorkerError
from ..pipeline.request import StreamRequest
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
# The pause before a failed request is started again; it doubles each time, unless the request ran for a while.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


def run(settings: Settings) -> int:
    """The `stream` command."""
    return run_loop(_run(settings, stream_requests(settings)))


async def _run(settings: Settings, requests: Sequence[StreamRequest]) -> int:
    output = None if settings.buses else LineOutput(STDOUT)
    engine, interruption = Engine(settings), Interruption()
    stop = asyncio.Event()
    machine = await engine.start_live()
    if output is not None:
        await output.open()
    streams = [_SupervisedStream(machine, request, output, settings.record_dir, stop) for request in requests]
    work = asyncio.create_task(_run_all(streams))
    summing = asyncio.create_task(_log_summaries(streams))
    interrupted = asyncio.create_task(interruption.requested.wait())
    log.info("streaming", requests=len(streams), buses=", ".join(settings.buses) or "none")
    await asyncio.wait([work, interrupted], return_when=asyncio.FIRST_COMPLETED)
    summing.cancel()
    interrupted.cancel()
    stop.set()
    if not work.done():
        log.info("stopping", shutdown_timeout_s=settings.shutdown_timeout)
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


async def _run_all(streams: Sequence[_SupervisedStream]) -> None:
    await asyncio.gather(*(stream.run() for stream in streams))


class _SupervisedStream:
    """One live request, started again whenever it fails."""

    def __init__(
        self,
        machine: LiveMachine,
        request: StreamRequest,
        output: LineOutput | None,
        record_dir: Path | None,
        stop: asyncio.Event,
    ) -> None:
        self.request = request
        self.messages = 0
        self.restarts = 0
        self._machine = machine
        self._output = output
        self._record_dir = record_dir
        self._stop = stop

    async def run(self) -> None:
        """Returns when it is told to stop."""
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                await self._run_once()
                return
            except WorkerError as error:
                if time.monotonic() - began_s > _LONGEST_PAUSE_S:
                    pause_s = _FIRST_PAUSE_S
                self.restarts += 1
                log.error(
                    "a stream failed and is started again", exchange=self.request.exchange, error=str(error), pause_s=pause_s
                )
            try:
                await asyncio.wait_for(self._stop.wait(), pause_s)
            except TimeoutError:
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _run_once(self) -> None:
        machine = self._machine
        publish = machine.publishing(ROUTE, "cli", uuid4().hex, "realtime")
        form: Any = "none" if self._output is None else "lines"
        messages = machine.stream(ROUTE, [self.request], form=form, publish=publish, stop=self._stop, record_dir=self._record_dir)
        async with aclosing(messages) as chunks:
            async for chunk in chunks:
                self.messages += chunk.messages
                if self._output is not None:
                    await self._output.write(chunk.data)


async def _log_summaries(streams: Sequence[_SupervisedStream]) -> None:
    while True:
        await asyncio.sleep(SUMMARY_INTERVAL_S)
        _log_summary("streaming", streams)


def _log_summary(what: str, streams: Sequence[_SupervisedStream]) -> None:
    for stream in streams:
        log.info(what, exchange=stream.request.exchange, messages=stream.messages, restarts=stream.restarts)
