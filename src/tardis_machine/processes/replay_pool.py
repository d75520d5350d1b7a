"""Worker processes: a replay runs there and comes back as finished bytes, so that the event loop never maps a message.

Invariant: a worker lives only as long as its socket; when the server goes, however it goes, its workers end. A worker serves many
jobs in turn, a step each; a job whose client is slow has no chunks left to send and costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import select
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

from msgspec import structs

from ..errors import SliceError, WorkerError
from ..history.client import HistoryClient
from ..pipeline.replay import NormalizedReplay, RawReplay, Segment, fetch_slices
from ..pipeline.request import NormalizedRequest, RawRequest
from ..telemetry import get_logger
from .child import ChildProcess, take_commands, to_frame
from .jobs import Job, make_job
from .jobs.contract import (
    Chunk,
    Done,
    Events,
    Failed,
    JobSpec,
    Output,
    SliceDamaged,
    SliceOpened,
    TurnDone,
    to_failed,
)
from .jobs.slices import SLICE_WINDOW

__all__ = ["WorkerPool"]

log = get_logger("workers")

# A process that lives shorter died of its own start: the next one waits, so that a fault does not take the machine.
_LEAST_LIFE_S = 1.0
# Workers that take turns with one request: each reads all of it, so that more gain less and less.
_MOST_PLACES = 4
# How long a request waits for the replacement of the only process.
_REPLACEMENT_TIMEOUT_S = 10.0
# How long a process may take to notice that the server hung up.
_END_TIMEOUT_S = 5.0


class Jobs:
    """The jobs of one process: a step of each in turn."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        # Jobs that could not even be started, and why.
        self._stillborn: list[tuple[int, Output]] = []

    @property
    def runnable(self) -> bool:
        """Whether `step` can do something now."""
        return bool(self._stillborn) or any(job.runnable for job in self._jobs.values())

    def obey(self, number: int, name: str, arguments: Any) -> None:
        """Starts a job, cancels one, or calls one by the name of its method."""
        if name == "start":
            try:
                self._jobs[number] = make_job(arguments)
            except Exception as error:
                self._stillborn.append((number, to_failed(error)))
        elif name == "cancel":
            self._forget(number)
        elif number in self._jobs:  # else: it ended while the command was on its way
            getattr(self._jobs[number], name)(*arguments)

    def step(self) -> Iterator[tuple[int, Output]]:
        """A step of every job that can do one, and what came of it."""
        stillborn, self._stillborn = self._stillborn, []
        yield from stillborn
        for number, job in list(self._jobs.items()):
            if job.runnable:
                for output in job.step():
                    yield number, output
                    if isinstance(output, (Done, Failed)):
                        self._forget(number)

    def _forget(self, number: int) -> None:
        if self._jobs.pop(number, None) is not None:
            gc.collect()


# --- in the worker -----------------------------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    """The worker's life: take commands, step jobs in turn, send what comes of it; ends when the server is gone."""
    gc.freeze()
    gc.disable()  # messages live for microseconds and form no cycles; what does is collected when a job ends
    jobs = Jobs()
    received = bytearray()
    readable = select.poll()
    readable.register(connection, select.POLLIN)
    while True:
        while readable.poll(0 if jobs.runnable else None):
            data = connection.recv(1 << 20)
            if not data:
                return
            received += data
            for job, (name, arguments) in take_commands(received):
                jobs.obey(job, name, arguments)
        for job, output in jobs.step():
            connection.sendall(to_frame(job, output))


def main() -> None:
    """Entry point of a worker process; the socket to the server is its argument."""
    with socket.socket(fileno=int(sys.argv[1])) as connection, contextlib.suppress(ConnectionError):
        serve(connection)


# --- in the server -----------------------------------------------------------------------------------------------------------


