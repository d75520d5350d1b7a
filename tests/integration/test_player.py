"""Replays at a speed, steered over real sockets: what comes, and what clients are told. How late is for benchmarks/bench_player.py."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tardis_machine.sample.history_api import SampleHistoryApi
from tests.closed_sessions import read_closed_sessions
from tests.integration.leaks import KEPT_ALIVE, nothing_leaks
from tests.integration.machine import DAY, Client, options, running_machine
from tests.integration.raw_client import WS_TEXT, connected, http_get, ws_frame, ws_get
from tests.integration.served import fill_bitmex
from tests.integration.test_publishing import published

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINUTES = 5
SUBSCRIPTION = {"op": "subscribe", "args": ["trade:XBTUSD", "orderBookL2:XBTUSD"]}
HALF_MINUTE = f"{DAY}00:00:30Z"
LATER = f"{DAY}00:01:30Z"


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    fill_bitmex(folder, MINUTES)
    return folder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(cache_dir: Path) -> AsyncIterator[Client]:
    async with running_machine(SampleHistoryApi(port=9), cache_dir) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def everything(client: Client) -> list[dict[str, Any]]:
    """The two minutes of `options()`, as they come without a player."""
    return await client.lines(options())


def second_of(message: dict[str, Any]) -> float:
    return datetime.fromisoformat(message["localTimestamp"]).timestamp()


def since(messages: list[dict[str, Any]], start: str) -> list[dict[str, Any]]:
    begin = datetime.fromisoformat(start).timestamp()
    return [message for message in messages if second_of(message) >= begin]


def is_answer(frame: dict[str, Any]) -> bool:
    return "control" in frame


class Viewer:
    """A client that steers what it reads."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.messages: list[dict[str, Any]] = []
        """Data, without answers to controls."""

    async def frame(self) -> dict[str, Any]:
        received = await self.socket.receive()
        assert received.type is aiohttp.WSMsgType.TEXT, received
        frame: dict[str, Any] = json.loads(received.data)
        if not is_answer(frame):
            self.messages.append(frame)
        return frame

    async def say(self, name: Any, **fields: Any) -> dict[str, Any]:
        """What a control is answered."""
        await self.socket.send_json({"control": name, **fields})
        while not is_answer(frame := await self.frame()):
            pass
        return frame

    async def told(self, name: str, **fields: Any) -> dict[str, Any]:
        """The state of the replay after a control that is right."""
        answer = await self.say(name, **fields)
        assert answer["control"] == name
        state: dict[str, Any] = answer["replay"]
        return state

    async def until(self, state: str) -> dict[str, Any]:
        """Waits until the replay is in a state; the test's time-out bounds it."""
        while (status := await self.told("status"))["state"] != state:
            await asyncio.sleep(0.01)
        return status

    async def step(self, count: int) -> None:
        """Makes so many steps."""
        status = await self.told("step", count=count)
        while status["steps"]:
            await asyncio.sleep(0.01)
            status = await self.told("status")

    async def rest(self) -> list[dict[str, Any]]:
        """All to the end."""
        frames = [json.loads(frame.data) async for frame in self.socket]
        assert self.socket.close_code == 1000
        self.messages += [frame for frame in frames if not is_answer(frame)]
        return self.messages


@asynccontextmanager
async def viewing(client: Client, path: str = "/ws-replay-normalized", **query: Any) -> AsyncIterator[Viewer]:
    async with client.http.ws_connect(client.ws_url(path), params=query) as socket:
        yield Viewer(socket)


def asked(**fields: Any) -> dict[str, str]:
    return {"options": json.dumps(options(**fields))}


async def replays_of(client: Client) -> list[dict[str, Any]]:
    async with client.http.get(client.url("/replays")) as response:
        assert response.status == 200
        listed: list[dict[str, Any]] = (await response.json())["replays"]
        return listed


