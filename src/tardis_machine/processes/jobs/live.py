"""A live stream in a process of its own: what connections hear becomes events once, and finished bytes once for each view.

Invariant: what is put is in the order in which it was heard, and the last of it is how the job ended. However many views show a data
type, one of them is published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ...messages import BookChange, Disconnect, ErrorMessage, Message
from ...pipeline.current_state import CurrentState
from ...pipeline.frames import MESSAGES_TO_BYTES
from ...pipeline.portions import in_portions
from ...pipeline.recording import open_recorder
from ...pipeline.stream import LiveStream
from ...pipeline.topics import LiveTopic
from ...pipeline.view import View
from ...realtime.clock import recorded_now
from ...recorded_line import to_clock
from ..worker import serve
from . import Put
from .contract import Chunk, Done, Events, Greeting, Hearing, LiveSpec, Output, ViewSpec, to_failed
from .publication import CONTROL, LivePublication

if TYPE_CHECKING:
    from ...bronze.event import Event

__all__ = ["LiveJobs", "main"]


class _WrittenView:
    """A view as its clients get it: messages in, finished bytes out."""

    def __init__(self, spec: ViewSpec) -> None:
        self.spec = spec
        self.data_types = frozenset(spec.request.data_types) | CONTROL
        # Of these, what no earlier view publishes; None: all.
        self.published: frozenset[str] | None = None
        self._view = View(spec.request)
        self._to_bytes = MESSAGES_TO_BYTES[spec.form]
        self.feed = self._view.feed
        self.weight = self._view.weight

    def write(self, messages: list[Message]) -> Chunk | None:
        """What clients see of what came of the view; None: nothing."""
        shown = self._view.shown(messages)
        return Chunk(self._to_bytes(shown), len(shown)) if shown else None

    def greet(self, states: dict[int, CurrentState]) -> Chunk | None:
        """What a newcomer sees first. Only of a view that was fed nothing yet."""
        return self.write([m for connection, state in states.items() for m in self.feed(connection, state.messages())])


class LiveJob:
    """Runs a LiveSpec: an Outlet of its stream. Listening pauses while `has_room` is not set.

    What is said of the stream, and its events, are put under the number of the job; chunks under the numbers of views.
    """

    def __init__(self, number: int, spec: LiveSpec, put: Put, has_room: asyncio.Event) -> None:
        self._number = number
        self._put = put
        self._has_room = has_room
        self._recorder = None if spec.record_dir is None else open_recorder(spec.record_dir, spec.request)
        self._stream = LiveStream(
            spec.request, self, urls=spec.urls, timings=spec.timings, record=self._recorder, credentials=spec.credentials
        )
        # By number, in the order in which they came.
        self._views: dict[int, _WrittenView] = {}
        # By the number of a connection.
        self._states = {connection: CurrentState() for connection in range(self._stream.connections)}
        # Connections that have brought data since they were made.
        self._heard: set[int] = set()
        self._publication = None if spec.publish is None else LivePublication(spec.publish)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Runs until it is stopped, or meets a fault of our own; either is the last that is put."""
        self._task = asyncio.create_task(self._stream.run())
        self._task.add_done_callback(self._conclude)

    def stop(self) -> None:
        """Ends it in order, so that all that was heard is put before its end."""
        if self._task is not None:
            self._task.cancel()

    async def wait(self) -> None:
        """Returns when it has ended."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _conclude(self, task: asyncio.Task[None]) -> None:
        if self._recorder is not None:
            self._recorder.close()
        error = None if task.cancelled() else task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self._tell(to_failed(error) if isinstance(error, Exception) else Done())

    def _tell(self, output: Output) -> None:
        self._put(self._number, output)

    def _publish(self, events: Sequence[Event]) -> None:
        if events:
            self._tell(Events(events))

    def show(self, number: int, spec: ViewSpec) -> None:
        """Adds a view, which begins with what the stream knows by now."""
        view = self._views[number] = _WrittenView(spec)
        if chunk := view.greet(self._states):
            self._put(number, chunk)
        self._share_out()

    def hide(self, number: int) -> None:
        """Ends a view."""
        del self._views[number]
        self._share_out()

    def greet(self, number: int, client: int) -> None:
        """Puts what one more client of a view has to know."""
        chunk = _WrittenView(self._views[number].spec).greet(self._states) or Chunk(b"", 0)
        self._put(number, Greeting(client, bytes(chunk.data), chunk.messages))

    def withhold(self, topics: frozenset[LiveTopic]) -> None:
        """Another stream publishes these, and no others."""
        if self._publication is not None:
            self._publish(self._publication.withhold(topics, self._books()))

    def _books(self) -> list[BookChange]:
        """The books as they are now: for whoever reads the bus, after all that was published of them until now."""
        now = to_clock(recorded_now())
        return [structs.replace(book, local_timestamp=now) for state in self._states.values() for book in state.books()]

    def _share_out(self) -> None:
        """Each data type is published by the first view that shows it."""
        taken: frozenset[str] = frozenset()
        for view in self._views.values():
            view.published = view.data_types - taken if taken else None
            taken |= view.data_types
        if self._publication is not None:
            self._publish(self._publication.set_data_types(taken, self._books()))

    def deliver(self, connection: int, messages: list[Message]) -> None:
        """See Outlet."""
        self._states[connection].take(messages)
        self._note(connection, messages[-1])
        for number, view in self._views.items():
            for portion in in_portions(messages, view.weight):
                seen = view.feed(connection, portion)
                if self._publication is not None:
                    self._publish(self._publication.events(seen, view.published))
                if chunk := view.write(seen):
                    self._put(number, chunk)

    def _note(self, connection: int, last: Message) -> None:
        """Tells when all connections bring data, and when one of them no longer does."""
        is_lost = isinstance(last, Disconnect)
        if isinstance(last, ErrorMessage) or (connection in self._heard) is not is_lost:
            return
        was_complete = len(self._heard) == len(self._states)
        self._heard ^= {connection}
        is_complete = len(self._heard) == len(self._states)
        if is_complete is not was_complete:
            self._tell(Hearing(is_complete))

    @property
    def is_full(self) -> bool:
        """See Outlet."""
        return not self._has_room.is_set()

    async def ready(self) -> None:
        """See Outlet."""
        await self._has_room.wait()


class LiveJobs:
    """See Jobs."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._jobs: dict[int, LiveJob] = {}
        self._has_room = asyncio.Event()
        self._has_room.set()

    def obey(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        """See Jobs."""
        if name == "start":
            [spec] = arguments
            try:
                job = LiveJob(number, spec, self._put, self._has_room)
            except Exception as error:
                self._put(number, to_failed(error))
            else:
                self._jobs[number] = job
                job.start()
        elif number in self._jobs:
            getattr(self._jobs[number], "stop" if name == "cancel" else name)(*arguments)

    def pause(self) -> None:
        """See Jobs."""
        self._has_room.clear()

    def resume(self) -> None:
        """See Jobs."""
        self._has_room.set()

    async def wait(self) -> None:
        """See Jobs."""
        await asyncio.gather(*(job.wait() for job in self._jobs.values()))


def main() -> None:
    """A child process that keeps up a live stream."""
    serve(LiveJobs)
