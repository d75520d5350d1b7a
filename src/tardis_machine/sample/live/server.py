"""The simulated exchanges: one server for all of them, each under a path of its own, driven by one market and one clock.

Invariant: what was sent until the market's position is all that the market did until then; the true books say the same.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from aiohttp import web

from ...errors import OptionsError
from ..market import SampleMarket
from ..venues._contract import SECOND
from .broadcast import MINUTE, Topic
from .clock import Clock
from .connection import SimulatedConnection, reset
from .control import add_control_routes
from .families import DEFAULT_EXCHANGES, FAMILIES, Rest
from .misbehaviour import ClockSkew, ErrorFrame, Faults, Misbehaviour, Refuse, Silence, Snapshot
from .subscriptions import Subscriptions
from .venue import LiveVenue

__all__ = ["SentMessage", "SimulatedExchanges"]

DEFAULT_START_US = 1_790_812_800_000_000
"""2026-10-01: where a stepped market starts."""
_TICK_S = 0.005
_STEP = SECOND // 20
_FORGET_MINUTES = 2


class SentMessage(NamedTuple):
    """One message as it left: on a connection (0: the answer to a REST request), at a real time and at the market's."""

    exchange: str
    connection: int
    sent_ns: int
    position_us: int
    message: bytes


class SimulatedExchanges:
    """Exchanges on 127.0.0.1, from `async with` on until its end.

    `speed` is how fast the market runs; None: it stands until `advance`. Rates of messages grow with `activity` and `speed`.
    A stepped market starts at `start_us`, a running one now; one seed and start always give the same messages. Heartbeats and
    time-outs go by real time, `timer_speed` times as fast, or with the steps.
    """

    def __init__(
        self,
        seed: int = 1,
        exchanges: Iterable[str] | None = None,
        *,
        speed: float | None = 1.0,
        activity: float = 1.0,
        start_us: int | None = None,
        timer_speed: float = 1.0,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_sent: int = 200_000,
    ) -> None:
        if start_us is None:
            start_us = DEFAULT_START_US if speed is None else time.time_ns() // 1_000
        self.clock = Clock(start_us, speed, timer_speed)
        self.market = SampleMarket(seed, activity)
        self.sent: deque[SentMessage] = deque(maxlen=keep_sent)
        """What was sent last, in order."""
        self.connections: list[SimulatedConnection] = []
        self.accepted = 0
        """How many connections were made."""
        self._host = host
        self._port = port
        names = DEFAULT_EXCHANGES if exchanges is None else tuple(exchanges)
        self._venues = {name: self._make_venue(name) for name in names}
        self._rests: dict[str, Rest] = {}
        for name, venue in self._venues.items():
            rest = FAMILIES[name].rest
            if rest is not None:
                self._rests[name] = rest(venue)
        self._runner: web.AppRunner | None = None
        self._driver: asyncio.Task[None] | None = None
        self._minute_index = self._prepared_index = 0
        # Set and replaced with every move of the market.
        self._ticked = asyncio.Event()

    def _make_venue(self, name: str) -> LiveVenue:
        family = FAMILIES.get(name)
        if family is None:
            raise OptionsError(f"exchange: expected {', '.join(FAMILIES)}, got '{name}'", "exchange")
        return LiveVenue(family.venue, self.market, self.clock, family.times)

    @property
    def urls(self) -> dict[str, str]:
        """Where each exchange is, in place of its real host; its REST API under `{exchange}-rest`."""
        sockets = {name: f"ws://{self._host}:{self._port}/{name}" for name in self._venues}
        return sockets | {f"{name}-rest": f"http://{self._host}:{self._port}/{name}" for name in self._rests}

    @property
    def control_url(self) -> str:
        """Where another process tells it what to do."""
        return f"http://{self._host}:{self._port}/control"

    def venue(self, exchange: str) -> LiveVenue:
        """One of the exchanges."""
        if exchange not in self._venues:
            raise OptionsError(f"exchange: expected {', '.join(self._venues)}, got '{exchange}'", "exchange")
        return self._venues[exchange]

    def symbols(self, exchange: str) -> list[str]:
        """What an exchange lists now."""
        listed = self.venue(exchange).venue.instruments(self.clock.position // MINUTE)
        return [instrument.symbol for instrument in listed]

    def true_book(self, exchange: str, symbol: str, channel: str | None = None) -> tuple[dict[float, float], dict[float, float]]:
        """Bids and asks, price to amount, best first: what a client has who applied all that was sent until now. Channels differ
        in how often and how deep they tell; without one, the channel that most clients take."""
        return self.venue(exchange).true_book(symbol, channel)

    def misbehave(self, exchange: str, what: Misbehaviour) -> int:
        """Tells an exchange to do something wrong; returns how many open connections it is done to."""
        faults = self.venue(exchange).faults
        if isinstance(what, ClockSkew):
            faults.skew_ms = what.ms
        elif isinstance(what, Refuse | Snapshot) or (isinstance(what, ErrorFrame) and what.instead_of_answers):
            faults.plan(what)
            return 0
        elif isinstance(what, Silence) and what.new_too:
            faults.silent_until_s = float("inf") if what.seconds is None else self.clock.timer_s + what.seconds
        affected = self.open_connections(exchange)
        for connection in affected:
            connection.misbehave(what)
        return len(affected)

    def recover(self, exchange: str) -> None:
        """Makes an exchange behave again, also on connections that are silent."""
        self.venue(exchange).faults = Faults()
        for connection in self.open_connections(exchange):
            connection.recover()

    def open_connections(self, exchange: str) -> list[SimulatedConnection]:
        """Those of one exchange."""
        return [each for each in self.connections if each.exchange == exchange]

    async def advance(self, ms: float) -> None:
        """Moves a stepped market on and sends what it did meanwhile."""
        left = round(ms * SECOND / 1_000)
        while left > 0:
            step = min(left, _STEP)
            left -= step
            await self._pump(self.clock.tick(step))
            # Clients that share this loop get their turn.
            await asyncio.sleep(0)

    def pause(self) -> None:
        """Stops a running market; what it did until now was sent or is on its way."""
        self.clock.pause()

    def resume(self) -> None:
        """Lets it go on."""
        self.clock.resume()

    async def prepare(self, exchange: str, channels: Iterable[str], minutes: int) -> None:
        """Makes what an exchange will send in the next minutes beforehand, as under load there is no time for it. The market
        stands meanwhile."""
        venue, first = self.venue(exchange), self.clock.position // MINUTE
        topics = [(venue, topic) for channel in channels for topic in venue.topics(channel)]
        paused = self.clock.paused
        self.pause()
        for index in range(first, first + minutes):
            await asyncio.to_thread(_make, topics, index)
        if not paused:
            self.resume()

    async def __aenter__(self) -> SimulatedExchanges:
        app = web.Application()
        add_control_routes(app, self)
        app.router.add_get("/{exchange}{path:(/.*)?}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        self._port = self._runner.addresses[0][1]
        if not self.clock.stepped:
            self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._driver is not None:
            self._driver.cancel()
            with suppress(asyncio.CancelledError):
                await self._driver
        await asyncio.gather(*(connection.end() for connection in self.connections))
        assert self._runner is not None
        await self._runner.cleanup()

    async def _drive(self) -> None:
        """Runs the market, and makes the next minute while this one runs."""
        making: asyncio.Task[None] | None = None
        while True:
            await asyncio.sleep(_TICK_S)
            await self._pump(self.clock.tick())
            index = self.clock.position // MINUTE
            if making is not None and making.done():
                making.result()
                making = None
            if making is None and self._prepared_index <= index and self.clock.position % MINUTE > MINUTE // 4:
                self._prepared_index = index + 1
                read = [(each.dialogue.venue, topic) for each in self.connections for topic in each.dialogue.subscriptions.topics]
                making = asyncio.create_task(asyncio.to_thread(_make, read, index + 1))

    async def _pump(self, position: int) -> None:
        for connection in list(self.connections):
            await connection.pump(position)
        ticked, self._ticked = self._ticked, asyncio.Event()
        ticked.set()
        if position // MINUTE > self._minute_index:
            self._minute_index = position // MINUTE
            for venue in self._venues.values():
                venue.broadcast.forget(self._minute_index - _FORGET_MINUTES)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        exchange, path = request.match_info["exchange"], request.match_info["path"] or "/"
        if exchange not in self._venues:
            return web.Response(status=404, text=f"There is no exchange {exchange} here.")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return self._refusal(request, exchange, "socket") or await self._talk(request, exchange, path)
        return self._refusal(request, exchange, "rest") or await self._answer_rest(exchange, path, request.query)

    def _refusal(self, request: web.Request, exchange: str, target: str) -> web.Response | None:
        refusal = self._venues[exchange].faults.take_refusal("socket" if target == "socket" else "rest")
        if refusal is None:
            return None
        if refusal.status is None:
            reset(request)
            return web.Response(status=503)
        headers = {} if refusal.retry_after_s is None else {"Retry-After": str(refusal.retry_after_s)}
        return web.json_response({"code": refusal.status, "msg": "Refused."}, status=refusal.status, headers=headers)

    async def _talk(self, request: web.Request, exchange: str, path: str) -> web.StreamResponse:
        dialogue = FAMILIES[exchange].dialogue
        if not dialogue.serves(path):
            return web.Response(status=404, text=f"There is no socket at {path}.")
        connection = SimulatedConnection(request, dialogue(Subscriptions(self._venues[exchange]), path, request.query), self._log)
        self.accepted += 1
        self.connections.append(connection)
        try:
            return await connection.talk()
        finally:
            self.connections.remove(connection)

    async def _answer_rest(self, exchange: str, path: str, query: Mapping[str, str]) -> web.Response:
        rest = self._rests.get(exchange)
        if rest is None:
            return web.Response(status=404, text=f"There is nothing at {path}.")
        answer = rest.answer(path, query)
        due_s = self.clock.timer_s + answer.late_s
        while self.clock.timer_s < due_s:
            await self._ticked.wait()
        body = answer.body.encode()
        self.sent.append(SentMessage(exchange, 0, time.time_ns(), self.clock.now_us, body))
        return web.Response(body=body, status=answer.status, headers=answer.headers, content_type="application/json")

    def _log(self, connection: SimulatedConnection, messages: list[bytes]) -> None:
        if self.sent.maxlen:
            head = (connection.exchange, connection.identity, time.time_ns(), self.clock.now_us)
            self.sent.extend([SentMessage(*head, message) for message in messages])


def _make(topics: Iterable[tuple[LiveVenue, Topic]], index: int) -> None:
    for venue, topic in topics:
        venue.broadcast.rows(topic, index)
