"""`tardis-machine replay`: runs one request without a client; its lines go to the output, its events to the buses.

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

from ..engine import Engine, Machine
from ..errors import UndeliveredError
from ..pipeline.frames import Form
from ..pipeline.request import NormalizedRequest
from ..processes.jobs.contract import Chunk
from ..settings import Settings
from ..telemetry import get_logger
from .backpressure import BusBackpressure
from .event_loop import Interruption, run_loop
from .exit_codes import FAILED, INTERRUPTED
from .line_output import STDOUT, LineOutput
from .replay_progress import ReplayProgress, show_progress
from .request_flags import ReplayRequests, replay_requests

if TYPE_CHECKING:
    from ..eventbus.receipt import Receipt

__all__ = ["run"]

log = get_logger("replay")

ROUTE = "replay"


def run(settings: Settings) -> int:
    """The `replay` command."""
    if settings.dead_letter:
        from .dead_letters import resend_dead_letters

        return run_loop(resend_dead_letters(settings))
    return run_loop(_run(settings, replay_requests(settings)))


async def _run(settings: Settings, requests: ReplayRequests) -> int:
    target = settings.output or (STDOUT if settings.raw or not settings.buses else None)
    if settings.raw and settings.buses:
        log.warning("raw history is only written, not published", buses=", ".join(settings.buses))
    output = None if target is None else LineOutput(target)
    progress = ReplayProgress(requests)
    engine, interruption = Engine(settings), Interruption()
    undelivered: UndeliveredError | None = None
    async with show_progress(progress, settings, stdout_is_used=target == STDOUT):
        work = asyncio.create_task(_replay(engine, requests, output, progress, settings.shutdown_timeout))
        interrupted = asyncio.create_task(interruption.requested.wait())
        await asyncio.wait([work, interrupted], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            log.info("stopping", shutdown_timeout_s=settings.shutdown_timeout)
            work.cancel()
        await asyncio.wait([work])
        interrupted.cancel()
        # The replay has already waited for the buses in vain: don't wait a second time.
        has_timed_out = not work.cancelled() and isinstance(work.exception(), UndeliveredError)
        try:
            await interruption.drain(partial(engine.stop, 0.0) if has_timed_out else engine.stop, engine)
        except UndeliveredError as error:
            undelivered = error
    receipts = [] if engine.publisher is None else engine.publisher.receipts
    _print(receipts)
    if work.cancelled():
        return INTERRUPTED if interruption.signal == signal.SIGINT else FAILED
    if undelivered is not None and (has_timed_out or work.exception() is None):
        raise undelivered
    work.result()
    return 0 if all(receipt.is_complete for receipt in receipts) else FAILED


async def _replay(
    engine: Engine, requests: ReplayRequests, output: LineOutput | None, progress: ReplayProgress, patience_s: float
) -> None:
    if output is not None:
        await output.open()
    try:
        machine = await engine.start(publishing=isinstance(requests[0], NormalizedRequest))
        progress.publisher = machine.publisher
        backpressure = None if machine.publisher is None else BusBackpressure(machine.publisher, patience_s)
        async with aclosing(_chunks(machine, requests, "none" if output is None else "lines")) as chunks:
            async for chunk in chunks:
                if output is not None:
                    await output.write(chunk.data)
                progress.note(chunk)
                if backpressure is not None:
                    await backpressure.wait_for_room()
        progress.complete()
        if output is not None:
            await output.finish()
    finally:
        if output is not None:
            output.abandon()
    if backpressure is not None:
        await backpressure.flush()


def _chunks(machine: Machine, requests: ReplayRequests, form: Form) -> AsyncGenerator[Chunk, None]:
    publish = None if machine.publisher is None else machine.publishing(ROUTE, "cli", uuid4().hex)
    return machine.replay(ROUTE, requests, form=form, publish=publish, cut="the replay was interrupted")


def _print(receipts: Sequence[Receipt]) -> None:
    """To standard error, apart from the lines."""
    for receipt in receipts:
        print(receipt, file=sys.stderr)
