"""How far a replay is: a bar where standard error is a terminal, else a line every few seconds.

Invariant: it only looks; nothing waits for it, and standard output is never touched.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..messages import to_timestamp
from ..processes.jobs.contract import Chunk
from ..settings import Settings
from ..telemetry import get_logger, setup_logging
from .request_flags import ReplayRequests

if TYPE_CHECKING:
    from ..eventbus.publisher import Publisher

__all__ = ["ReplayProgress", "show_progress"]

log = get_logger("replay")

BAR_INTERVAL_S = 0.2
LINE_INTERVAL_S = 5.0


class ReplayProgress:
    """What was replayed so far."""

    def __init__(self, requests: ReplayRequests) -> None:
        self.from_us = min(request.from_us for request in requests)
        self.to_us = max(request.to_us for request in requests)
        self.messages = 0
        self.publisher: Publisher | None = None
        self.reached_us = self.from_us
        """The local time of the last message."""
        self._began = time.monotonic()

    def note(self, chunk: Chunk) -> None:
        """These messages were made."""
        self.messages += chunk.messages
        self.reached_us = max(self.reached_us, chunk.reached_us)

    def complete(self) -> None:
        """There are no more."""
        self.reached_us = self.to_us

    @property
    def rate(self) -> float:
        """Messages a second since the start."""
        return self.messages / max(time.monotonic() - self._began, 1e-3)

    @property
    def confirmed(self) -> Mapping[str, int]:
        """Events that each bus has confirmed."""
        return {} if self.publisher is None else {receipt.bus: receipt.confirmed for receipt in self.publisher.receipts}


@asynccontextmanager
async def show_progress(progress: ReplayProgress, settings: Settings, *, stdout_is_used: bool) -> AsyncIterator[None]:
    """Shows it while the block runs."""
    if stdout_is_used and sys.stdout.isatty():
        yield  # the lines themselves are what is to be seen
        return
    if sys.stderr.isatty():
        from rich.console import Console

        bar = _bar(Console(stderr=True))
        task = bar.add_task("", total=progress.to_us - progress.from_us, reached="", messages="", rate="", confirmed="")
        with bar:
            # What is logged meanwhile belongs above the bar, which rich sees to on the stream that it put there.
            setup_logging(settings.log_format, "debug" if settings.debug else settings.log_level)
            async with _ticking(lambda: bar.update(task, **_to_fields(progress)), BAR_INTERVAL_S):
                yield
            bar.update(task, **_to_fields(progress))
        setup_logging(settings.log_format, "debug" if settings.debug else settings.log_level)
        return
    async with _ticking(lambda: _log(progress), LINE_INTERVAL_S):
        yield


@asynccontextmanager
async def _ticking(tick: Callable[[], None], interval_s: float) -> AsyncIterator[None]:
    async def run() -> None:
        while True:
            await asyncio.sleep(interval_s)
            tick()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()


def _log(progress: ReplayProgress) -> None:
    confirmed = {f"confirmed_{bus}": count for bus, count in progress.confirmed.items()}
    reached, rate = to_timestamp(progress.reached_us, milliseconds=True), round(progress.rate)
    log.info("replaying", reached=reached, messages=progress.messages, messages_a_second=rate, **confirmed)


def _to_fields(progress: ReplayProgress) -> dict[str, Any]:
    return {
        "completed": progress.reached_us - progress.from_us,
        "reached": to_timestamp(progress.reached_us, milliseconds=True),
        "messages": f"{progress.messages:,} messages",
        "rate": f"{progress.rate:,.0f}/s",
        "confirmed": "".join(f"  {bus} {count:,} confirmed" for bus, count in progress.confirmed.items()),
    }


def _bar(console: Any) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn

    names = ("reached", "messages", "rate", "confirmed")
    texts = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in names]
    return Progress(texts[0], BarColumn(), *texts[1:], console=console, redirect_stdout=False, auto_refresh=True)
