"""Replays that go on live, one in a process: history and live data in, finished bytes and events out.

Invariant: what is put is in the order in which it is told. History and what is heard are published as a session each; it can be seen of an
event which of them it belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...history.client import HistoryClient
from ...messages import Message
from ...pipeline.frames import MESSAGES_TO_BYTES
from ...pipeline.portions import PLAIN_WEIGHT, in_portions
from ...pipeline.recorded import RecordedHistory
from ...pipeline.recording import open_recorder
from ...pipeline.since import SinceReplays
from ..worker import serve
from . import Put
from .contract import Chunk, Done, Events, Output, SinceSpec, to_failed

if TYPE_CHECKING:
    from ...bronze.encoding import BronzeEncoder

__all__ = ["SinceJobs", "main"]


class SinceJob:
    """Runs a SinceSpec; waits while `has_room` is not set."""

    def __init__(self, number: int, spec: SinceSpec, put: Put, has_room: asyncio.Event) -> None:
        self._number = number
        self._spec = spec
        self._put = put
        self._has_room = has_room
        self._to_bytes: Callable[[Sequence[Message]], bytes]
        if spec.form == "arrow":
            # Nothing of Arrow is loaded where none is asked for.
            from ...pipeline.arrow_stream import ArrowStream

            stream = ArrowStream([request.live for request in spec.requests])
            self._tell(Chunk(stream.head, 0))
            self._to_bytes = stream.write
        else:
            self._to_bytes = MESSAGES_TO_BYTES[spec.form]
        self._replays: SinceReplays | None = None
        self._is_live = False
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(self._conclude)

    def stop(self) -> None:
        """Ends it in order: all that was heard is put before its end. What is still replayed is cut off."""
        if self._replays is None or not self._is_live:
            self.task.cancel()
        else:
            self._replays.stop()

    def _conclude(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self._tell(to_failed(error) if isinstance(error, Exception) else Done())

    def _tell(self, output: Output) -> None:
        self._put(self._number, output)

    async def _run(self) -> None:
        spec = self._spec
        found = {} if spec.record_dir is None else {"find_recorded": RecordedHistory(Path(spec.record_dir)).find}
        recorders = [None if spec.record_dir is None else open_recorder(spec.record_dir, each.live) for each in spec.requests]
        try:
            async with (
                HistoryClient(spec.api_url, spec.api_key, spec.cache_dir, **(found | dict(spec.history))) as client,
                SinceReplays(
                    spec.requests,
                    client,
                    urls=spec.urls,
                    credentials=spec.credentials,
                    timings=spec.timings,
                    recorders=recorders,
                ) as replays,
            ):
                self._replays = replays
                await self._pass(replays.history(), None if spec.publish is None else spec.publish.make_encoder())
                self._is_live = True
                await self._pass(replays.live(), None if spec.publish_live is None else spec.publish_live.make_encoder())
        finally:
            for recorder in recorders:
                if recorder is not None:
                    recorder.close()

    async def _pass(self, source: AsyncGenerator[list[Message], None], encoder: BronzeEncoder | None) -> None:
        assert self._replays is not None
        async with aclosing(source):
            async for messages in source:
                for part in in_portions(messages, PLAIN_WEIGHT):
                    await self._has_room.wait()
                    if encoder is not None:
                        self._tell(Events(encoder.encode(part)))
                    if shown := self._replays.shown(part):
                        self._tell(Chunk(self._to_bytes(shown), len(shown)))


class SinceJobs:
    """See Jobs."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._jobs: dict[int, SinceJob] = {}
        self._has_room = asyncio.Event()
        self._has_room.set()

    def obey(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        """See Jobs."""
        if name == "start":
            [spec] = arguments
            self._jobs[number] = SinceJob(number, spec, self._put, self._has_room)
        elif number in self._jobs:
            job = self._jobs[number]
            if name == "cancel":
                job.task.cancel()
            else:
                getattr(job, name)(*arguments)

    def pause(self) -> None:
        """See Jobs."""
        self._has_room.clear()

    def resume(self) -> None:
        """See Jobs."""
        self._has_room.set()

    async def wait(self) -> None:
        """See Jobs."""
        await asyncio.gather(*(job.task for job in self._jobs.values()), return_exceptions=True)


def main() -> None:
    """A child process that replays, and goes on live."""
    serve(SinceJobs)
