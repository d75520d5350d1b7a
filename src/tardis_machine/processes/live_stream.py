"""A live stream as the server sees it: one process, one session, and clients that come and go.

Invariant: the process hears what is asked for once, however many clients there are. A process that dies is started again, and its
clients stay. What nobody listens to any more ends after a short while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from ..errors import TardisMachineError, WorkerError
from ..messages import UNSET, Disconnect
from ..pipeline.frames import MESSAGES_TO_BYTES
from ..pipeline.topics import LiveTopic, topics_of
from ..realtime.clock import recorded_now
from ..recorded_line import to_clock
from ..telemetry import get_logger
from .claims import Claimant
from .feed_health import FeedHealth
from .jobs.contract import (
    Chunk,
    Done,
    Events,
    Failed,
    Greeting,
    Hearing,
    LiveSpec,
    News,
    Output,
    PublishSpec,
    ViewSpec,
    to_failed,
)
from .output_queue import OutputQueue
from .runner import Executor, RunningJob

__all__ = ["Hold", "Publish", "SharedStream"]

log = get_logger("live")

# The number of the stream's own job; views follow.
_STREAM = 1
# The pause before a process that died is started again; it doubles each time, unless the process ran for a while.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0

Publish = Callable[[PublishSpec, AsyncIterable[Events]], Coroutine[Any, Any, None]]
"""Publishes a session: all events until they end."""


@dataclass(eq=False)
class SharedView:
    """What clients get that see the same: an OutputSink, which passes on what it is given."""

    number: int
    spec: ViewSpec
    topics: frozenset[LiveTopic]
    health: FeedHealth
    """Of its stream."""
    clients: dict[int, OutputQueue] = field(default_factory=dict)
    newcomers: dict[int, OutputQueue] = field(default_factory=dict)
    """Clients that wait for their greeting."""
    ending: asyncio.TimerHandle | None = None
    """Ends it, once it has no clients."""

    def put(self, output: Output) -> None:
        """Passes chunks on. How the stream ended is told by the stream."""
        if isinstance(output, Chunk):
            self.health.count(output.messages)
            for queue in self.clients.values():
                queue.put(output)
        elif isinstance(output, Greeting) and (newcomer := self.newcomers.pop(output.client, None)):
            self.clients[output.client] = newcomer
            if output.messages:
                newcomer.put(Chunk(output.data, output.messages))

    @property
    def queues(self) -> list[OutputQueue]:
        """Of all clients."""
        return [*self.clients.values(), *self.newcomers.values()]


class Hold:
    """A Pausable: has some streams wait while it is paused."""

    def __init__(self, streams: Sequence[SharedStream]) -> None:
        self._streams = streams

    def pause(self) -> None:
        """See Pausable."""
        for stream in self._streams:
            stream.pause(self)

    def resume(self) -> None:
        """See Pausable."""
        for stream in self._streams:
            stream.resume(self)


class SharedStream:
    """One stream and its clients. Runs from its first client on until `stop`, or until the last has been gone for a while.

    `make_spec` is asked for each process, `changed` called whenever claims or the state of connections may have changed, `ended` when
    no more clients can join.
    """

    def __init__(
        self,
        exchange: str,
        make_spec: Callable[[], LiveSpec],
        make_executor: Callable[[], Executor],
        publish: Publish,
        *,
        linger_s: float,
        changed: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._exchange = exchange
        self._make_spec = make_spec
        self._make_executor = make_executor
        self._publish = publish
        self._linger_s = linger_s
        self._changed = changed
        self._ended = ended
        # By the key of their specification.
        self._views: dict[Hashable, SharedView] = {}
        self._numbers = count(_STREAM + 1)
        # Of the process at hand: where it runs, once it does; and what it was told not to publish.
        self._executor: Executor | None = None
        self._withheld: frozenset[LiveTopic] = frozenset()
        self.health = FeedHealth()
        # Who has it wait.
        self._holds: set[Hold] = set()
        self._stopping = asyncio.Event()
        self.task = asyncio.create_task(self._run())
        """Done when all that was heard is with clients and publisher."""

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return None if self._executor is None else self._executor.pid

    @property
    def symbols(self) -> list[str]:
        """What its clients asked for; none of them where somebody asked for all."""
        asked = [view.spec.request.symbols for view in self._views.values()]
        return sorted({symbol for symbols in asked for symbol in symbols or ()}) if all(asked) else []

    @property
    def clients(self) -> int:
        """How many listen."""
        return sum(len(view.queues) for view in self._views.values())

    @property
    def claimant(self) -> Claimant:
        """What it hears, and for whom."""
        views = self._views.values()
        claimed = frozenset(topic for view in views if view.ending is None for topic in view.topics)
        lingering = frozenset(topic for view in views if view.ending is not None for topic in view.topics)
        return Claimant(claimed, lingering, self.health.is_hearing, self._withheld)

    def join(self, spec: ViewSpec, queue: OutputQueue) -> Callable[[], None]:
        """Has a queue get all that is seen of the stream from now on: first, what holds of what was told before.

        What is returned is called when the client leaves.
        """
        view, client = self._views.get(spec.key), next(self._numbers)
        if view is None:
            view = SharedView(next(self._numbers), spec, topics_of(spec.request), self.health)
            view.clients[client] = queue
            self._views[spec.key] = view
            if self._executor is not None:
                self._show(self._executor, view)
            self._changed()
        else:
            view.newcomers[client] = queue
            self._command("greet", view.number, client)
            if view.ending is not None:
                view.ending.cancel()
                view.ending = None
                self._changed()
        return partial(self._leave, view, client)

    def _leave(self, view: SharedView, client: int) -> None:
        view.clients.pop(client, None)
        view.newcomers.pop(client, None)
        if not view.queues and not self._stopping.is_set():
            view.ending = asyncio.get_running_loop().call_later(self._linger_s, self._end_view, view)
            self._changed()

    def _end_view(self, view: SharedView) -> None:
        del self._views[view.spec.key]
        if self._views:
            self._command("hide", view.number)
            if self._executor is not None:
                self._executor.queues.pop(view.number, None)
            self._changed()
        else:
            self.stop()

    def withhold(self, topics: frozenset[LiveTopic]) -> None:
        """Another stream publishes these, and no others."""
        if topics != self._withheld:
            self._withheld = topics
            self._command("withhold", topics)

    def pause(self, hold: Hold) -> None:
        """Waits until this and every other hold is resumed."""
        self._holds.add(hold)
        if self._executor is not None:
            self._executor.pause()

    def resume(self, hold: Hold) -> None:
        """Goes on, unless it is held by another."""
        self._holds.discard(hold)
        if self._executor is not None and not self._holds:
            self._executor.resume()

    def stop(self) -> None:
        """Hears no more. What was heard still goes to clients and publisher."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._ended()
            self._command("stop")

    def _command(self, name: str, *arguments: Any) -> None:
        if self._executor is not None:
            self._executor.command(_STREAM, name, *arguments)

    def _show(self, executor: Executor, view: SharedView) -> None:
        executor.attach(view.number, view)
        executor.command(_STREAM, "show", view.number, view.spec)

    async def _run(self) -> None:
        last: Done | Failed = Done()
        try:
            await self._keep_running()
        except Exception as error:
            if not isinstance(error, TardisMachineError):
                log.exception("a live request met an internal error", cause=error)
            last = to_failed(error)
        finally:
            self._stopping.set()
            for view in self._views.values():
                if view.ending is not None:
                    view.ending.cancel()
                for queue in view.queues:
                    queue.put(last)
            self._ended()

    async def _keep_running(self) -> None:
        """A process after the other, until it is stopped; raises where the first can't be started, or the request is wrong."""
        pause_s = _FIRST_PAUSE_S
        has_run = False
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                executor = self._start_process()
                has_run = True
                await self._run_process(executor)
                return
            except WorkerError as error:
                if not has_run:
                    raise
                if time.monotonic() - began_s > _LONGEST_PAUSE_S:
                    pause_s = _FIRST_PAUSE_S
                log.error("a stream failed and is started again", exchange=self._exchange, error=str(error), pause_s=pause_s)
                self._tell_lost(str(error))
            try:
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            except TimeoutError:
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _start_process(self) -> Executor:
        try:
            return self._make_executor()
        except OSError as error:
            raise WorkerError(f"a live process can't be started: {error.strerror}") from error

    async def _run_process(self, executor: Executor) -> None:
        spec = self._make_spec()
        unpublished = Hold([self])
        try:
            await executor.open()
            with RunningJob(executor, _STREAM, spec, OutputQueue(unpublished, self._take_news)) as job:
                self._executor = executor
                self._command("withhold", self._withheld)
                for view in self._views.values():
                    # From its first message on, everyone gets everything.
                    view.clients |= view.newcomers
                    view.newcomers.clear()
                    self._show(executor, view)
                if self._holds:
                    executor.pause()
                if self._stopping.is_set():
                    self._command("stop")
                if spec.publish is None:
                    async for _ in job:
                        pass
                else:
                    await self._publish(spec.publish, _events_of(job))
        finally:
            self._executor = None
            self.health.note_hearing(False)
            self._holds.discard(unpublished)
            self._changed()
            executor.close()
            await executor.wait()

    def _take_news(self, news: News) -> None:
        if isinstance(news, Hearing):
            self.health.note_hearing(news.is_complete)
            self._changed()

    def _tell_lost(self, reason: str) -> None:
        """Tells who asked for it that a while is missing; what is published says so with the end of its session."""
        for view in self._views.values():
            request = view.spec.request
            if request.with_disconnect_messages:
                symbols = UNSET if request.symbols is None else list(request.symbols)
                lost = Disconnect(request.exchange, to_clock(recorded_now()), symbols, reason)
                view.put(Chunk(MESSAGES_TO_BYTES[view.spec.form]([lost]), 1))


async def _events_of(job: RunningJob) -> AsyncIterable[Events]:
    async for output in job:
        assert isinstance(output, Events)
        yield output