async def post(client: Client, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    async with client.http.post(client.url(path), json=body, headers=headers) as response:
        return response.status, await response.json()


class TestSpeed:
    async def test_messages_come_when_they_are_due_and_all_of_them(
        self, client: Client, everything: list[dict[str, Any]]
    ) -> None:
        arrivals: list[float] = []
        began = time.monotonic()
        async with viewing(client, **asked(speed=100)) as viewer:
            async for frame in viewer.socket:
                viewer.messages.append(json.loads(frame.data))
                arrivals.append(time.monotonic())
        assert viewer.messages == everything
        # However busy the machine is, none comes early.
        start = datetime.fromisoformat(f"{DAY}00:00:00Z").timestamp()
        due = [began + (second_of(message) - start) / 100 for message in everything]
        assert all(arrival > at for arrival, at in zip(arrivals, due, strict=True))
        assert len({round(arrival, 2) for arrival in arrivals}) > 5  # and not all of them at the end

    @pytest.mark.parametrize("path", ["/replay-normalized", "/replay"])
    async def test_http_answers_keep_to_it_too(self, client: Client, path: str) -> None:
        fields = {} if path == "/replay-normalized" else {"symbols": None, "dataTypes": None, "filters": [{"channel": "trade"}]}
        request = options(to=f"{DAY}00:00:20Z", **fields)
        if path == "/replay":
            request["filters"] = [{"channel": channel, "symbols": ["XBTUSD"]} for channel in ("trade", "orderBookL2")]
        began = time.monotonic()
        slow = await client.get(path, request | {"speed": 20})
        assert time.monotonic() - began > 0.9
        assert slow == await client.get(path, request)

    async def test_a_wrong_speed_is_named(self, client: Client) -> None:
        status, body = await client.get("/replay-normalized", options(speed="fast"))
        assert (status, json.loads(body)["field"]) == (400, "speed")
        frames, code = await client.frames("/ws-replay", exchange="bitmex", **{"from": DAY[:-1], "to": LATER, "speed": "-1"})
        assert (frames, code) == ([], 1008)
        status, body = await client.get("/replay-normalized", [options(speed=1), options(speed=2)])
        assert (status, json.loads(body)["field"]) == (400, "speed")

    async def test_the_first_byte_does_not_wait_for_the_first_message(self, client: Client) -> None:
        # At this speed the first message of the day's second half minute is minutes away.
        request = options(speed=0.01, to=HALF_MINUTE, **{"from": f"{DAY}00:00:00.001"})
        async with (
            asyncio.timeout(5),
            client.http.post(client.url("/replay-normalized"), json=request) as answer,
        ):
            assert answer.status == 200
            [listed] = await replays_of(client)
            assert listed["id"] == answer.headers["X-Replay-Id"]


class TestSteering:
    async def test_paused_nothing_comes_but_steps(self, client: Client, everything: list[dict[str, Any]]) -> None:
        async with viewing(client, **asked(speed=1)) as viewer:
            state = await viewer.told("pause")
            assert (state["paused"], state["state"], state["speed"], state["clients"]) == (True, "paused", 1, 1)
            count = len(viewer.messages)
            await viewer.step(1)
            await viewer.step(2)
            stepped = len(viewer.messages)
            instants = sorted({message["localTimestamp"] for message in viewer.messages[count:stepped]})
            assert len(instants) == 3
            state = await viewer.told("status")
            assert state["position"] == instants[-1]
            assert viewer.messages == everything[:stepped]
            await viewer.told("speed", speed="max")
            assert (await viewer.told("resume"))["paused"] is False
            assert await viewer.rest() == everything

    async def test_a_seek_opens_with_the_book_and_goes_both_ways(self, client: Client, everything: list[dict[str, Any]]) -> None:
        async with viewing(client, **asked(speed=1)) as viewer:
            await viewer.told("pause")
            for place in (LATER, HALF_MINUTE):
                viewer.messages.clear()
                state = await viewer.told("seek", to=place)
                assert (state["position"], state["paused"]) == (place.replace("Z", ".000000Z"), True)
                await viewer.until("paused")
                [book] = viewer.messages  # what is shown where one has stopped
                assert (book["type"], book["isSnapshot"], book["localTimestamp"] < place) == ("book_change", True, True)
                assert book_of(viewer.messages) == book_of(everything[: -len(since(everything, place))])
            await viewer.told("speed", speed="max")
            await viewer.told("resume")
            assert (await viewer.rest())[1:] == since(everything, HALF_MINUTE)

    async def test_paused_at_its_end_it_can_go_elsewhere_and_has_ended_when_it_goes_on(
        self, client: Client, everything: list[dict[str, Any]]
    ) -> None:
        async with viewing(client, **asked(speed=1)) as viewer:
            await viewer.told("pause")
            await viewer.told("seek", to=f"{DAY}00:01:59.999999Z")
            state = await viewer.until("paused")
            assert (state["position"], state["paused"]) == (f"{DAY}00:01:59.999999Z", True)
            await viewer.told("seek", to=LATER)
            await viewer.until("paused")
            viewer.messages.clear()
            # One step for each instant that is left: after the last of them it is paused still.
            left = since(everything, LATER)
            await viewer.step(len({message["localTimestamp"] for message in left}))
            assert viewer.messages == left
            assert (await viewer.told("status"))["state"] == "paused"
            await viewer.told("resume")
            assert await viewer.rest() == left

    async def test_a_step_beyond_its_end_ends_it(self, client: Client, everything: list[dict[str, Any]]) -> None:
        first = everything[: -len(since(everything, HALF_MINUTE))]
        async with viewing(client, **asked(to=HALF_MINUTE, speed=1)) as viewer:
            await viewer.told("step", count=len(first) + 1)
            assert await viewer.rest() == first

    async def test_snapshots_and_bars_go_on_from_there(self, client: Client) -> None:
        request = options(dataTypes=["book_snapshot_3_1s", "trade_bar_10s", "quote"], speed="max")
        alone = await client.lines(request)
        async with viewing(client, options=json.dumps(request | {"speed": 1})) as viewer:
            await viewer.told("pause")
            viewer.messages.clear()
            await viewer.told("seek", to=LATER)
            await viewer.told("speed", speed="max")
            await viewer.told("resume")
            await viewer.rest()
        later = since(alone, LATER)
        opening = viewer.messages[: -len(later)]
        assert viewer.messages[-len(later) :] == later
        assert {message["name"] for message in opening} == {"book_snapshot_3_1s", "quote"}

    async def test_one_without_a_speed_can_be_slowed_down(self, client: Client) -> None:
        request = options(dataTypes=["trade", "book_change", "book_snapshot_10_0ms"])
        alone = await client.lines(request)
        async with viewing(client, options=json.dumps(request)) as viewer:
            await viewer.frame()  # and reads no more: it is held up in the midst
            await viewer.told("pause")
            await viewer.told("speed", speed=0.01)
            await viewer.told("resume")
            await viewer.told("pause")
            assert len(viewer.messages) < len(alone)
            await viewer.step(100)  # what was made before it was slowed down leaves in larger parts
            count = len(viewer.messages)
            await viewer.step(1)
            assert len({message["localTimestamp"] for message in viewer.messages[count:]}) == 1
            await viewer.told("speed", speed="max")
            await viewer.told("resume")
            assert await viewer.rest() == alone

    @pytest.mark.parametrize(
        ("control", "fields", "field"),
        [
            ("stop", {}, "control"),
            (5, {}, "control"),
            ("seek", {}, "to"),
            ("seek", {"to": "2020-02-02"}, "to"),
            ("seek", {"to": "2020-01-31"}, "to"),
            ("speed", {"speed": 0}, "speed"),
            ("step", {"count": -1}, "count"),
        ],
    )
    async def test_a_wrong_control_is_answered_and_ends_nothing(
        self, client: Client, control: Any, fields: dict[str, Any], field: str
    ) -> None:
        async with viewing(client, **asked(speed=1)) as viewer:
            answer = await viewer.say(control, **fields)
            assert answer["field"] == field
            assert answer["error"].startswith(f"{field}: ")
            assert "replay" not in answer
            await viewer.socket.send_str("[")
            await viewer.socket.send_str('{"control":')
            assert (await viewer.told("status"))["state"] == "playing"

    async def test_a_flood_of_seeks_ends_at_the_last(self, client: Client, everything: list[dict[str, Any]]) -> None:
        async with nothing_leaks(*KEPT_ALIVE):
            async with viewing(client, **asked(speed="max")) as viewer:
                await viewer.told("pause")
                for second in range(100):
                    await viewer.socket.send_json({"control": "seek", "to": f"{DAY}00:01:{second % 60:02d}Z"})
                for _ in range(100):
                    while not is_answer(await viewer.frame()):
                        pass
                await viewer.told("seek", to=LATER)
                await viewer.until("paused")
                viewer.messages.clear()
                await viewer.told("resume")
                await viewer.rest()
            assert viewer.messages == since(everything, LATER)

    async def test_who_reads_no_answers_is_obeyed_and_holds_little(self, client: Client) -> None:
        status = ws_frame(WS_TEXT, b'{"control":"status"}')
        target = http_get("/ws-replay-normalized", options(speed=0.01)).split(b" ")[1].decode()
        async with connected(client.machine.ws_port, receive_buffer_bytes=16 * 1024) as raw:
            await raw.send(ws_get(target))
            await raw.reader.readuntil(b"\r\n\r\n")
            raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
            tracemalloc.start()
            try:
                async with asyncio.timeout(60):
                    await raw.send(status * 20_000)
                    await raw.send(ws_frame(WS_TEXT, b'{"control":"speed","speed":2}'))
                    while (await replays_of(client))[0]["speed"] != 2:
                        await asyncio.sleep(0.05)
                assert tracemalloc.get_traced_memory()[1] < 5_000_000
            finally:
                tracemalloc.stop()

    async def test_who_is_gone_is_no_longer_listed(self, client: Client) -> None:
        async with viewing(client, **asked(speed=1)) as viewer:
            await viewer.told("pause")
            assert len(await replays_of(client)) == 1
        while await replays_of(client):  # the test's time-out bounds it
            await asyncio.sleep(0.01)


def book_of(messages: list[dict[str, Any]]) -> list[dict[float, float]]:
    sides: list[dict[float, float]] = [{}, {}]
    for message in messages:
        if message["type"] == "book_change":
            sides = [{}, {}] if message["isSnapshot"] else sides
            for side, name in zip(sides, ("bids", "asks"), strict=True):
                side.update({level["price"]: level["amount"] for level in message[name]})
    return [{price: amount for price, amount in side.items() if amount} for side in sides]


class TestRawSessions:
    QUERY = {"exchange": "bitmex", "from": f"{DAY}00:00", "to": f"{DAY}00:02"}  # noqa: RUF012

    async def test_a_session_has_one_clock(self, client: Client) -> None:
        async with (
            viewing(client, "/ws-replay", session="clock", speed="1", **self.QUERY) as one,
            viewing(client, "/ws-replay", session="clock", **self.QUERY) as other,
        ):
            early = await one.say("pause")
            assert early["error"].startswith("control: this replay has not begun")
            for viewer in (one, other):
                await viewer.socket.send_json(SUBSCRIPTION)
            await one.frame()
            await other.told("pause")
            assert ((await one.told("status"))["paused"], (await one.told("status"))["clients"]) == (True, 2)
            counts = [len(viewer.messages) for viewer in (one, other)]
            assert counts[0] == counts[1] > 0
            await one.told("seek", to=LATER)
            await other.told("speed", speed="max")
            await one.told("resume")
            assert (await one.rest())[counts[0] :] == (await other.rest())[counts[1] :]
        async with viewing(client, "/ws-replay", **self.QUERY | {"from": LATER}) as alone:
            await alone.socket.send_json(SUBSCRIPTION)
            # Raw, it opens with what was recorded from then on, and nothing else.
            assert await alone.rest() == one.messages[counts[0] :]

    async def test_at_a_speed_none_comes_early(self, client: Client) -> None:
        asked_http = {"exchange": "bitmex", "from": f"{DAY}00:00", "to": f"{DAY}00:00:20"}
        filters = [{"channel": channel, "symbols": ["XBTUSD"]} for channel in ("trade", "orderBookL2")]
        body = (await client.get("/replay", asked_http | {"filters": filters}))[1]
        recorded = [json.loads(line) for line in body.splitlines()]
        start = datetime.fromisoformat(f"{DAY}00:00:00Z").timestamp()
        async with viewing(client, "/ws-replay", speed="20", **asked_http) as viewer:
            began = time.monotonic()
            await viewer.socket.send_json(SUBSCRIPTION)
            for line in recorded:
                assert await viewer.frame() == line["message"]
                assert time.monotonic() > began + (second_of(line) - start) / 20
            assert await viewer.rest() == [line["message"] for line in recorded]

    async def test_its_connections_agree_on_a_speed(self, client: Client) -> None:
        async with (
            viewing(client, "/ws-replay", session="agreed", speed="1", **self.QUERY) as one,
            viewing(client, "/ws-replay", session="agreed", speed="2", **self.QUERY) as other,
        ):
            closing = await other.socket.receive()
            assert (other.socket.close_code, "speed: expected the same" in str(closing.extra)) == (1008, True)
            await one.socket.close()


class TestReplays:
    async def test_they_are_listed_and_steered_by_their_ids(self, client: Client) -> None:
        request = options(apiKey="canary-secret", speed=2)
        async with viewing(client, **asked(speed=1)) as viewer:
            [listed] = await replays_of(client)
            state = await viewer.told("status")
            assert (listed["id"], listed["route"], listed["clients"]) == (state["id"], "/ws-replay-normalized", 1)
            assert len(listed["id"]) >= 20
            assert listed["request"] == [
                {
                    "exchange": "bitmex",
                    "from": f"{DAY}00:00:00.000000Z",
                    "to": f"{DAY}00:02:00.000000Z",
                    "dataTypes": ["trade", "book_change"],
                    "symbols": ["XBTUSD"],
                }
            ]
            path = f"/replays/{listed['id']}"
            assert (await post(client, f"{path}/control", {"control": "pause"}))[1]["state"] == "paused"
            assert (await viewer.told("status"))["paused"] is True
            status, answer = await post(client, f"{path}/control", {"control": "seek", "to": "x"})
            assert (status, answer["field"]) == (400, "to")
            status, answer = await post(client, f"{path}/control", {"control": "speed", "speed": 10})
            assert (status, answer["speed"]) == (200, 10)
            async with client.http.get(client.url(path)) as response:
                assert (await response.json())["speed"] == 10
            async with client.http.post(client.url("/replay-normalized"), json=request):
                both = await replays_of(client)
                assert len(both) == 2
                assert "canary" not in json.dumps(both)

    async def test_an_id_that_does_not_run_is_not_found(self, client: Client) -> None:
        assert (await post(client, "/replays/none/control", {"control": "pause"}))[0] == 404
        async with client.http.get(client.url("/replays/none")) as response:
            assert response.status == 404

    async def test_pages_of_others_steer_nothing(self, client: Client) -> None:
        async with viewing(client, **asked(speed=1)) as viewer:
            state = await viewer.told("status")
            path = f"/replays/{state['id']}/control"
            status, answer = await post(client, path, {"control": "pause"}, Origin="https://evil.example")
            assert (status, answer["message"].startswith("Origin: ")) == (403, True)
            assert (await post(client, path, {"control": "status"}, Origin="http://localhost:3000"))[0] == 200
            async with client.http.get(client.url("/replays"), headers={"Origin": "https://evil.example"}) as response:
                assert (response.status, response.headers.get("Access-Control-Allow-Origin")) == (403, None)
            assert (await viewer.told("status"))["paused"] is False

    async def test_a_compressed_answer_stays_where_it_is(self, client: Client) -> None:
        request = options(dataTypes=["trade", "book_change", "book_snapshot_10_0ms"])
        alone = await client.get("/replay-normalized", request)
        headers = {"Accept-Encoding": "gzip"}
        async with client.http.post(client.url("/replay-normalized"), json=request, headers=headers) as answer:
            path = f"/replays/{answer.headers['X-Replay-Id']}/control"
            assert answer.headers["Content-Encoding"] == "gzip"
            status, refusal = await post(client, path, {"control": "seek", "to": LATER})
            assert (status, refusal["field"]) == (400, "to")
            # It can be slowed down, though.
            assert (await post(client, path, {"control": "speed", "speed": 100_000}))[0] == 200
            assert await answer.read() == alone[1]


class TestLimits:
    async def test_a_pause_that_was_forgotten_ends_and_frees_its_place(self, cache_dir: Path) -> None:
        async with running_machine(SampleHistoryApi(port=9), cache_dir, max_pause=2, max_replays=1, workers=0) as client:
            async with viewing(client, **asked(speed=1)) as viewer:
                began = time.monotonic()
                await viewer.told("pause")
                status, body = await client.get("/replay-normalized", options())
                assert (status, "max-replays" in body.decode()) == (503, True)
                async for frame in viewer.socket:
                    viewer.messages.append(json.loads(frame.data))
                assert viewer.socket.close_code == 1008
                assert time.monotonic() - began >= 2
            assert (await client.get("/replay-normalized", options()))[0] == 200


class TestPublished:
    async def test_each_part_is_a_session_of_its_own(self, cache_dir: Path, tmp_path: Path) -> None:
        bus: dict[str, Any] = {"file": {"dir": tmp_path / "events"}, "spool_dir": tmp_path / "spool"}
        async with (
            running_machine(SampleHistoryApi(port=9), cache_dir, **bus) as client,
            viewing(client, **asked(speed=1, paceEvents=True)) as viewer,
        ):
            await viewer.frame()
            await viewer.told("pause")
            before = len(viewer.messages)
            await viewer.told("seek", to=LATER)
            await viewer.told("speed", speed="max")
            await viewer.told("resume")
            await viewer.rest()
        first, second = sorted(
            read_closed_sessions(tmp_path / "spool" / "file" / "sessions"), key=lambda session: session.complete
        )
        assert (first.complete, second.complete) == (False, True)
        events = [event for event in published(tmp_path / "events") if event.WhichOneof("payload") != "session_end"]
        by_session = {
            session.session_id: [event for event in events if event.meta["session_id"] == session.session_id]
            for session in (first, second)
        }
        # Paced, no event came before its message.
        assert len(by_session[first.session_id]) == before
        later = by_session[second.session_id]
        assert len(later) == len(viewer.messages) - before
        [opening] = [event for event in later if event.WhichOneof("payload") == "book_change" and event.book_change.is_snapshot]
        assert opening.sequence == 0


DAYS = {
    "seed": 3,
    "drop": 0.1,
    "duplicate": 0.1,
    "delay": {"probability": 0.1, "ms": 50},
    "disconnect": {"perHour": 60, "ms": 1000},
}


class TestFaults:
    async def test_the_same_seed_gives_the_same_bytes_on_every_way(
        self, client: Client, everything: list[dict[str, Any]]
    ) -> None:
        once = await client.lines(options(faults=DAYS))
        assert once != everything
        assert once == await client.lines(options(faults=DAYS, speed="max"))
        assert (await client.frames("/ws-replay-normalized", **asked(faults=DAYS)))[0] == once
        assert await client.lines(options(faults=DAYS | {"seed": 4})) != once
        lost = [place for place, message in enumerate(once) if message["type"] == "disconnect"]
        assert lost
        for place in lost:
            assert (once[place + 1]["type"], once[place + 1]["isSnapshot"]) == ("book_change", True)

    async def test_a_gap_is_silent_on_every_way(self, client: Client, everything: list[dict[str, Any]]) -> None:
        gap = {"seed": 2, "gap": {"perHour": 60, "minutes": 0.2}}
        once = await client.lines(options(faults=gap))
        assert 0 < len(once) < len(everything)
        assert {message["type"] for message in once} == {"trade", "book_change"}
        assert (await client.frames("/ws-replay-normalized", **asked(faults=gap)))[0] == once
        raw = {"exchange": "bitmex", "from": f"{DAY}00:00:00Z", "to": f"{DAY}00:02:00Z", "faults": gap}
        filters = [{"channel": channel, "symbols": ["XBTUSD"]} for channel in ("trade", "orderBookL2")]
        body = (await client.get("/replay", raw | {"filters": filters}))[1]
        assert len(body) < len((await client.get("/replay", raw | {"filters": filters, "faults": None}))[1])
        async with viewing(client, "/ws-replay", **raw | {"faults": json.dumps(gap)}) as viewer:
            await viewer.socket.send_json(SUBSCRIPTION)
            assert await viewer.rest() == [json.loads(line)["message"] for line in body.splitlines()]

    async def test_raw_history_has_them_too(self, client: Client) -> None:
        raw = options(symbols=None, dataTypes=None, filters=[{"channel": "trade", "symbols": ["XBTUSD"]}])
        raw["filters"].append({"channel": "orderBookL2", "symbols": ["XBTUSD"]})
        status, body = await client.get("/replay", raw | {"faults": DAYS})
        assert status == 200
        assert b"\n\n" in body  # a lost connection
        assert body == (await client.get("/replay", raw | {"faults": DAYS, "speed": "max"}))[1]
        query = {"exchange": "bitmex", "from": raw["from"], "to": raw["to"], "faults": json.dumps(DAYS)}
        async with viewing(client, "/ws-replay", **query) as viewer:
            await viewer.socket.send_json({"op": "subscribe", "args": ["trade:XBTUSD", "orderBookL2:XBTUSD"]})
            assert await viewer.rest() == [json.loads(line)["message"] for line in body.splitlines() if line]

    async def test_a_socket_is_closed_where_that_is_asked_for(self, client: Client, everything: list[dict[str, Any]]) -> None:
        faults = {"seed": 1, "disconnect": {"perHour": 60, "close": True}}
        frames, code = await client.frames("/ws-replay-normalized", **asked(faults=faults))
        assert code == 1012
        assert 0 < len(frames) < len(everything)
        assert frames == everything[: len(frames)]
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.get("/replay-normalized", options(faults=faults))

    async def test_a_seek_meets_the_same_day(self, client: Client) -> None:
        alone = await client.lines(options(faults=DAYS))
        async with viewing(client, **asked(faults=DAYS, speed=1)) as viewer:
            await viewer.told("pause")
            await viewer.told("seek", to=LATER)
            await viewer.until("paused")
            viewer.messages.clear()
            await viewer.told("speed", speed="max")
            await viewer.told("resume")
            await viewer.rest()
        assert viewer.messages == alone[-len(viewer.messages) :]
        assert len(viewer.messages) > 100

    async def test_a_fault_that_is_spelled_wrong_is_told(self, client: Client) -> None:
        status, body = await client.get("/replay-normalized", options(faults={"drops": 1}))
        assert (status, json.loads(body)["field"]) == (400, "faults")
