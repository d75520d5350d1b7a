"""Live requests, each in a process of its own, so that the server's event loop never maps a message and no request can hurt another.

Invariant: a process lives only as long as its socket; when the server goes, however it goes, it ends. What it sends is what a worker
sends: finished bytes and events, in order.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ..errors import BusyError
from ..messages import Message
from ..pipeline.frames import to_json_frames, to_json_lines
from ..pipeline.recorder import CacheRecorder
from ..pipeline.request import StreamRequest
from ..pipeline.stream import LiveStream, shown
from ..realtime.backoff import Pace
from ..telemetry import Logger, get_logger
from .child import ChildProcess, take_commands, to_frame
from .jobs.contract import Chunk, Done, Events, Failed, Output, PublishSpec, to_failed

__all__ = ["LivePool", "LiveSpec"]

log = get_logger("live")

# A process has one job.
_JOB = 1
# What may wait in the server for its own slowest part (a bus that blocks) before listening pauses.
_MAX_UNREAD_BYTES = 32 * 1024 * 1024
_RESUME_BYTES = 8 * 1024 * 1024
_END_TIMEOUT_S = 5.0
# Messages form no cycles; what little does is collected so often.
_COLLECT_EVERY_S = 10.0


class LiveSpec(msgspec.Struct, frozen=True):
    """What a live process is asked to do."""

    requests: Sequence[StreamRequest]
    form: Literal["lines", "frames", "none"]
    """None: only events are wanted; chunks then hold no bytes, and say how many messages there were."""
    publish: PublishSpec | None = None
    urls: Mapping[str, str] = {}
    pace: Pace = Pace()
    record_dir: str | None = None
    """Where raw messages are kept, as the cache of a later replay."""


class Logged(msgspec.Struct, gc=False):
    """A line for the server's log."""

    logger: str
    level: int
    message: str
    fields: dict[str, Any]


class LiveJob:
    """Runs a LiveSpec: what comes of it goes to `put`."""

    def __init__(self, spec: LiveSpec, put: Callable[[Output], None], room: Room) -> None:
        self._put = put
        self._room = room
        self._to_bytes = _TO_BYTES[spec.form]
        self._encoder = None if spec.publish is None else spec.publish.make_encoder()
        self._recorder = None if spec.record_dir is None else CacheRecorder(spec.record_dir, spec.requests)
        self._stream = LiveStream(spec.requests, self, urls=spec.urls, pace=spec.pace, record=self._recorder)

    def start(self) -> asyncio.Task[None]:
        """Runs until it is cancelled, or meets a fault of our own; either is the last that is put."""
        task = asyncio.create_task(self._stream.run())
        task.add_done_callback(self._conclude)
        return task

    def _conclude(self, task: asyncio.Task[None]) -> None:
        if self._recorder is not None:
            self._recorder.close()
        error = None if task.cancelled() else task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self._put(to_failed(error) if isinstance(error, Exception) else Done())

    def deliver(self, request: StreamRequest, messages: list[Message]) -> None:
        """See Outlet."""
        if self._encoder is not None and (events := self._encoder.encode(messages)):
            self._put(Events(events))
        if visible := shown(request, messages):
            self._put(Chunk(self._to_bytes(visible), len(visible)))

    @property
    def is_full(self) -> bool:
        """See Outlet."""
        return not self._room.is_there

    async def ready(self) -> None:
        """See Outlet."""
        await self._room.wait()


_TO_BYTES: Mapping[str, Callable[[list[Message]], bytes]] = {
    "lines": to_json_lines,
    "frames": to_json_frames,
    "none": lambda messages: b"",
}


class Room:
    """Whether there is room for more."""

    def __init__(self) -> None:
        self.is_there = True
        self._event = asyncio.Event()
        self._event.set()

    def close(self) -> None:
        """No more for now."""
        self.is_there = False
        self._event.clear()

    def open(self) -> None:
        """More, please."""
        self.is_there = True
        self._event.set()

    async def wait(self) -> None:
        """Until there is room."""
        await self._event.wait()


# --- in the process ----------------------------------------------------------------------------------------------------------


class _Server(asyncio.Protocol):
    """The process's end of its socket: commands in, outputs out."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._task: asyncio.Task[None] | None = None
        self._room = Room()
        self.gone = asyncio.Event()

    def put(self, output: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(to_frame(_JOB, output))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=_RESUME_BYTES)  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        self._received += data
        for _, (name, arguments) in take_commands(self._received):
            if name == "start":
                try:
                    self._task = LiveJob(arguments, self.put, self._room).start()
                except Exception as error:
                    self.put(to_failed(error))
            elif self._task is not None:
                self._task.cancel()

    def pause_writing(self) -> None:
        self._room.close()

    def resume_writing(self) -> None:
        self._room.open()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()


class _ToServer(logging.Handler):
    """Log lines go to the server, which knows where to and in what form."""

    def __init__(self, put: Callable[[Logged], None]) -> None:
        super().__init__(logging.INFO)
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = repr(record.exc_info[1])
        self._put(Logged(record.name, record.levelno, record.getMessage(), fields))


async def _serve(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    _, server = await loop.create_connection(_Server, sock=connection)
    logger = logging.getLogger("tardis_machine")
    logger.addHandler(_ToServer(server.put))
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def collect() -> None:
        gc.collect()
        loop.call_later(_COLLECT_EVERY_S, collect)

    gc.freeze()
    gc.disable()
    loop.call_later(_COLLECT_EVERY_S, collect)
    await server.gone.wait()


def main() -> None:
    """Entry point of a live process; the socket to the server is its argument."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    if sys.platform == "win32":
        asyncio.run(_serve(connection))
    else:
        import uvloop

        uvloop.run(_serve(connection))


