"""Keeps live data flowing to the buses, or to standard output where none is on, until it is told to stop.

Invariant: what can be started again is, however it failed. All that was heard before SIGTERM is published, and drained; exit code 0
means that all of it was confirmed.
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

from ...commands.running import Interruption, run_loop
from ...engine import Engine, LiveMachine
from ...errors import OptionsError, UndeliveredError, WorkerError
from ...pipeline.request import StreamRequest, parse_stream_requests
from ...settings import Settings
from ...telemetry import get_logger
from ..replay.asked import read_json
from ..replay.options import STDOUT
from ..replay.output import Output
from .options import REQUEST_FLAGS

__all__ = ["run"]

log = get_logger("stream")

ROUTE = "stream"
SUMMARY_S = 30.0
# Before what failed is started again; twice as long each time, unless it ran for a while.
_FIRST_RESTART_S, _LAST_RESTART_S = 1.0, 60.0
_INTERRUPTED = 130


def run(settings: Settings) -> int:
    """The `stream` command."""
    return run_loop(_run(settings, to_requests(settings)))


def to_requests(settings: Settings) -> list[StreamRequest]:
    """What the flags ask for, or what stands in --options."""
    if settings["options"] is not None:
        given = [flag for flag in REQUEST_FLAGS.values() if settings.source(flag.replace("-", "_")) != "default"]
        if given:
            raise OptionsError(f"--{given[0]} can't be given here, as --options has the whole request", given[0])
        return parse_stream_requests(read_json("--options", settings["options"]))
    if settings.exchange is None:
        raise OptionsError("--exchange is not given, and neither is --options", "exchange")
    values: dict[str, Any] = {field: settings[flag.replace("-", "_")] for field, flag in REQUEST_FLAGS.items()}
    values["timeoutIntervalMS"] *= 1000
    options = {field: list(value) if isinstance(value, tuple) else value for field, value in values.items()}
    try:
        return parse_stream_requests(options)
    except OptionsError as error:
        field = error.field or ""
        if field not in REQUEST_FLAGS:
            raise
        raise OptionsError(f"--{REQUEST_FLAGS[field]}{str(error).removeprefix(field)}", field) from None


async def _run(settings: Settings, requests: Sequence[StreamRequest]) -> int:
    output = None if settings.buses else Output(STDOUT)
    engine, interruption = Engine(settings), Interruption()
    stop = asyncio.Event()
    machine = await engine.start_live()
    if output is not None:
        await output.open()
    flows = [_Flow(machine, request, output, settings.record_dir, stop) for request in requests]
    work = asyncio.create_task(_keep_all(flows))
    summing = asyncio.create_task(_sum_up(flows))
    asked = asyncio.create_task(interruption.asked.wait())
    log.info("streaming", requests=len(flows), buses=", ".join(settings.buses) or "none")
    await asyncio.wait([work, asked], return_when=asyncio.FIRST_COMPLETED)
    summing.cancel()
    asked.cancel()
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
    _log_sums("streamed", flows)
    if isinstance(failure, Exception):
        raise failure
    if not all(receipt.is_complete for receipt in receipts):
        return 1
    return _INTERRUPTED if interruption.signal == signal.SIGINT and output is not None else 0


async def _keep_all(flows: Sequence[_Flow]) -> None:
    await asyncio.gather(*(flow.keep() for flow in flows))


class _Flow:
    """One request, kept flowing."""

    def __init__(
        self, machine: LiveMachine, request: StreamRequest, output: Output | None, record_dir: Path | None, stop: asyncio.Event
    ) -> None:
        self.request = request
        self.messages = 0
        self.restarts = 0
        self._machine = machine
        self._output = output
        self._record_dir = record_dir
        self._stop = stop

    async def keep(self) -> None:
        """Until it is told to stop; starts anew what died."""
        wait_s = _FIRST_RESTART_S
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                await self._flow()
                return
            except WorkerError as error:
                if time.monotonic() - began_s > _LAST_RESTART_S:
                    wait_s = _FIRST_RESTART_S
                self.restarts += 1
                log.error("a stream failed and is started again", exchange=self.request.exchange, error=str(error), wait_s=wait_s)
            try:
                await asyncio.wait_for(self._stop.wait(), wait_s)
            except TimeoutError:
                wait_s = min(wait_s * 2, _LAST_RESTART_S)

    async def _flow(self) -> None:
        machine = self._machine
        publish = machine.publishing(ROUTE, "cli", uuid4().hex, "realtime")
        form: Any = "none" if self._output is None else "lines"
        messages = machine.stream(ROUTE, [self.request], form=form, publish=publish, stop=self._stop, record_dir=self._record_dir)
        async with aclosing(messages) as chunks:
            async for chunk in chunks:
                self.messages += chunk.messages
                if self._output is not None:
                    await self._output.write(chunk.data)


async def _sum_up(flows: Sequence[_Flow]) -> None:
    while True:
        await asyncio.sleep(SUMMARY_S)
        _log_sums("streaming", flows)


def _log_sums(what: str, flows: Sequence[_Flow]) -> None:
    for flow in flows:
        log.info(what, exchange=flow.request.exchange, messages=flow.messages, restarts=flow.restarts)
