"""The real client against simulated exchanges that misbehave: after whatever they do, the book is the market's true one, each gap is
announced, nothing is reported that did not happen, and a replay of what was recorded says the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from tardis_machine import stream_normalized
from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.exchanges import EXCHANGES
from tardis_machine.messages import BookChange, Disconnect, ErrorMessage, Message
from tardis_machine.pipeline.replay import NormalizedReplay
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.realtime.backoff import Timings
from tardis_machine.sample.live import (
    ClockSkew,
    Close,
    DropUpdates,
    ErrorFrame,
    Garbage,
    HalfFrame,
    Misbehaviour,
    Refuse,
    Reset,
    Silence,
    SimulatedExchanges,
    Snapshot,
)
from tardis_machine.sample.live.families import DEFAULT_EXCHANGES

TIMINGS = Timings(first_s=0.02, most_s=0.1, limited_s=0.05, most_limited_s=0.1, close_timeout_s=0.1, refetch_s=0.05)
STALE_S = 0.6
TYPES = ["trade", "book_change", "trade_bar_10ticks"]


@dataclass(frozen=True)
class Case:
    """What to listen to."""

    exchange: str
    symbol: str
    channel: str | None = None
    """The channel of the book that live clients get."""
    connections: int = 1
    is_numbered: bool = True
    """Whether a missing update can be noticed."""
    dropped: int = 2


CASES = [
    Case("bitmex", "XBTUSD", is_numbered=False),
    Case("binance", "BTCUSDT"),
    Case("binance-futures", "BTCUSDT"),
    Case("coinbase", "BTC-USD", is_numbered=False),
    Case("deribit", "BTC-PERPETUAL", channel="book.100ms"),
    Case("okex-swap", "BTC-USDT-SWAP", connections=2),
    Case("bybit", "BTCUSDT"),
    # A checksum is of the ten best levels alone: enough has to be missing to concern them.
    Case("kraken", "BTC/USD", dropped=40),
]


@dataclass
class Listener:
    """A client that keeps the book, and all that it was told."""

    messages: list[Message] = field(default_factory=list)
    recorded: dict[int, list[bytes]] = field(default_factory=dict)
    bids: dict[float, float] = field(default_factory=dict)
    asks: dict[float, float] = field(default_factory=dict)

    def take(self, batch: Sequence[Message]) -> None:
        self.messages += batch
        for message in batch:
            if isinstance(message, BookChange):
                self._apply(message)

    def _apply(self, change: BookChange) -> None:
        for side, levels in ((self.bids, change.bids), (self.asks, change.asks)):
            if change.is_snapshot:
                side.clear()
            for level in levels:
                if level.amount:
                    side[level.price] = level.amount  # type: ignore[index, assignment]
                else:
                    side.pop(level.price, None)  # type: ignore[arg-type]

    def record(self, _exchange: str, connection: int, lines: Sequence[bytes]) -> None:
        self.recorded.setdefault(connection, []).extend(lines)

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]


class Market:
    """Simulated exchanges whose time passes only while a test says so, and a client of one of them."""

    def __init__(self, simulated: SimulatedExchanges, case: Case, listener: Listener) -> None:
        self.simulated = simulated
        self.case = case
        self.listener = listener

    def _is_listening(self) -> bool:
        return len(self.simulated.open_connections(self.case.exchange)) == self.case.connections and all(
            connection.dialogue.subscriptions.keys for connection in self.simulated.open_connections(self.case.exchange)
        )

    async def run(self, seconds: float) -> None:
        """Market time, ten times as fast."""
        for _ in range(int(seconds / 0.05)):
            await self.simulated.advance(50)
            await asyncio.sleep(0.005)

    async def settle(self) -> None:
        """Until all connections are up and the book is the true one."""
        async with asyncio.timeout(15):
            while True:
                await self.run(0.3)
                true = self.simulated.true_book(self.case.exchange, self.case.symbol, self.case.channel)
                for _ in range(20):
                    if self._is_listening() and (self.listener.bids, self.listener.asks) == true:
                        return
                    await asyncio.sleep(0.005)

    @property
    def lost(self) -> int:
        """Connections that were made and are no more."""
        return self.simulated.accepted - len(self.simulated.open_connections(self.case.exchange))


@asynccontextmanager
async def listening(case: Case, **options: Any) -> AsyncIterator[Market]:
    listener = Listener()
    async with SimulatedExchanges(seed=7, exchanges=[case.exchange], speed=None) as simulated:
        stream = stream_normalized(
            exchange=case.exchange,
            symbols=[case.symbol],
            data_types=TYPES,
            with_disconnect_messages=True,
            with_error_messages=True,
            exchange_urls=simulated.urls,
            _timings=TIMINGS,
            _record=listener.record,
            **({"timeout_interval_ms": STALE_S * 1000} | options),
        )

        async def listen() -> None:
            async for batch in stream:
                listener.take(batch)

        task = asyncio.create_task(listen())
        try:
            yield Market(simulated, case, listener)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stream.aclose()


LOSSES: list[Misbehaviour] = [
    Close(code=1012, reason="restarting"),
    Reset(),
    HalfFrame(),
    Garbage("text"),
    Garbage("frame"),
    ErrorFrame("rate_limit"),
    Silence(),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.exchange)
async def test_after_every_misbehaviour_the_book_is_the_true_one(case: Case) -> None:
    async with listening(case) as market:
        simulated, listener = market.simulated, market.listener
        await market.settle()
        assert not listener.of(Disconnect)
        for what in LOSSES:
            before = len(listener.of(Disconnect))
            assert simulated.misbehave(case.exchange, what) == case.connections, what
            await market.run(1.0)
            await market.settle()
            assert len(listener.of(Disconnect)) >= before + case.connections, what
        if case.is_numbered:
            before = len(listener.of(Disconnect))
            simulated.misbehave(case.exchange, DropUpdates(case.dropped))
            await market.run(1.5)
            await market.settle()
            assert len(listener.of(Disconnect)) > before
            assert any(word in listener.of(Disconnect)[-1].reason for word in ("follows", "does not join", "checksum"))
            # Where updates have no numbers, nobody can tell that a snapshot is old.
            simulated.misbehave(case.exchange, Snapshot(old_s=1.0))
        simulated.misbehave(case.exchange, Refuse(503, times=2))
        simulated.misbehave(case.exchange, Close())
        await market.settle()
        simulated.misbehave(case.exchange, ClockSkew(90_000))
        simulated.misbehave(case.exchange, ErrorFrame("auth"))
        simulated.misbehave(case.exchange, Garbage("shape"))
        await market.settle()
        # Nothing was lost that was not told, and nothing told that was not lost.
        assert len(listener.of(Disconnect)) == market.lost
        codes = {error.code for error in listener.of(ErrorMessage)}
        assert codes == {"SOURCE_RATE_LIMIT", "SOURCE_AUTH", "WS_CONNECT"}
        assert len(listener.of(ErrorMessage)) < 12
        reasons = " ".join(str(message.reason) for message in listener.of(Disconnect))
        for said in ("closed by the exchange: restarting", "broke", "not understood", f"no data for {STALE_S:g} s"):
            assert said in reasons
    _assert_replayed_alike(case, listener)


def _assert_replayed_alike(case: Case, listener: Listener) -> None:
    """A replay of the recorded lines gives the same messages, in the same order, and the same events."""
    request = {"exchange": case.exchange, "symbols": [case.symbol], "dataTypes": TYPES, "withDisconnectMessages": True}
    replayed: list[list[Message]] = []
    for lines in listener.recorded.values():
        replay = NormalizedReplay(parse_normalized_request(request | {"from": "2026-10-01", "to": "2036-10-01"}))
        [period] = replay.periods()
        replayed.append(replay.feed(period, lines))
    live = [_as_recorded(message) for message in listener.messages if not isinstance(message, ErrorMessage)]
    assert len(live) > 40
    if len(replayed) == 1:
        assert live == replayed[0]
    else:
        for of_one in replayed:
            kinds = {type(message) for message in of_one} - {Disconnect}
            assert [m for m in of_one if type(m) in kinds] == [m for m in live if type(m) in kinds]
        assert sum(isinstance(m, Disconnect) for of_one in replayed for m in of_one) == len(listener.of(Disconnect))
    data = [[m for m in messages if not isinstance(m, Disconnect)] for messages in (live, [m for one in replayed for m in one])]
    for kind in {type(message) for message in data[0]}:
        ours, theirs = ([m for m in messages if type(m) is kind] for messages in data)
        assert _events(ours) == _events(theirs)


def _as_recorded(message: Message) -> Message:
    """A recording does not say why a connection was lost."""
    return Disconnect(message.exchange, message.local_timestamp) if isinstance(message, Disconnect) else message


def _events(messages: list[Message]) -> list[bytes]:
    encoder = BronzeEncoder(session_id="s", origin="realtime", clock_us=lambda: 0)
    return [msgspec.json.encode([event.event_id.hex(), event.value.hex()]) for event in encoder.encode(messages)]


QUIET = {"liquidation"}
"""What may not happen within seconds."""


@pytest.mark.parametrize("exchange", DEFAULT_EXCHANGES)
async def test_every_data_type_of_every_simulated_exchange_flows(exchange: str) -> None:
    async with SimulatedExchanges(seed=7, exchanges=[exchange], speed=None) as simulated:
        wanted = [*EXCHANGES[exchange].data_types, "quote"]
        listed = simulated.symbols(exchange)
        stream = stream_normalized(
            exchange=exchange,
            symbols=[listed[0], listed[-1]],  # of futures and options there is one of each then
            data_types=wanted,
            with_disconnect_messages=True,
            with_error_messages=True,
            timeout_interval_ms=0,
            exchange_urls=simulated.urls,
            _timings=TIMINGS,
        )
        seen: dict[str, Message] = {}

        async def listen() -> None:
            async for batch in stream:
                for message in batch:
                    seen[getattr(message, "name", type(message).__struct_config__.tag)] = message

        listening = asyncio.create_task(listen())
        missing = set(wanted) - QUIET
        async with asyncio.timeout(20):
            while missing - seen.keys():
                await simulated.advance(100)
                await asyncio.sleep(0.002)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await stream.aclose()
        assert not seen.keys() & {"disconnect", "error"}, seen
