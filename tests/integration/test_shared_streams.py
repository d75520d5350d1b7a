"""Live streams that clients share, through the real server and simulated exchanges: one connection, one session, each event once, and
every client as well served as one that is alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tardis_machine import TardisMachine, to_json
from tardis_machine.bronze.decoding import to_message
from tardis_machine.realtime.backoff import Timings
from tardis_machine.sample.live import Reset, SimulatedExchanges
from tests.integration.machine import Client
from tests.integration.scripted_exchange import scripted_exchange
from tests.integration.test_publishing import published
from tests.integration.test_stream_faults import CASES, Case
from tests.integration.test_stream_server import asked, live_machine, receive, trade

ROUTE = "/ws-stream-normalized"
TIMINGS = Timings(first_s=0.02, most_s=0.1, close_timeout_s=0.1, refetch_s=0.05, linger_s=1.0)
TIMEOUT_S = 40.0


class LiveBooks:
    """The book of each symbol as it follows from its changes."""

    def __init__(self) -> None:
        self.books: dict[str, tuple[dict[float, float], dict[float, float]]] = {}

    def take(self, change: dict[str, Any]) -> None:
        if change["isSnapshot"]:
            self.books[change["symbol"]] = ({}, {})
        # A change of a book that is not known is a fault, and raises.
        for side, levels in zip(self.books[change["symbol"]], (change["bids"], change["asks"]), strict=True):
            for level in levels:
                if level["amount"]:
                    side[level["price"]] = level["amount"]
                else:
                    side.pop(level["price"], None)


class LiveReader(LiveBooks):
    """A client that keeps what it was sent, and the books that follow from it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__()
        self.socket = socket
        self.messages: list[dict[str, Any]] = []
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for frame in self.socket:
            message = json.loads(frame.data)
            self.messages.append(message)
            if message["type"] == "book_change":
                self.take(message)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    async def leave(self) -> None:
        await self.socket.close()
        await self.reading


class Market:
    """A machine on simulated exchanges whose time passes only while a test says so."""

    def __init__(self, simulated: SimulatedExchanges, client: Client, folder: Path) -> None:
        self.simulated = simulated
        self.client = client
        self.folder = folder

    async def join(self, **fields: Any) -> LiveReader:
        return await self.join_all(
            {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade"], "timeoutIntervalMS": 0} | fields
        )

    async def join_all(self, *requests: dict[str, Any]) -> LiveReader:
        query = {"options": json.dumps(requests)}
        return LiveReader(await self.client.http.ws_connect(self.client.ws_url(ROUTE), params=query, max_msg_size=0))

    async def run(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.05)):
            await self.simulated.advance(50)
            await asyncio.sleep(0.005)

    async def run_until(self, condition: Any) -> None:
        """Market time passes until something is so."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                await self.run(0.2)

    async def wait_until(self, condition: Any) -> None:
        """The market stands until something is so."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                await asyncio.sleep(0.02)

    def has_true_book(self, reader: LiveReader, symbol: str = "XBTUSD") -> bool:
        return reader.books.get(symbol) == self.simulated.true_book("bitmex", symbol)

    def is_closed(self) -> bool:
        return not self.simulated.connections and not self.client.machine.live_pids


@asynccontextmanager
async def live_market(folder: Path, exchanges: Sequence[str] = ("bitmex", "coinbase"), **options: Any) -> AsyncIterator[Market]:
    async with SimulatedExchanges(seed=3, exchanges=exchanges, speed=None) as simulated:
        machine = TardisMachine(
            cache_dir=folder / "cache",
            file={"dir": folder / "events"},
            spool_dir=folder / "spool",
            exchange_urls=simulated.urls,
            _timings=TIMINGS,
            **({"workers": 1} | options),
        )
        await machine.start(port=0)
        try:
            async with aiohttp.ClientSession() as http:
                yield Market(simulated, Client(machine, http), folder)
        finally:
            await machine.stop()


def trades_of(events: list[Any]) -> Counter[str]:
    return Counter(event.trade.trade_id for event in events if event.HasField("trade"))


def session_ends(events: list[Any]) -> list[Any]:
    return [event.session_end for event in events if event.HasField("session_end")]