class _Outputs:
    """What the workers of one job sent and nobody has taken yet, in the order of their turns; bounded by the job's own window."""

    def __init__(self, places: int) -> None:
        # What is told of slices, one for each request; set before there is anything to tell.
        self.feeders: Sequence[_Feeder] = ()
        self._queues: list[deque[Output]] = [deque() for _ in range(places)]
        # Whose turn it is.
        self._place = 0
        # What ends the job although no worker said so.
        self._failure: Failed | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, place: int, output: Output) -> None:
        # What is about slices waits for no turn: whose turn it is may be waiting for a slice.
        if isinstance(output, SliceOpened):
            self.feeders[output.stream].opened(place, output)
        elif isinstance(output, SliceDamaged):
            self.feeders[output.stream].damaged(place, output)
        else:
            self._queues[place].append(output)
            self._wake()

    def fail(self, failure: Failed) -> None:
        """Something outside of the workers' own account went wrong."""
        self._failure = self._failure or failure
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> tuple[int, Output]:
        """The next output, and which worker it is of."""
        while True:
            queue = self._queues[self._place]
            if queue:
                output = queue.popleft()
                if not isinstance(output, TurnDone):
                    return self._place, output
                self._place = (self._place + 1) % len(self._queues)
            elif self._failure is not None:
                return self._place, self._failure
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter


class _InProcess:
    """Runs jobs on the event loop itself: `--workers 0`, for debugging."""

    def __init__(self) -> None:
        self.jobs: dict[int, tuple[_Outputs, int]] = {}
        self._running = Jobs()
        self._scheduled = False

    def command(self, job: int, name: str, arguments: Any) -> None:
        self._running.obey(job, name, arguments)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._running.runnable:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        for job, output in self._running.step():
            if job in self.jobs:
                outputs, place = self.jobs[job]
                outputs.put(place, output)
        self._schedule()


