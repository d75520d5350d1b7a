"""Worker processes: a replay runs there and comes back as finished bytes, so that the event loop never maps a message.

Invariant: a worker lives only as long as its socket; when the server goes, however it goes, its workers end. A worker serves many
jobs in turn, a step each; a job whose client is slow has no chunks left to send and costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import aclosing
from itertools import count
from struct import Struct
from typing import Any

from .errors import WorkerError
from .history.client import HistoryClient
from .job import SLICE_WINDOW, Chunk, Done, Events, Failed, Job, JobSpec, Output, SliceDamaged, SliceDone, to_failed
from .replays import NormalizedReplay, RawReplay, Segment, fetch_slices
from .request import RawRequest
from .telemetry import get_logger

__all__ = ["WorkerPool"]

log = get_logger("workers")

# job, kind, payload bytes
_HEADER = Struct("<QBI")
_KIND_PICKLED, _KIND_CHUNK = 0, 1
# messages, stream; the data follows
_CHUNK = Struct("<IH")
_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
# A process that lives shorter died of its own start: the next one waits, so that a fault does not take the machine.
_LEAST_LIFE_S = 1.0
# How long a request waits for the replacement of the only process.
_REPLACEMENT_TIMEOUT_S = 10.0
# How long a process may take to notice that the server hung up.
_END_TIMEOUT_S = 5.0
# A program of its own, not a fork: it must not inherit sockets, and must start from any script, guarded or not.
_START = "import sys; sys.path[:] = {path!r}; from tardis_machine.workers import main; main()"


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
                self._jobs[number] = Job(arguments)
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
            for job, (name, arguments) in _take_commands(received):
                jobs.obey(job, name, arguments)
        for job, output in jobs.step():
            connection.sendall(_to_frame(job, output))


def _to_frame(job: int, output: Output) -> bytes:
    if isinstance(output, Chunk):
        head = _HEADER.pack(job, _KIND_CHUNK, len(output.data) + _CHUNK.size) + _CHUNK.pack(output.messages, output.stream)
        return head + output.data
    payload = pickle.dumps(output, pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(job, _KIND_PICKLED, len(payload)) + payload


def _take_commands(received: bytearray) -> list[tuple[int, tuple[str, Any]]]:
    commands = []
    start = 0
    while len(received) - start >= _HEADER.size:
        job, _, size = _HEADER.unpack_from(received, start)
        end = start + _HEADER.size + size
        if end > len(received):
            break
        commands.append((job, pickle.loads(received[start + _HEADER.size : end])))  # noqa: S301 - from our own parent process
        start = end
    del received[:start]
    return commands


def main() -> None:
    """Entry point of a worker process; the socket to the server is its argument."""
    with socket.socket(fileno=int(sys.argv[1])) as connection, contextlib.suppress(ConnectionError):
        serve(connection)


# --- in the server -----------------------------------------------------------------------------------------------------------


class _Outputs:
    """What a job sent and nobody has taken yet; bounded by the job's own window."""

    def __init__(self) -> None:
        self._items: deque[Output] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: Output) -> None:
        self._items.append(output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Output:
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """What is started here never hears SIGINT or SIGTERM, from its first moment on: a terminal or a service manager may signal every
    process at once, but when a worker ends is the server's decision. A blocked signal is inherited, a handler would come too late."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Process(asyncio.BufferedProtocol):
    """The server's end of one worker process."""

    def __init__(self) -> None:
        self.jobs: dict[int, _Outputs] = {}
        self._transport: asyncio.WriteTransport | None = None
        # What is being received, straight into the buffer it stays in: a header, then the payload that it announces.
        self._header: tuple[int, int] | None = None
        self._buffer = bytearray(_HEADER.size)
        self._filled = 0
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
        self._socket = ours
        with theirs, _blocked_signals():
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", _START.format(path=sys.path), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # a signal to the server's group is the server's to answer; workers end with their socket
            )
        # Set when the process is gone.
        self.gone = asyncio.Event()

    async def open(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)

    def command(self, job: int, name: str, arguments: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            payload = pickle.dumps((name, arguments), pickle.HIGHEST_PROTOCOL)
            self._transport.write(_HEADER.pack(job, _KIND_PICKLED, len(payload)) + payload)

    def close(self) -> None:
        """Hangs up, which ends the worker; what is under way either way is lost."""
        if self._transport is not None:
            self._transport.abort()

    async def wait(self, timeout_s: float) -> int:
        """Its exit code; a process that does not end in time is killed."""
        try:
            return await asyncio.to_thread(self.process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return await asyncio.to_thread(self.process.wait)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._buffer):
            return
        received = self._buffer
        if self._header is None:
            job, kind, size = _HEADER.unpack(received)
            self._header = (job, kind)
        else:
            self._take(*self._header, received)
            self._header, size = None, _HEADER.size
        self._buffer, self._filled = bytearray(size), 0

    def _take(self, job: int, kind: int, payload: bytearray) -> None:
        outputs = self.jobs.get(job)
        if outputs is None:
            return  # cancelled while this was on its way
        if kind == _KIND_CHUNK:
            messages, stream = _CHUNK.unpack_from(payload)
            outputs.put(Chunk(memoryview(payload)[_CHUNK.size :], messages, stream))
        else:
            outputs.put(pickle.loads(payload))  # noqa: S301 - from our own worker

    def connection_lost(self, exc: Exception | None) -> None:
        for outputs in self.jobs.values():
            outputs.put(Failed(WorkerError("the worker process that served this request died")))
        self.gone.set()


class _InProcess:
    """Runs jobs on the event loop itself: `--workers 0`, for debugging."""

    def __init__(self) -> None:
        self.jobs: dict[int, _Outputs] = {}
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
                self.jobs[job].put(output)
        self._schedule()


class WorkerPool:
    """Worker processes, and the jobs they run. `size` 0 runs jobs in this process."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._executors: list[_Process | _InProcess] = []
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
        process = _Process()
        await process.open()
        self._executors.append(process)
        self._available.set()
        watcher = asyncio.create_task(self._watch(process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, process: _Process) -> None:
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
            if isinstance(executor, _Process):
                executor.close()
        await asyncio.gather(*self._watchers)

    @property
    def pids(self) -> list[int]:
        """The processes in use."""
        return [executor.process.pid for executor in self._executors if isinstance(executor, _Process)]

    async def run(self, client: HistoryClient, spec: JobSpec) -> AsyncGenerator[Chunk | Events, None]:
        """Runs a job: fetches what it needs, and yields what it makes. Leaving early cancels it and frees what it held."""
        if not await _happens_within(self._available, _REPLACEMENT_TIMEOUT_S):
            raise WorkerError("no worker process is running")
        executor = min(self._executors, key=lambda candidate: len(candidate.jobs))
        job = next(self._numbers)
        outputs = executor.jobs[job] = _Outputs()
        executor.command(job, "start", spec)
        feeders = [_Feeder(client, executor, job, outputs, index, spec) for index in range(len(spec.requests))]
        try:
            while True:
                output = await outputs.get()
                if isinstance(output, Chunk):
                    yield output
                    executor.command(job, "grant", (1,))
                elif isinstance(output, Events):
                    yield output
                elif isinstance(output, SliceDone):
                    feeders[output.stream].slice_done()
                elif isinstance(output, SliceDamaged):
                    feeders[output.stream].replace(output)
                elif isinstance(output, Failed):
                    if output.traceback:
                        log.error("a request met an internal error", error=str(output.error), traceback=output.traceback)
                    raise output.error
                else:
                    return
        finally:
            del executor.jobs[job]
            executor.command(job, "cancel", ())
            # All are cancelled before anything is waited for: this task itself may be cancelled while it waits.
            fetching = [task for feeder in feeders for task in feeder.cancel()]
            await asyncio.gather(*fetching, return_exceptions=True)


class _Feeder:
    """Fetches the slices of one request of a job and hands them to its worker, only a few ahead of it."""

    def __init__(
        self, client: HistoryClient, executor: _Process | _InProcess, job: int, outputs: _Outputs, stream: int, spec: JobSpec
    ) -> None:
        self._client = client
        self._executor = executor
        self._job = job
        self._outputs = outputs
        self._stream = stream
        self._request = spec.requests[stream]
        self._window = asyncio.Semaphore(SLICE_WINDOW)
        self._tasks = {asyncio.create_task(self._guarded(self._feed()))}

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self._outputs.put(to_failed(error))

    async def _feed(self) -> None:
        request = self._request
        steps = RawReplay(request) if isinstance(request, RawRequest) else NormalizedReplay(request)
        segments: Sequence[Segment] = steps.segments()
        slices = fetch_slices(self._client, request, segments)
        async with aclosing(slices):
            await self._window.acquire()
            async for segment, piece in slices:
                self._executor.command(self._job, "add_slice", (self._stream, segments.index(segment), piece))
                await self._window.acquire()
        self._executor.command(self._job, "end_input", (self._stream,))

    def slice_done(self) -> None:
        """The worker used a slice up."""
        self._window.release()

    def replace(self, damaged: SliceDamaged) -> None:
        """The worker could not read a slice: fetch it anew."""
        log.warning("a cached slice is damaged and is fetched again", problem=damaged.problem)
        task = asyncio.create_task(self._guarded(self._refetch(damaged)))
        self._tasks.add(task)

    async def _refetch(self, damaged: SliceDamaged) -> None:
        pieces = await self._client.refetch(damaged.piece, api_key=self._request.api_key)
        self._executor.command(self._job, "replace_slice", (self._stream, damaged.segment, pieces))

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
