"""Worker processes that run replays, so that the event loop never maps a message.

Invariant: there are as many workers as asked for; one that dies fails its own requests alone, and is replaced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from math import inf

from msgspec import UNSET
from msgspec.structs import replace

from ..errors import BusyError, WorkerError
from ..history.client import HistoryClient
from ..pipeline.request import NormalizedRequest, RawRequest
from ..telemetry import get_logger
from .child import ChildProcess
from .chunk_windows import ChunkWindows
from .in_process import InProcess
from .jobs import replay
from .jobs.contract import Chunk, Events, ReplaySpec
from .merged_replay import MergedReplay
from .output_queue import OutputQueue
from .runner import Executor
from .started_replay import StartedReplay, started_replay
from .steering import Steering

__all__ = ["SYMBOLS_TOGETHER", "ReplayPool"]

log = get_logger("workers")

# A process that lives shorter died of its own start: the next one waits, so that a fault does not take the machine.
_LEAST_LIFE_S = 1.0
# How long a request waits for the replacement of the only process.
_REPLACEMENT_TIMEOUT_S = 10.0
# A replay keeps the symbols that it was asked for, in the server and in its worker: half a kilobyte for each. So many always pass.
_FEW_SYMBOLS = 1000
SYMBOLS_TOGETHER = 5
"""How many times the symbols that one request may name all replays together may."""


class ReplayPool:
    """Workers, each of which runs many replays in turn. `size` 0 runs them in this process.

    At most `most` replays are admitted at a time, and those that name many symbols only while they name `most_symbols` together; what
    waits for their clients has about `unread_bytes`, and a chunk for each of them.
    """

    def __init__(self, size: int, *, most: int | None = None, most_symbols: float = inf, unread_bytes: int | None = None) -> None:
        self._size = size
        self._most = most
        self._most_symbols = most_symbols
        self._admitted = 0
        # Named by all that are admitted.
        self._symbols = 0
        self._windows = ChunkWindows(unread_bytes)
        # Of the replays under way.
        self._queues: set[OutputQueue] = set()
        self._workers: list[Executor] = []
        # Those that replace the processes that die.
        self._watchers: set[asyncio.Task[None]] = set()
        self._numbers = count(1)
        # Set while there is a worker.
        self._available = asyncio.Event()
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Starts the processes; they import in the background while the server opens its port."""
        if self._size == 0:
            self._workers.append(InProcess(replay.ReplayJobs))
            self._available.set()
        for _ in range(self._size):
            await self._start_process()

    async def _start_process(self) -> None:
        process = ChildProcess(replay.__name__)
        await process.open()
        self._workers.append(process)
        self._available.set()
        watcher = asyncio.create_task(self._watch(process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, process: ChildProcess) -> None:
        """Replaces a process that dies; while it can't be, it is tried again."""
        began_s = time.monotonic()
        await process.gone.wait()
        self._workers.remove(process)
        if not self._workers:
            self._available.clear()
        code = await process.wait()
        if self._stopping.is_set():
            return
        log.error("a worker process died and is replaced", pid=process.pid, exit_code=code)
        delay_s = max(0.0, began_s + _LEAST_LIFE_S - time.monotonic())
        while not await _happens_within(self._stopping, delay_s):
            try:
                await self._start_process()
                return
            except OSError as error:
                log.error("a worker process can't be started", error=str(error))
                delay_s = _LEAST_LIFE_S

    async def stop(self) -> None:
        """Ends the processes; replays that still run fail."""
        self._stopping.set()
        for worker in self._workers:
            worker.close()
        await asyncio.gather(*self._watchers)

    @property
    def pids(self) -> list[int]:
        """The processes in use."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def unread_bytes(self) -> int:
        """What waits for clients, and has not been taken to be sent to them."""
        return sum(queue.waiting_bytes for queue in self._queues)

    @property
    def running(self) -> int:
        """How many replays are under way."""
        return self._admitted

    @contextmanager
    def admitted(self, requests: Sequence[RawRequest] | Sequence[NormalizedRequest]) -> Iterator[None]:
        """A place for one replay; BusyError where all are taken."""
        if self._admitted == self._most:
            raise BusyError(f"max-replays: {self._most} replays are running, and no more are allowed; try again later")
        symbols = sum(map(_count_symbols, requests))
        if symbols > _FEW_SYMBOLS and self._symbols + symbols > self._most_symbols:
            raise BusyError(
                f"max-symbols: the replays that run name {self._symbols} symbols, and with {symbols} more it would be more than "
                f"{self._most_symbols:.0f}, {SYMBOLS_TOGETHER} times what one may; try again later"
            )
        self._admitted += 1
        self._symbols += symbols
        try:
            yield
        finally:
            self._admitted -= 1
            self._symbols -= symbols

    async def run(
        self, client: HistoryClient, spec: ReplaySpec, attach: Callable[[Steering], None] = lambda _: None
    ) -> AsyncGenerator[Chunk | Events, None]:
        """Runs a replay: fetches what it needs, and yields what it makes. Leaving early cancels it and frees what it held.

        `attach` is given what others may do to it until then.
        """
        if not await _happens_within(self._available, _REPLACEMENT_TIMEOUT_S):
            raise WorkerError("no worker process is running")
        asker = object()
        if len(self._workers) == 1 or not spec.is_divisible:
            async with self._started(client, spec, asker) as whole:
                attach(whole.steering)
                async for output in whole:
                    yield output
            return
        async with AsyncExitStack() as stack:
            parts = [
                await stack.enter_async_context(
                    self._started(client, replace(spec, requests=[request], is_marked=True, is_cut=False), asker)
                )
                for request in spec.requests
            ]
            merged = MergedReplay(parts, spec.is_cut)
            attach(merged.steering)
            async for chunk in merged.chunks():
                yield chunk

    @asynccontextmanager
    async def _started(self, client: HistoryClient, spec: ReplaySpec, asker: Hashable) -> AsyncGenerator[StartedReplay, None]:
        """A replay in the worker that has the fewest."""
        worker = min(self._workers, key=lambda candidate: len(candidate.queues))
        async with started_replay(worker, next(self._numbers), client, spec, self._windows, asker) as (started, queue):
            self._queues.add(queue)
            try:
                yield started
            finally:
                self._queues.discard(queue)


def _count_symbols(request: RawRequest | NormalizedRequest) -> int:
    if isinstance(request, NormalizedRequest):
        return len(request.symbols or ())
    return sum(len(item.symbols) for item in request.filters if item.symbols is not UNSET)


async def _happens_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