@pytest.mark.parametrize(("count", "workers"), [(2, 1), (20, 1), (2, 0)])
async def test_clients_of_one_market_share_a_connection_and_a_session(tmp_path: Path, count: int, workers: int) -> None:
    async with live_market(tmp_path, workers=workers) as market:
        readers = [await market.join() for _ in range(count)]
        await market.run_until(lambda: all(len(reader.messages) >= 50 for reader in readers))
        # What is on its way to some has arrived at all.
        await market.wait_until(lambda: len({len(reader.messages) for reader in readers}) == 1)
        assert market.simulated.accepted == 1
        assert len(market.client.machine.live_pids) == workers
        for reader in readers:
            await reader.leave()
    events = published(tmp_path / "events")
    heard = {reader.messages[0]["id"]: [message["id"] for message in reader.messages] for reader in readers}
    assert len(heard) == 1
    assert len(session_ends(events)) == 1
    assert session_ends(events)[0].complete
    counts = trades_of(events)
    assert set(counts.values()) == {1}
    assert set(next(iter(heard.values()))) <= set(counts)
    trade_events = [event for event in events if event.HasField("trade")]
    assert len({event.event_id for event in trade_events}) == len(trade_events)
    assert [event.sequence for event in trade_events] == list(range(len(trade_events)))


async def test_who_sees_something_else_of_the_same_shares_the_connection_too(tmp_path: Path) -> None:
    async with live_market(tmp_path) as market:
        plain = await market.join()
        told = await market.join(withDisconnectMessages=True, withErrorMessages=True)
        bars = await market.join(dataTypes=["trade_bar_5ticks"], symbols=["xbtusd"])
        both = await market.join(dataTypes=["trade", "trade_bar_5ticks"], withDisconnectMessages=True)
        await market.run_until(lambda: len(plain.messages) > 20 and len(bars.messages) > 5)
        market.simulated.misbehave("bitmex", Reset())
        await market.run_until(lambda: market.simulated.accepted == 2)
        await market.run_until(lambda: len(bars.messages) > 10 and all(reader.of("trade_bar") for reader in (both, bars)))
        assert [(len(reader.of("disconnect"))) for reader in (plain, told, bars, both)] == [0, 1, 0, 1]
        assert {message["type"] for message in bars.messages} == {"trade_bar"}
        assert {message["type"] for message in plain.messages} == {"trade"}
        for reader in (plain, told, bars, both):
            await reader.leave()
    events = published(tmp_path / "events")
    assert set(trades_of(events).values()) == {1}
    assert sum(event.HasField("disconnect") for event in events) == 1
    [end] = session_ends(events)
    assert {entry.payload_case for entry in end.entries} == {"trade", "trade_bar", "disconnect"}
    # Two views show bars, which differ after the disconnect; those of the first are published. The last may not have reached its client.
    bar_events = sorted((event for event in events if event.HasField("trade_bar")), key=lambda event: event.sequence)
    assert [json.loads(to_json(to_message(event))) for event in bar_events][: len(bars.messages)] == bars.messages


async def test_a_late_joiner_gets_the_book_and_then_its_changes(tmp_path: Path) -> None:
    async with live_market(tmp_path) as market:
        first = await market.join(dataTypes=["book_change"])
        await market.run_until(lambda: len(first.messages) > 100)
        late = await market.join(dataTypes=["book_change"])
        quotes = await market.join(dataTypes=["quote"])
        # Nothing happens in the market, and still they know where it is.
        await market.wait_until(lambda: late.messages and quotes.messages and market.has_true_book(first))
        assert [message["isSnapshot"] for message in late.messages] == [True]
        assert late.messages[0]["localTimestamp"] == first.messages[-1]["localTimestamp"]
        assert market.has_true_book(late)
        assert [len(message["bids"]) for message in quotes.messages] == [1]
        for _ in range(5):
            await market.run(1.0)
            await market.wait_until(lambda: market.has_true_book(late) and market.has_true_book(first))
        assert sum(message["isSnapshot"] for message in late.messages) == 1
        assert late.messages[1:] == first.messages[-len(late.messages) + 1 :]
        assert market.simulated.accepted == 1
        best = [max(late.books["XBTUSD"][0]), min(late.books["XBTUSD"][1])]
        await market.wait_until(
            lambda: [quotes.messages[-1]["bids"][0]["price"], quotes.messages[-1]["asks"][0]["price"]] == best
        )
        # A connection that is lost takes its book along: who joins then waits for the next.
        market.simulated.misbehave("bitmex", Reset())
        await market.run_until(lambda: market.simulated.accepted == 2)
        later = await market.join(dataTypes=["book_change"])
        await market.run(1.0)
        await market.wait_until(lambda: market.has_true_book(later) and market.has_true_book(first))
        for reader in (first, late, quotes, later):
            await reader.leave()
    # What was made up for who came late is not published.
    books = [event.book_change for event in published(tmp_path / "events") if event.HasField("book_change")]
    assert [book.is_snapshot for book in books].count(True) == 2


