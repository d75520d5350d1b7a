"""Each way that data goes (HTTP replay, WebSocket replay, live), through the real server to every bus at once.

What consumers read, by other libraries than the buses use, is compared with what the client got, field by field; and a client
notices nothing of a broker that stands still.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from tardis_machine import TardisMachine
from tardis_machine._version import __version__
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as schema
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.realtime.backoff import Timings
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.settings.buses import BUS_MODULES
from tests.contract.bus_under_test import BusUnderTest, load_bus
from tests.integration.expected_events import expected_event, parse_exactly
from tests.integration.machine import DAY, Client
from tests.integration.scripted_exchange import ScriptedExchange, scripted_exchange
from tests.integration.test_stream_server import trade

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUSES = tuple(BUS_MODULES)
BROKERS = tuple(bus for bus in BUSES if bus != "file")
ARRIVED_WITHIN_S = 40.0
LOST, REFUSED = "back soon", 3
TIMINGS = Timings(first_s=0.02, most_s=0.05, limited_s=0.05, close_timeout_s=0.2, connect_timeout_s=2.0, linger_s=0.1)

BEGINNING = {"from": f"{DAY}00:00:00Z", "to": f"{DAY}00:00:03Z"}
LATER = {"from": f"{DAY}00:00:10Z", "to": f"{DAY}00:00:12Z"}
COMPUTED = ["trade_bar_1s", "trade_bar_10ticks", "book_snapshot_3_100ms", "book_snapshot_2_grouped10_1s", "quote_1s"]
REPLAYED = [
    {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade", "book_change", *COMPUTED], **BEGINNING},
    {"exchange": "binance-futures", "dataTypes": ["derivative_ticker", "liquidation", "book_ticker"], **LATER},
    {"exchange": "deribit", "dataTypes": ["option_summary", "trade"], **LATER},
]
LIVE = {
    "exchange": "bitmex",
    "symbols": ["XBTUSD"],
    "dataTypes": ["trade", "book_change", "derivative_ticker", "book_ticker", "liquidation", "trade_bar_10ticks", "quote"],
    "withDisconnectMessages": True,
    "withErrorMessages": True,
    "timeoutIntervalMS": 0,
}
CHANNELS = ("trade", "orderBookL2", "instrument", "quote", "liquidation")


class Answer(NamedTuple):
    """What a client got."""

    content: bytes | Sequence[str]
    """As it came; of live data without the time of its arrival, the only thing that differs."""
    messages: Sequence[dict[str, Any]]
    seconds: float


class Stage:
    """A machine with all buses, an exchange, and what consumers have read."""

    def __init__(self, client: Client, exchange: ScriptedExchange, buses: dict[str, BusUnderTest]) -> None:
        self.client = client
        self.exchange = exchange
        self.buses = buses
        self.recorded: Sequence[dict[str, Any]] = ()
        """What the exchange says."""
        self.undisturbed: dict[str, Answer] = {}
        """By flow; the name of the flow is the id of its request."""

    async def http(self, request_id: str) -> Answer:
        asked, headers = {"options": json.dumps(REPLAYED)}, {"X-Request-Id": request_id}
        began = time.monotonic()
        async with self.client.http.get(self.client.url("/replay-normalized"), params=asked, headers=headers) as response:
            body = await response.read()
        return Answer(body, [parse_exactly(line) for line in body.splitlines()], time.monotonic() - began)

    async def ws(self, request_id: str) -> Answer:
        asked, headers = {"options": json.dumps(REPLAYED)}, {"X-Request-Id": request_id}
        began = time.monotonic()
        url = self.client.ws_url("/ws-replay-normalized")
        async with self.client.http.ws_connect(url, params=asked, headers=headers) as socket:
            frames = [frame.data async for frame in socket]
            assert socket.close_code == 1000
        return Answer(frames, [parse_exactly(frame) for frame in frames], time.monotonic() - began)

    async def live(self, request_id: str) -> Answer:
        """Data, an error, a lost connection, an exchange that is away for a while, and data again."""
        asked, headers = {"options": json.dumps(LIVE)}, {"X-Request-Id": request_id}
        url = self.client.ws_url("/ws-stream-normalized")
        frames: list[str] = []
        async with self.client.http.ws_connect(url, params=asked, headers=headers) as socket:

            async def read_until(last: Callable[[dict[str, Any]], bool]) -> None:
                while not frames or not last(json.loads(frames[-1])):
                    frames.append((await asyncio.wait_for(socket.receive(), ARRIVED_WITHIN_S)).data)

            peer = await self.exchange.client()
            began = time.monotonic()
            await peer.send(*self.recorded, {"status": 401, "error": "Signature not valid."})
            await read_until(lambda message: message["type"] == "error")
            self.exchange.refusals = [web.Response(status=503) for _ in range(REFUSED)]
            await peer.close(1012, LOST)
            peer = await self.exchange.client()
            await peer.send(trade(99))
            await read_until(lambda message: message.get("id") == "99")
            seconds = time.monotonic() - began
        while self.client.machine.live_pids:
            await asyncio.sleep(0.01)
        messages = [parse_exactly(frame) for frame in frames]
        content = [frame.replace(message["localTimestamp"], "") for frame, message in zip(frames, messages, strict=True)]
        return Answer(content, messages, seconds)

    @property
    def flows(self) -> dict[str, Callable[[str], Coroutine[Any, Any, Answer]]]:
        return {"http": self.http, "ws": self.ws, "live": self.live}

    async def health(self, bus: str) -> dict[str, Any]:
        async with self.client.http.get(self.client.url("/health-check")) as response:
            health: dict[str, Any] = (await response.json())["buses"][bus]
        return health

    async def arrived(self, bus: str, request_ids: Iterable[str]) -> dict[str, list[NormalizedEvent]]:
        """What a consumer of the bus has of these requests, by request, once it has seen the end of each.

        It then reads again: it may have looked at other partitions before the end came.
        """
        is_over = False
        async with asyncio.timeout(ARRIVED_WITHIN_S):
            while True:
                found: dict[str, list[NormalizedEvent]] = defaultdict(list)
                for record in await asyncio.to_thread(self.buses[bus].read_back):
                    event = NormalizedEvent.FromString(record.value)
                    found[event.meta["request_id"]].append(event)
                if is_over:
                    return found
                is_over = all(any(event.HasField("session_end") for event in found[request_id]) for request_id in request_ids)
                await asyncio.sleep(0.1)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("flows")
    async with AsyncExitStack() as stack:
        api = stack.enter_context(SampleHistoryApi().serve_in_thread())
        exchange = await stack.enter_async_context(scripted_exchange())
        started = await asyncio.gather(*(asyncio.to_thread(load_bus(bus), folder / bus) for bus in BUSES))
        buses = dict(zip(BUSES, started, strict=True))
        for bus in started:
            stack.callback(bus.close)
        quick = {"max-batch-delay-ms": 20, "retry-backoff-ms": 20, "retry-backoff-max-ms": 200}
        machine = TardisMachine(
            api_url=api.url,
            cache_dir=folder / "cache",
            spool_dir=folder / "spool",
            workers=1,
            exchange_urls={"bitmex": exchange.url},
            _timings=TIMINGS,
            **{name: {**bus.keywords(), **quick, "dead-letter-dir": folder / "letters"} for name, bus in buses.items()},
        )
        await machine.start(port=0)
        stack.push_async_callback(machine.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        stage = Stage(Client(machine, http), exchange, buses)
        stage.recorded = await recorded(stage.client)
        for name, play in stage.flows.items():
            stage.undisturbed[name] = await play(name)
        yield stage


async def recorded(client: Client) -> Sequence[dict[str, Any]]:
    """What the exchange said in a while."""
    filters = [{"channel": channel, "symbols": ["XBTUSD"]} for channel in CHANNELS]
    asked = {"exchange": "bitmex", "filters": filters, "from": f"{DAY}00:00:00Z", "to": f"{DAY}00:00:12Z"}
    messages = [line["message"] for line in await client.lines(asked, "/replay")]
    return [message for place, message in enumerate(messages) if place < 600 or message["table"] == "liquidation"]


ROUTES = {"http": "/replay-normalized", "ws": "/ws-replay-normalized", "live": "/ws-stream-normalized"}
OF_THE_SESSION = ("source", "ingest_ts", "origin", "event_id", "sequence", "meta")
"""What no message says."""

Stream = tuple[str, str, str]


def stream_of(event: NormalizedEvent) -> Stream:
    return event.exchange, event.symbol, str(event.WhichOneof("payload"))


def check(events: Sequence[NormalizedEvent], answer: Answer, *, flow: str, request_id: str, once: bool) -> None:
    """These are the messages of the answer, each field of each, with what the session adds, and one true end."""
    firsts: dict[bytes, NormalizedEvent] = {}
    for event in events:
        assert firsts.setdefault(event.event_id, event) == event, "an id stands for two events"
    assert len(events) == len(firsts) or not once, "nothing comes twice without a fault"
    [end] = [event.session_end for event in firsts.values() if event.HasField("session_end")]
    came: dict[Stream, list[NormalizedEvent]] = defaultdict(list)
    for event in firsts.values():
        if not event.HasField("session_end"):
            came[stream_of(event)].append(event)
    wanted: dict[Stream, list[NormalizedEvent]] = defaultdict(list)
    for message in answer.messages:
        event = expected_event(message)
        wanted[stream_of(event)].append(event)
    assert {stream: len(each) for stream, each in came.items()} == {stream: len(each) for stream, each in wanted.items()}
    for stream, each in came.items():
        assert [event.sequence for event in each] == list(range(len(each))), stream
        for event, expected in zip(each, wanted[stream], strict=True):
            check_session(event, flow, request_id, end.session_id)
            bare = NormalizedEvent.FromString(event.SerializeToString())
            for field in OF_THE_SESSION:
                bare.ClearField(field)  # type: ignore[arg-type]
            assert bare == expected
    assert (end.complete, end.reason) == (True, "")
    told = {
        (entry.exchange, entry.symbol, entry.payload_case): (entry.count, entry.first_sequence, entry.last_sequence, entry.digest)
        for entry in end.entries
    }
    assert told == {stream: (len(each), 0, len(each) - 1, digest(each)) for stream, each in came.items()}


def check_session(event: NormalizedEvent, flow: str, request_id: str, session_id: str) -> None:
    """What the session adds to an event."""
    assert dict(event.meta) == {
        "request_id": request_id,
        "session_id": session_id,
        "transport": "http" if flow == "http" else "ws",
        "route": ROUTES[flow],
        "app_version": __version__,
    }
    assert event.source == f"tardis-machine/{__version__}"
    assert event.origin == (schema.ORIGIN_REALTIME if flow == "live" else schema.ORIGIN_REPLAY)
    assert len(event.event_id) == 16
    assert abs(event.ingest_ts.ToSeconds() - time.time()) < 600


def digest(events: Iterable[NormalizedEvent]) -> bytes:
    """The sum of the ids, in 128 bits."""
    return (sum(int.from_bytes(event.event_id) for event in events) % (1 << 128)).to_bytes(16)


@pytest.mark.parametrize("bus", BUSES)
async def test_a_consumer_has_what_the_client_got_field_by_field(stage: Stage, bus: str) -> None:
    found = await stage.arrived(bus, stage.flows)
    for flow, answer in stage.undisturbed.items():
        check(found[flow], answer, flow=flow, request_id=flow, once=True)
    cases = {event.WhichOneof("payload") for events in found.values() for event in events}
    assert cases == {field.name for field in NormalizedEvent.DESCRIPTOR.oneofs_by_name["payload"].fields}, "all kinds were tried"
    replays = [{event.event_id for event in found[flow] if not event.HasField("session_end")} for flow in ("http", "ws")]
    assert replays[0] == replays[1], "the same replay gives the same ids"


@pytest.mark.parametrize("bus", BUSES)
async def test_every_field_of_an_error_and_of_a_lost_connection_arrives(stage: Stage, bus: str) -> None:
    events = (await stage.arrived(bus, ["live"]))["live"]
    errors = [event.error for event in events if event.HasField("error")]
    refused = "can't connect: 503 Invalid response status"
    assert errors == [
        schema.ControlError(details="401 Signature not valid.", code=schema.ERROR_CODE_SOURCE_AUTH),
        schema.ControlError(details=refused, code=schema.ERROR_CODE_WS_CONNECT),
        schema.ControlError(details=refused, code=schema.ERROR_CODE_WS_CONNECT, subsequent_errors=REFUSED - 1),
    ]
    [lost] = [event.disconnect for event in events if event.HasField("disconnect")]
    assert lost == schema.ControlDisconnect(
        reason=f"closed by the exchange: {LOST}", close_code=1012, symbols=["XBTUSD"], symbols_given=True
    )
    for payload in (errors[-1], lost):
        assert len(payload.ListFields()) == len(payload.DESCRIPTOR.fields), "no field was left out"


@pytest.mark.parametrize("bus", BROKERS)
async def test_a_broker_that_stands_still_is_not_noticed_by_any_client(stage: Stage, bus: str) -> None:
    """Each answer is whole while the broker is stopped, and then everything arrives."""
    other = next(name for name in ("redis", "nats") if name != bus)
    server = stage.buses[bus].server  # type: ignore[attr-defined]
    ids = {flow: f"{flow} while {bus} is stopped" for flow in stage.flows}
    answers = {}
    server.pause()
    try:
        for flow, play in stage.flows.items():
            before = stage.undisturbed[flow]
            answers[flow] = await play(ids[flow])
            assert answers[flow].content == before.content
            assert answers[flow].seconds < 3 * before.seconds + 4
        there = await stage.arrived(other, ids.values())
        health = await stage.health(bus)
        waiting = health["queue_events"] + health["in_flight_events"] + health["spool_events"]
        assert waiting >= sum(len(answer.messages) for answer in answers.values()), "it was stopped in earnest"
    finally:
        server.resume()
    found = await stage.arrived(bus, ids.values())
    for flow, answer in answers.items():
        check(there[ids[flow]], answer, flow=flow, request_id=ids[flow], once=True)
        check(found[ids[flow]], answer, flow=flow, request_id=ids[flow], once=False)