# --- in the server -----------------------------------------------------------------------------------------------------------


class _Unread:
    """What a live process sent and nobody has taken yet; past a bound, whoever sends is asked to wait."""

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self._items: deque[Output] = deque()
        self._bytes = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, _place: int, output: Any) -> None:
        if isinstance(output, Logged):
            _write_log(output)
            return
        self._items.append(output)
        self._bytes += _size_of(output)
        if self._bytes > _MAX_UNREAD_BYTES and not self._is_paused:
            self._is_paused = True
            self._pause()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, failure: Failed) -> None:
        """The process is gone."""
        self.put(0, failure)

    async def get(self) -> Output:
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        output = self._items.popleft()
        self._bytes -= _size_of(output)
        if self._is_paused and self._bytes <= _RESUME_BYTES:
            self._is_paused = False
            self._resume()
        return output


def _size_of(output: Output) -> int:
    if isinstance(output, Chunk):
        return len(output.data)
    return sum(len(event.value) for event in output.events) if isinstance(output, Events) else 0


def _write_log(line: Logged) -> None:
    logger: Logger = get_logger(line.logger)
    write = {logging.INFO: logger.info, logging.WARNING: logger.warning}.get(line.level, logger.error)
    write(line.message, **line.fields)


class _LiveProcess(ChildProcess):
    """The server's end of one live process."""

    def __init__(self) -> None:
        super().__init__(__name__)
        self.unread = _Unread(self._pause, self._resume)
        self.jobs[_JOB] = self.unread, 0

    def _pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()  # type: ignore[attr-defined]

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()  # type: ignore[attr-defined]

    def start(self, spec: LiveSpec) -> None:
        """Begins."""
        self.command(_JOB, "start", spec)

    def stop(self) -> None:
        """Asks it to end in order: all that was heard comes, and then that it is done."""
        self.command(_JOB, "stop", ())


class _LiveTask:
    """A live request on the server's own event loop: `--workers 0`, for debugging."""

    def __init__(self) -> None:
        self._room = Room()
        self.unread = _Unread(self._room.close, self._room.open)
        self._task: asyncio.Task[None] | None = None

    def start(self, spec: LiveSpec) -> None:
        self._task = LiveJob(spec, lambda output: self.unread.put(0, output), self._room).start()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class LivePool:
    """Live requests that are under way. `in_process` runs them on this event loop."""

    def __init__(self, *, in_process: bool = False, most: int | None = None) -> None:
        self._in_process = in_process
        self._most = most
        self._running = 0
        self._processes: set[_LiveProcess] = set()
        # Processes on their way out.
        self._endings: set[asyncio.Task[Any]] = set()

    @property
    def pids(self) -> list[int]:
        """The processes in use."""
        return [process.process.pid for process in self._processes]

    async def run(self, spec: LiveSpec, stop: asyncio.Event | None = None) -> AsyncGenerator[Chunk | Events, None]:
        """What comes of live requests, until `stop` is set or nobody takes it any more. Raises where it can't go on."""
        if self._running == self._most:
            raise BusyError(f"max-live-requests: {self._most} live requests are under way, which is all that it takes")
        self._running += 1
        runner: _LiveProcess | _LiveTask
        if self._in_process:
            runner = _LiveTask()
        else:
            runner = process = _LiveProcess()
            self._processes.add(process)
        stopping = asyncio.create_task(_stop_when(stop, runner)) if stop is not None else None
        try:
            if isinstance(runner, _LiveProcess):
                await runner.open()
            runner.start(spec)
            while True:
                output = await runner.unread.get()
                if isinstance(output, (Chunk, Events)):
                    yield output
                elif isinstance(output, Failed):
                    if output.traceback:
                        log.error("a live request met an internal error", error=str(output.error), traceback=output.traceback)
                    raise output.error
                else:
                    return
        finally:
            self._running -= 1
            if stopping is not None:
                stopping.cancel()
            self._end(runner)

    def _end(self, runner: _LiveProcess | _LiveTask) -> None:
        """Ends it; nobody waits for that but `stop`."""
        if isinstance(runner, _LiveProcess):
            runner.close()
            self._processes.discard(runner)
            ending = asyncio.create_task(runner.wait(_END_TIMEOUT_S))
        else:
            ending = asyncio.create_task(runner.end())  # type: ignore[arg-type]
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def stop(self) -> None:
        """Waits for those that are ending."""
        await asyncio.gather(*self._endings, return_exceptions=True)


async def _stop_when(stop: asyncio.Event, runner: _LiveProcess | _LiveTask) -> None:
    await stop.wait()
    runner.stop()
