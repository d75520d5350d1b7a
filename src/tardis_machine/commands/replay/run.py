"""Runs one request without a client: its lines to the output, its events to the buses.

Invariant: exit code 0 means that all was written and all was confirmed. However it ends, the buses are drained and each gives its
receipt; a session that was cut is closed as incomplete.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from ...commands.running import Interruption, run_loop
from ...engine import Engine, Machine
from ...errors import UndeliveredError
from ...pipeline.frames import Form
from ...pipeline.request import NormalizedRequest
from ...processes.jobs.contract import Chunk
from ...settings import Settings
from ...telemetry import get_logger
from .asked import Requests, to_requests
from .options import STDOUT
from .output import Output
from .pace import Pace
from .progress import Progress, shown

if TYPE_CHECKING:
    from ...eventbus.receipt import Receipt

__all__ = ["run"]

log = get_logger("replay")

ROUTE = "replay"
_INTERRUPTED = 130


def run(settings: Settings) -> int:
    """The `replay` command."""
    if settings.dead_letter:
        from .dead_letters import resend

        return run_loop(resend(settings))
    return run_loop(_run(settings, to_requests(settings)))


async def _run(settings: Settings, requests: Requests) -> int:
    target = settings.output or (STDOUT if settings.raw or not settings.buses else None)
    if settings.raw and settings.buses:
        log.warning("raw history is not published, only written", buses=", ".join(settings.buses))
    output = None if target is None else Output(target)
    progress = Progress(requests)
    engine, interruption = Engine(settings), Interruption()
    undelivered: UndeliveredError | None = None
    async with shown(progress, settings, stdout_is_used=target == STDOUT):
        work = asyncio.create_task(_work(engine, requests, output, progress, settings.shutdown_timeout))
        asked = asyncio.create_task(interruption.asked.wait())
        await asyncio.wait([work, asked], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            log.info("stopping", shutdown_timeout_s=settings.shutdown_timeout)
            work.cancel()
        await asyncio.wait([work])
        asked.cancel()
        # Who waited in vain for the buses does not wait again.
        is_stuck = not work.cancelled() and isinstance(work.exception(), UndeliveredError)
        try:
            await interruption.drain(partial(engine.stop, 0.0) if is_stuck else engine.stop, engine)
        except UndeliveredError as error:
            undelivered = error
    receipts = [] if engine.publisher is None else engine.publisher.receipts
    _print(receipts)
    if work.cancelled():
        return _INTERRUPTED if interruption.signal == signal.SIGINT else 1
    if undelivered is not None and (is_stuck or work.exception() is None):
        raise undelivered
    work.result()
    return 0 if all(receipt.is_complete for receipt in receipts) else 1


async def _work(engine: Engine, requests: Requests, output: Output | None, progress: Progress, patience_s: float) -> None:
    if output is not None:
        await output.open()
    try:
        machine = await engine.start(publishing=isinstance(requests[0], NormalizedRequest))
        progress.publisher = machine.publisher
        pace = None if machine.publisher is None else Pace(machine.publisher, patience_s)
        async with aclosing(_chunks(machine, requests, "none" if output is None else "lines")) as chunks:
            async for chunk in chunks:
                if output is not None:
                    await output.write(chunk.data)
                progress.note(chunk)
                if pace is not None:
                    await pace.keep()
        progress.complete()
        if output is not None:
            await output.finish()
    finally:
        if output is not None:
            output.abandon()
    if pace is not None:
        await pace.finish()


def _chunks(machine: Machine, requests: Requests, form: Form) -> AsyncGenerator[Chunk, None]:
    publish = None if machine.publisher is None else machine.publishing(ROUTE, "cli", uuid4().hex)
    return machine.replay(ROUTE, requests, form=form, publish=publish, cut="the replay was interrupted")


def _print(receipts: Sequence[Receipt]) -> None:
    """For people, and apart from the lines."""
    for receipt in receipts:
        print(receipt, file=sys.stderr)