class WorkerPool:
    """Worker processes, and the jobs they run. `size` 0 runs jobs in this process."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._executors: list[ChildProcess | _InProcess] = []
        self._watchers: set[asyncio.Task[None]] = set()
        self._numbers = count(1)
        # Set while there is a process to run a job in.
        self._available = asyncio.Event()
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Starts the processes; they import in the background while the server opens its port."""
        if self._size == 0:
            self._executors.append(_InProcess())
            self._available.set()
        for _ in range(self._size):
            await self._start_process()

    async def _start_process(self) -> None:
        process = ChildProcess(__name__)
        await process.open()
        self._executors.append(process)
        self._available.set()
        watcher = asyncio.create_task(self._watch(process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, process: ChildProcess) -> None:
        """Replaces a process that dies; while it can't be, it is tried again."""
        began = time.monotonic()
        await process.gone.wait()
        self._executors.remove(process)
        if not self._executors:
            self._available.clear()
        code = await process.wait(_END_TIMEOUT_S)
        if self._stopping.is_set():
            return
        log.error("a worker process died and is replaced", pid=process.process.pid, exit_code=code)
        delay_s = max(0.0, began + _LEAST_LIFE_S - time.monotonic())
        while not await _happens_within(self._stopping, delay_s):
            try:
                await self._start_process()
                return
            except OSError as error:
                log.error("a worker process can't be started", error=str(error))
                delay_s = _LEAST_LIFE_S

    async def stop(self) -> None:
        """Ends the processes; jobs that still run fail."""
        self._stopping.set()
        for executor in self._executors:
            if isinstance(executor, ChildProcess):
                executor.close()
        await asyncio.gather(*self._watchers)

    @property
    def pids(self) -> list[int]:
        """The processes in use."""
        return [executor.process.pid for executor in self._executors if isinstance(executor, ChildProcess)]

    def _choose(self, spec: JobSpec) -> list[ChildProcess | _InProcess]:
        """The least busy worker; where others are idle and the job is of a kind that gains by it, those too."""
        first, *others = sorted(self._executors, key=lambda candidate: len(candidate.jobs))
        idle = [other for other in others[: _MOST_PLACES - 1] if not other.jobs]
        return [first, *idle] if not first.jobs and idle and spec.takes_turns else [first]

    async def run(self, client: HistoryClient, spec: JobSpec) -> AsyncGenerator[Chunk | Events, None]:
        """Runs a job: fetches what it needs, and yields what it makes. Leaving early cancels it and frees what it held."""
        if not await _happens_within(self._available, _REPLACEMENT_TIMEOUT_S):
            raise WorkerError("no worker process is running")
        executors = self._choose(spec)
        job = next(self._numbers)
        outputs = _Outputs(len(executors))
        for place, executor in enumerate(executors):
            executor.jobs[job] = outputs, place
            executor.command(job, "start", structs.replace(spec, place=place, places=len(executors)))
        requests: Sequence[RawRequest | NormalizedRequest] = spec.requests
        outputs.feeders = feeders = [
            _Feeder(client, executors, job, outputs, stream, request) for stream, request in enumerate(requests)
        ]
        try:
            while True:
                place, output = await outputs.get()
                if isinstance(output, Chunk):
                    yield output
                    executors[place].command(job, "grant", (1,))
                elif isinstance(output, Events):
                    yield output
                elif isinstance(output, Failed):
                    if output.traceback:
                        log.error("a request met an internal error", error=str(output.error), traceback=output.traceback)
                    raise output.error
                else:
                    return
        finally:
            for executor in executors:
                del executor.jobs[job]
                executor.command(job, "cancel", ())
            # All are cancelled before anything is waited for: this task itself may be cancelled while it waits.
            fetching = [task for feeder in feeders for task in feeder.cancel()]
            await asyncio.gather(*fetching, return_exceptions=True)


class _Feeder:
    """Fetches the slices of one request of a job and hands them to its workers, only a few ahead of them.

    Whoever is first to take turns gets each slice first; the next one gets what the first could open, so that both read the same.
    """

    def __init__(
        self,
        client: HistoryClient,
        executors: Sequence[ChildProcess | _InProcess],
        job: int,
        outputs: _Outputs,
        stream: int,
        request: RawRequest | NormalizedRequest,
    ) -> None:
        self._client = client
        self._executors = executors
        self._job = job
        self._outputs = outputs
        self._stream = stream
        self._request = request
        self._window = asyncio.Semaphore(SLICE_WINDOW)
        # Slices that the first worker has not opened yet, and whether there will be more.
        self._unopened = 0
        self._ended = False
        self._tasks = {asyncio.create_task(self._guarded(self._feed()))}

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self._outputs.fail(to_failed(error))

    async def _feed(self) -> None:
        request = self._request
        steps = RawReplay(request) if isinstance(request, RawRequest) else NormalizedReplay(request)
        segments: Sequence[Segment] = steps.segments()
        slices = fetch_slices(self._client, request, segments)
        async with aclosing(slices):
            await self._window.acquire()
            async for segment, piece in slices:
                self._unopened += 1
                self._command(0, "add_slice", segments.index(segment), piece)
                await self._window.acquire()
        self._ended = True
        self._command(0, "end_input")
        self._end_others()

    def _command(self, place: int, name: str, *arguments: Any) -> None:
        self._executors[place].command(self._job, name, (self._stream, *arguments))

    def _end_others(self) -> None:
        if self._ended and not self._unopened:
            for place in range(1, len(self._executors)):
                self._command(place, "end_input")

    def opened(self, place: int, slice_opened: SliceOpened) -> None:
        """A worker could read a slice: the next one may have it; where there is none, it was used by all."""
        if place + 1 < len(self._executors):
            self._command(place + 1, "add_slice", slice_opened.segment, slice_opened.piece)
        else:
            self._window.release()
        if place == 0 and slice_opened.is_whole:
            self._unopened -= 1
            self._end_others()

    def damaged(self, place: int, slice_damaged: SliceDamaged) -> None:
        """A worker could not read a slice: fetch it anew."""
        if place > 0:
            self._outputs.fail(Failed(SliceError(f"{slice_damaged.problem}; it was whole a moment before")))
            return
        log.warning("a cached slice is damaged and is fetched again", problem=slice_damaged.problem)
        self._tasks.add(asyncio.create_task(self._guarded(self._refetch(slice_damaged))))

    async def _refetch(self, damaged: SliceDamaged) -> None:
        pieces = await self._client.refetch(damaged.piece, api_key=self._request.api_key)
        self._command(0, "replace_slice", damaged.segment, pieces)

    def cancel(self) -> set[asyncio.Task[None]]:
        """Ends fetching; when the tasks returned are over, its files and connections are free."""
        for task in self._tasks:
            task.cancel()
        return self._tasks


async def _happens_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