@pytest.mark.parametrize("case", [case for case in CASES if case.exchange != "bitmex"], ids=lambda case: case.exchange)
async def test_late_joiners_of_every_exchange_have_the_true_book(tmp_path: Path, case: Case) -> None:
    async with live_market(tmp_path, [case.exchange]) as market:
        asked_for = {"exchange": case.exchange, "symbols": [case.symbol], "dataTypes": ["book_change"]}
        first = await market.join(**asked_for)
        await market.run_until(lambda: len(first.messages) > 30)
        late = await market.join(**asked_for)
        await market.wait_until(lambda: late.messages)
        await market.run(2.0)
        symbol = first.messages[0]["symbol"]

        def is_true() -> bool:
            true = market.simulated.true_book(case.exchange, case.symbol, case.channel)
            return first.books[symbol] == late.books[symbol] == true

        await market.wait_until(is_true)
        assert [message["isSnapshot"] for message in late.messages][:2] == [True, False]
        assert market.simulated.accepted == 1
        await first.leave()
        await late.leave()


async def test_the_last_one_out_closes_after_a_while_and_who_comes_back_before_keeps_it(tmp_path: Path) -> None:
    async with live_market(tmp_path) as market:
        first, second = await market.join(), await market.join()
        await market.run_until(lambda: first.messages and second.messages)
        pids = market.client.machine.live_pids
        await first.leave()
        await second.leave()
        again = await market.join()
        await market.run_until(lambda: again.messages)
        await asyncio.sleep(TIMINGS.linger_s * 1.5)
        assert market.client.machine.live_pids == pids
        assert market.simulated.accepted == 1
        await again.leave()
        await market.wait_until(market.is_closed)
        next_one = await market.join()
        await market.run_until(lambda: next_one.messages)
        assert market.simulated.accepted == 2
        await next_one.leave()
    events = published(tmp_path / "events")
    assert [end.complete for end in session_ends(events)] == [True, True]
    assert set(trades_of(events).values()) == {1}


async def test_a_process_that_is_killed_is_started_again_and_its_clients_stay(tmp_path: Path) -> None:
    async with live_market(tmp_path) as market:
        told = await market.join(dataTypes=["trade", "book_change"], withDisconnectMessages=True)
        quiet = await market.join(dataTypes=["trade", "book_change"])
        await market.run_until(lambda: told.of("trade") and quiet.of("trade"))
        [pid] = market.client.machine.live_pids
        os.kill(pid, signal.SIGKILL)
        await market.run_until(lambda: market.simulated.accepted == 2)
        await market.run(1.0)
        await market.wait_until(lambda: market.has_true_book(told) and market.has_true_book(quiet))
        [lost] = told.of("disconnect")
        assert (lost["exchange"], lost["symbols"], lost["reason"]) == (
            "bitmex",
            ["XBTUSD"],
            "the worker process that served this request died",
        )
        assert not quiet.of("disconnect")
        assert market.client.machine.live_pids != [pid]
        await told.leave()
        await quiet.leave()
    events = published(tmp_path / "events")
    assert sorted((end.complete, "died" in end.reason) for end in session_ends(events)) == [(False, True), (True, False)]


async def test_what_several_streams_hear_is_published_by_one_and_handed_over(tmp_path: Path) -> None:
    async with live_market(tmp_path) as market:
        narrow = await market.join(dataTypes=["trade"])
        await market.run_until(lambda: len(narrow.messages) > 10)
        wide = await market.join(dataTypes=["trade", "book_change"], symbols=["XBTUSD", "ETHUSD"])
        await market.run_until(lambda: len(wide.of("trade")) > 40)
        books = await market.join(dataTypes=["book_change"], symbols=["XBTUSD"])
        await market.run_until(lambda: len(books.messages) > 20)
        assert market.simulated.accepted == 3
        # While one leaves, for a moment two publish: nothing is missing, and little is there twice.
        before = len(narrow.messages)
        await narrow.leave()
        await market.run_until(lambda: len(market.simulated.connections) == 2)
        await market.run(1.0)
        alone = len(wide.of("trade"))
        await wide.leave()
        await market.run_until(lambda: len(market.simulated.connections) == 1)
        await market.run(2.0)
        await market.wait_until(lambda: market.has_true_book(books))
        await books.leave()
    events = published(tmp_path / "events")
    counts = trades_of(events)
    heard = {message["id"] for reader in (narrow, wide) for message in reader.of("trade")}
    assert heard <= set(counts)
    assert set(counts.values()) <= {1, 2}
    # Twice only what was heard between the narrow one's leave and its end.
    twice = [trade_id for trade_id, count in counts.items() if count == 2]
    assert not {message["id"] for message in narrow.messages[:before]} & set(twice)
    assert not {message["id"] for message in wide.of("trade")[alone:]} & set(twice)
    changes = [event for event in events if event.HasField("book_change") and event.symbol == "XBTUSD"]
    by_session: dict[str, list[Any]] = {}
    for event in changes:
        by_session.setdefault(event.meta["session_id"], []).append(event)
    # Both sessions that published the book began it with a snapshot, and one came after the other.
    assert [events[0].book_change.is_snapshot for events in by_session.values()] == [True, True]
    rebuilt = LiveBooks()
    for event in sorted(changes, key=lambda event: event.local_ts.ToMicroseconds()):
        rebuilt.take(json.loads(to_json(to_message(event))))
    assert rebuilt.books["XBTUSD"] == books.books["XBTUSD"]


