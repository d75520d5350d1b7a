"""Live requests in one process: what connections hear becomes finished bytes and events.

Invariant: what is put is in the order in which it was heard, and the last of it is how the job ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from ...messages import Message
from ...pipeline.frames import MESSAGES_TO_BYTES
from ...pipeline.recording import open_recorder
from ...pipeline.request import StreamRequest
from ...pipeline.stream import LiveStream, shown
from ..worker import serve
from . import Put
from .contract import Chunk, Done, Events, LiveSpec, Output, to_failed

__all__ = ["LiveJobs", "main"]


class LiveJob:
    """Runs a LiveSpec: an Outlet of its stream, whose messages go to `put`. Listening pauses while `has_room` is not set."""

    def __init__(self, spec: LiveSpec, put: Callable[[Output], None], has_room: asyncio.Event) -> None:
        self._put = put
        self._has_room = has_room
        self._to_bytes = MESSAGES_TO_BYTES[spec.form]
        self._encoder = None if spec.publish is None else spec.publish.make_encoder()
        self._recorder = None if spec.record_dir is None else open_recorder(spec.record_dir, spec.requests)
        self._stream = LiveStream(spec.requests, self, urls=spec.urls, timings=spec.timings, record=self._recorder)

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
        return not self._has_room.is_set()

    async def ready(self) -> None:
        """See Outlet."""
        await self._has_room.wait()


class LiveJobs:
    """See Jobs. Each runs as a task of the event loop; `stop` ends one in order, so that all that was heard is put before its end."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._has_room = asyncio.Event()
        self._has_room.set()

    def obey(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        """See Jobs."""
        if name == "start":
            [spec] = arguments
            try:
                self._tasks[number] = LiveJob(spec, partial(self._put, number), self._has_room).start()
            except Exception as error:
                self._put(number, to_failed(error))
        elif number in self._tasks:
            self._tasks[number].cancel()

    def pause(self) -> None:
        """See Jobs."""
        self._has_room.clear()

    def resume(self) -> None:
        """See Jobs."""
        self._has_room.set()

    async def wait(self) -> None:
        """See Jobs."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def main() -> None:
    """A child process that serves live requests."""
    serve(LiveJobs)
