"""What the parsers of NautilusTrader and tardis-rs ask of a machine, which both end at the first message that is otherwise.

Text frames, no type that was not asked for, levels with both numbers or none at all, bars without nulls, a close with 1000.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import aiohttp
import pytest

from tests.interop.machine import SharedMachine, shared_machine

DATA_TYPES = (
    "trade",
    "book_change",
    "derivative_ticker",
    "quote",
    "book_snapshot_5_100ms",
    "book_snapshot_50_1s",
    "trade_bar_1m",
    "trade_bar_10ms",
    "trade_bar_5ticks",
    "trade_bar_1000vol",
)
NUMBERS_OF_BARS = ("interval", "open", "high", "low", "close", "volume", "buyVolume", "sellVolume", "trades", "vwap")
TEXTS = ("name", "kind", "openTimestamp", "closeTimestamp", "timestamp", "localTimestamp", "symbol", "exchange")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with shared_machine(tmp_path_factory.mktemp("machine"), token=None) as machine:
        yield machine


async def replayed(machine: SharedMachine, **fields: Any) -> tuple[list[aiohttp.WSMessage], int | None]:
    """All frames of a replay, and the code of its end."""
    asked = {"exchange": "bitmex", "symbols": ["XBTUSD"], "from": "2020-02-01", "to": "2020-02-01T00:10", **fields}
    port = int(machine.url.rpartition(":")[2]) + 1
    url = f"ws://127.0.0.1:{port}/ws-replay-normalized"
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(url, params={"options": json.dumps([asked])}, max_msg_size=0) as socket,
    ):
        return [frame async for frame in socket], socket.close_code


def type_of(asked: str) -> str:
    """What messages of a data type are called."""
    return "book_snapshot" if asked.startswith(("quote", "book_snapshot")) else "trade_bar" if "bar" in asked else asked


@pytest.mark.parametrize("asked", [*([each] for each in DATA_TYPES), list(DATA_TYPES)], ids=lambda asked: "+".join(asked)[:40])
async def test_every_frame_is_one_that_parsers_take(machine: SharedMachine, asked: list[str]) -> None:
    frames, code = await replayed(machine, dataTypes=asked, withDisconnectMessages=False)
    assert code == 1000
    assert frames
    assert {frame.type for frame in frames} == {aiohttp.WSMsgType.TEXT}
    messages = [json.loads(frame.data) for frame in frames]
    # Nothing unasked, and of all that was asked something.
    assert {message["type"] for message in messages} == {type_of(each) for each in asked}
    for message in messages:
        for side in ("bids", "asks"):
            for level in message.get(side, ()):
                assert level == {} or level.keys() == {"price", "amount"}
                assert all(type(number) in (int, float) for number in level.values())
        if message["type"] == "trade_bar":
            assert all(type(message[name]) in (int, float) for name in NUMBERS_OF_BARS)
            assert all(isinstance(message[name], str) for name in TEXTS)


async def test_lost_connections_are_told_only_on_request(machine: SharedMachine) -> None:
    span = {"to": "2020-02-01T01:00", "dataTypes": ["trade"]}
    for wanted in (False, True):
        frames, code = await replayed(machine, withDisconnectMessages=wanted, **span)
        counts = Counter(json.loads(frame.data)["type"] for frame in frames)
        assert code == 1000
        assert (counts["disconnect"] > 0) == wanted
        assert counts["trade"] > 0


async def test_a_request_that_can_not_be_played_is_no_normal_end(machine: SharedMachine) -> None:
    frames, code = await replayed(machine, dataTypes=["trades"])
    assert (frames, code) == ([], 1008)