async def test_every_symbol_goes_before_those_that_are_named(tmp_path: Path) -> None:
    async with live_market(tmp_path) as market:
        named = await market.join()
        await market.run_until(lambda: named.messages)
        every = await market.join(symbols=None)
        await market.run_until(lambda: len(every.messages) > 30)
        since = len(named.messages)
        await market.run_until(lambda: len(named.messages) > since + 30)
        other = await market.join(symbols=["ETHUSD"])
        await market.run_until(lambda: other.messages)
        for reader in (named, every, other):
            await reader.leave()
    counts = trades_of(published(tmp_path / "events"))
    assert {message["id"] for reader in (named, every, other) for message in reader.messages} <= set(counts)
    assert {counts[message["id"]] for message in named.messages[since : since + 20]} == {1}
    assert counts[other.messages[0]["id"]] == 1


async def test_requests_in_one_are_shared_each_by_itself(tmp_path: Path) -> None:
    bitmex = {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade"], "timeoutIntervalMS": 0}
    coinbase = {"exchange": "coinbase", "symbols": ["BTC-USD"], "dataTypes": ["trade"], "timeoutIntervalMS": 0}
    async with live_market(tmp_path) as market:
        both = await market.join_all(bitmex, coinbase)
        one = await market.join_all(coinbase)
        await market.run_until(lambda: {m["exchange"] for m in both.messages} == {"bitmex", "coinbase"} and one.messages)
        assert market.simulated.accepted == 2
        await both.leave()
        await market.wait_until(lambda: len(market.simulated.connections) == 1)
        since = len(one.messages)
        await market.run_until(lambda: len(one.messages) > since)
        await one.leave()
    events = published(tmp_path / "events")
    assert len(session_ends(events)) == 2
    assert set(trades_of(events).values()) == {1}


async def test_while_one_stream_is_cut_off_another_publishes_what_both_ask_for(tmp_path: Path) -> None:
    bus = {"file": {"dir": tmp_path / "events"}, "spool_dir": tmp_path / "spool"}
    async with scripted_exchange() as exchange, live_machine(exchange, tmp_path, **bus) as client:
        url = client.ws_url(ROUTE)
        first = await client.http.ws_connect(url, params=asked(withDisconnectMessages=True))
        cut_off = await exchange.client()
        await cut_off.send(trade(1))
        await receive(first, 1)
        second = await client.http.ws_connect(url, params=asked(symbols=["XBTUSD", "ETHUSD"], withDisconnectMessages=True))
        other = await exchange.client()
        await other.send(trade(1), trade(2, "ETHUSD"))
        await receive(second, 2)
        # What it loses of its own is told; the first one goes on with XBTUSD.
        await other.close()
        assert (await receive(second, 1))[0]["symbols"] == ["XBTUSD", "ETHUSD"]
        other = await exchange.client()
        await other.send(trade(3))
        await receive(second, 1)
        exchange.refusals = [web.Response(status=503) for _ in range(1_000)]
        cut_off.cut()
        assert (await receive(first, 1))[0]["type"] == "disconnect"
        for number in range(4, 24):
            await other.send(trade(number))
            await receive(second, 1)
            await asyncio.sleep(0.02)
        await first.close()
        await second.close()
    events = published(tmp_path / "events")
    counts = trades_of(events)
    assert (counts["1"], counts["2"], counts["3"], counts["23"]) == (1, 1, 0, 1)
    # From the hand-over on, nothing is missing.
    handed_over = min(int(trade_id) for trade_id in counts if int(trade_id) > 3)
    assert sorted(map(int, counts)) == [1, 2, *range(handed_over, 24)]
    lost = [sorted(event.disconnect.symbols) for event in events if event.HasField("disconnect")]
    assert sorted(lost) == [["ETHUSD"], ["XBTUSD"]]
