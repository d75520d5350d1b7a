"""One replay as its clients see it: what leaves when, and what they may do about it.

Invariant: what is made is sent in its order, each instant when the clock says so. A control takes effect at the next instant, and a
wrong one changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from math import inf
from operator import itemgetter
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..errors import OptionsError, PausedError, TardisMachineError
from ..messages import to_timestamp
from ..pipeline.playback import agreed_playback, speed_to_json
from ..pipeline.request import NormalizedRequest, RawRequest
from ..processes.jobs.contract import Chunk, Events, ReplaySpec
from ..processes.steering import Steering
from ..telemetry import PLAYER_LATE_SECONDS
from .clock import PlayerClock
from .control import Control
from .rate import MessageRate
from .shown_request import MOST_SHOWN, shown_request

if TYPE_CHECKING:
    from ..bronze.event import Event

__all__ = ["Player", "SoughtError"]

DAY_US = 86_400_000_000
MINUTE_US = 60_000_000
ID_BYTES = 16


class SoughtError(TardisMachineError):
    """The client went elsewhere in its replay: what is played ends here."""


class Player:
    """Plays the parts of one replay, one after the other: the first from its start, each other from where a seek led.

    `clients` counts those that it plays to. `max_pause_s` is how long it may be paused without a word; None: for ever.
    """

    def __init__(
        self,
        route: str,
        requests: Sequence[RawRequest] | Sequence[NormalizedRequest],
        *,
        clients: Callable[[], int] = lambda: 1,
        max_pause_s: float | None = None,
    ) -> None:
        self.id = token_urlsafe(ID_BYTES)
        self.route = route
        self._request_count = len(requests)
        self._shown = [shown_request(request) for request in requests[:MOST_SHOWN]]
        self.playback = agreed_playback([request.playback for request in requests])
        self._clients = clients
        self._max_pause_s = max_pause_s
        self._loop = asyncio.get_running_loop()
        self._from_us = min(request.from_us for request in requests)
        self._to_us = max(request.to_us for request in requests)
        self._clock = PlayerClock(inf if self.playback.speed is None else self.playback.speed, self._from_us)
        self._rate = MessageRate(self._loop.time())
        # Whether instants matter: until then chunks leave whole.
        self._is_cut = self.playback.is_paced
        self._has_compression = False
        # Where to go on, once a client has asked for it.
        self._sought_us: int | None = None
        # Whether what is played has not begun to arrive.
        self._is_seeking = False
        self._steps = 0
        self._heard_s = self._loop.time()
        # Done when a client has said something.
        self._change: asyncio.Future[None] = self._loop.create_future()
        # What runs, while something does.
        self._steering: Steering | None = None
        # Events that wait for their instant.
        self._events: deque[Event] = deque()
        self._late = PLAYER_LATE_SECONDS.labels(route)

    def status(self) -> dict[str, Any]:
        """What it does, as JSON."""
        now_s = self._loop.time()
        is_seeking = self._is_seeking or self._sought_us is not None
        return {
            "id": self.id,
            "route": self.route,
            "request": self._shown,
            "requestCount": self._request_count,
            "from": to_timestamp(self._from_us),
            "to": to_timestamp(self._to_us),
            "position": to_timestamp(min(self._position_us(now_s), self._to_us)),
            "speed": speed_to_json(self._clock.speed),
            "paused": self._clock.is_paused,
            "state": "seeking" if is_seeking else "paused" if self._clock.is_paused else "playing",
            "steps": self._steps,
            "clients": self._clients(),
            "messages": self._rate.total,
            "messagesPerSecond": round(self._rate.per_second(now_s), 1),
        }

    def _position_us(self, now_s: float) -> int:
        return self._clock.position_us(now_s) if self._sought_us is None else self._sought_us

    def obey(self, control: Control) -> None:
        """Does as it is told; OptionsError where that can't be."""
        now_s = self._loop.time()
        match control.name:
            case "pause":
                self._clock.pause(now_s)
            case "resume":
                self._steps = 0
                self._clock.resume(now_s)
            case "speed":
                self._clock.set_speed(now_s, control.speed)
                self._cut()
            case "step":
                self._clock.pause(now_s)
                self._steps += control.count
                self._cut()
            case "seek":
                self._seek(control.to_us)
        if control.name != "status":
            self._heard_s = now_s
            if not self._change.done():
                self._change.set_result(None)

    def _seek(self, to_us: int) -> None:
        if not self._from_us <= to_us < self._to_us:
            span = f"from {to_timestamp(self._from_us)} to before {to_timestamp(self._to_us)}"
            raise OptionsError(f"to: expected a time of the request, {span}, got {to_timestamp(to_us)}", "to")
        if self._has_compression:
            raise OptionsError("to: a compressed answer or one of Arrow can't go elsewhere; ask for neither", "to")
        self._steps = 0
        self._sought_us = to_us
        self._interrupt()

    def _interrupt(self) -> None:
        """What is not there yet is not waited for."""
        if self._steering is not None and self._sought_us is not None:
            self._steering.fail(self._sought())

    def _cut(self) -> None:
        """Has instants matter, where they did not."""
        if not self._is_cut:
            self._is_cut = True
            if self._steering is not None:
                self._steering.command("cut")

    def attach(self, steering: Steering) -> None:
        """From now on this is what runs."""
        self._steering = steering
        self._interrupt()
        if self._is_cut:
            steering.command("cut")

    def part(self, whole: ReplaySpec) -> ReplaySpec:
        """What is to be played next of a replay: all of it, or from where a client wants to be."""
        faults = self.playback.faults
        sought_us, self._sought_us, self._steering = self._sought_us, None, None
        self._events.clear()
        self._has_compression = whole.compression is not None or whole.form == "arrow"
        if sought_us is None:
            return replace(whole, is_cut=self._is_cut, faults=faults)
        self._is_seeking = self._is_cut = True
        self._clock.seek(sought_us)
        # Exchanges tell their books at the start of a day; faults are drawn by the minute.
        lead_us = MINUTE_US if whole.is_raw else DAY_US
        start_us = sought_us - sought_us % lead_us
        requests: Any = [
            replace(request, from_us=min(start_us if request.from_us < sought_us else request.from_us, request.to_us))
            for request in whole.requests
        ]
        return replace(whole, requests=requests, is_cut=True, faults=faults, opening_us=sought_us)

    async def play(self, outputs: AsyncGenerator[Chunk | Events, None]) -> AsyncGenerator[Chunk | Events, None]:
        """Outputs of a part, when they are due. SoughtError where a client wants to be elsewhere; PausedError where it forgot its pause."""
        async with aclosing(outputs):
            async for output in outputs:
                self._go_elsewhere()
                if isinstance(output, Events):
                    if not self.playback.pace_events:
                        yield output
                    else:
                        self._events.extend(output.events)
                    continue
                self._is_seeking = False
                self._clock.start(self._loop.time())
                released = self._release_moments(output) if output.moments else self._release(output)
                async with aclosing(released):
                    async for due in released:
                        yield due
            await self._until_not_held()
            if self._events:
                yield Events(list(self._events))

    async def _until_not_held(self) -> None:
        """Waits while it is paused at its end: its client may go elsewhere yet. Whoever steps past the end has seen it all."""
        self._is_seeking = False
        self._go_elsewhere()
        while self._clock.is_paused and not self._steps:
            await self._heard(self._end_of_pause_s(self._loop.time()))
            self._go_elsewhere()

    async def _heard(self, until_s: float) -> None:
        """Waits for a client to say something, or until then."""
        if self._change.done():
            self._change = self._loop.create_future()
        await asyncio.wait((self._change,), timeout=None if until_s == inf else until_s - self._loop.time())

    def _go_elsewhere(self) -> None:
        if self._sought_us is not None:
            raise self._sought()

    def _sought(self) -> SoughtError:
        return SoughtError(f"its client went to {to_timestamp(self._sought_us or 0)}")

    async def _release(self, chunk: Chunk) -> AsyncGenerator[Chunk | Events, None]:
        """A chunk that is not cut, whole."""
        await self._until_due(chunk.reached_us)
        if due := self._take_events(chunk.reached_us):
            yield Events(due)
        self._rate.count(self._loop.time(), chunk.messages)
        yield chunk

    async def _release_moments(self, chunk: Chunk) -> AsyncGenerator[Chunk | Events, None]:
        """A chunk by its instants; those that are due together leave together."""
        moments, place = chunk.moments, 0
        if self._clock.due_s(moments[0][0]) > self._loop.time():
            yield Chunk(b"", 0)  # so that whoever waits for a sign of life has one
        while place < len(moments):
            instant_us = moments[place][0]
            await self._until_due(instant_us)
            now_s = self._loop.time()
            end = len(moments) if self._clock.is_free else place + 1
            while end < len(moments) and self._clock.due_s(moments[end][0]) <= now_s:
                end += 1
            reached_us = max(instant_us, moments[end - 1][0])
            self._clock.reach(now_s, reached_us)
            if due := self._take_events(reached_us):
                yield Events(due)
            for piece in _pieces(chunk, place, end, reached_us):
                self._rate.count(now_s, piece.messages)
                yield piece
            place = end

    def _take_events(self, until_us: int) -> list[Event]:
        taken: list[Event] = []
        while self._events and self._events[0].local_ts_us <= until_us:
            taken.append(self._events.popleft())
        return taken

    async def _until_due(self, instant_us: int) -> None:
        """Waits until an instant may be sent."""
        clock = self._clock
        while True:
            self._go_elsewhere()
            now_s = self._loop.time()
            due_s = clock.due_s(instant_us)
            if due_s > now_s and clock.is_paused and self._steps:
                self._steps -= 1
                clock.step(instant_us)
                return
            if due_s <= now_s:
                if due_s != -inf:
                    self._late.observe(now_s - due_s)
                clock.reach(now_s, instant_us)
                return
            if clock.is_paused:
                due_s = self._end_of_pause_s(now_s)
            await self._heard(due_s)

    def _end_of_pause_s(self, now_s: float) -> float:
        if self._max_pause_s is None:
            return inf
        if now_s >= self._heard_s + self._max_pause_s:
            raise PausedError(f"max-pause: this replay was paused for {self._max_pause_s:g} s without a word, and has ended")
        return self._heard_s + self._max_pause_s


_owner_of = itemgetter(3)
_ONE_OWNER = frozenset({0})


def _pieces(chunk: Chunk, place: int, end: int, reached_us: int) -> list[Chunk]:
    """The moments of a chunk from one place to another: a piece for each request."""
    moments = chunk.moments
    if place == 0 and end == len(moments) and _ONE_OWNER.issuperset(map(_owner_of, moments)):
        return [chunk]
    data = memoryview(chunk.data)
    start = moments[place - 1][1] if place else 0
    if len({moment[3] for moment in moments[place:end]}) == 1:
        messages = sum(moment[2] for moment in moments[place:end])
        return [Chunk(data[start : moments[end - 1][1]], messages, moments[place][3], reached_us)]
    parts: dict[int, list[memoryview]] = {}
    counts: dict[int, int] = {}
    for _, stop, messages, request in moments[place:end]:
        parts.setdefault(request, []).append(data[start:stop])
        counts[request] = counts.get(request, 0) + messages
        start = stop
    return [Chunk(b"".join(part), counts[request], request, reached_us) for request, part in parts.items()]
