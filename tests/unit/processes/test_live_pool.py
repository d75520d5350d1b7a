"""What a live process sent and nobody has taken: bounded, in order, and never in the way of a log line."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tardis_machine.errors import OptionsError, WorkerError
from tardis_machine.pipeline.request import StreamRequest, parse_stream_request, parse_stream_requests
from tardis_machine.processes.jobs.contract import Chunk, Done, Failed
from tardis_machine.processes.live_pool import _MAX_UNREAD_BYTES, LivePool, LiveSpec, Logged, _Unread


async def test_past_a_bound_the_sender_pauses_until_most_of_it_is_taken() -> None:
    told: list[str] = []
    unread = _Unread(lambda: told.append("pause"), lambda: told.append("resume"))
    piece = b"x" * (_MAX_UNREAD_BYTES // 8)
    for _ in range(12):
        unread.put(0, Chunk(piece, 1))
    unread.put(0, Done())
    assert told == ["pause"]
    taken = 0
    while told == ["pause"]:
        assert isinstance(await unread.get(), Chunk)
        taken += 1
    assert told == ["pause", "resume"]
    assert 8 < taken < 12
    for _ in range(12 - taken):
        await unread.get()
    assert isinstance(await unread.get(), Done)


async def test_it_waits_for_what_is_to_come() -> None:
    unread = _Unread(lambda: None, lambda: None)
    waiting = asyncio.create_task(unread.get())
    await asyncio.sleep(0)
    unread.fail(Failed(WorkerError("gone")))
    assert isinstance(await waiting, Failed)


async def test_log_lines_are_written_at_once_and_are_no_output(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tardis_machine")
    unread = _Unread(lambda: None, lambda: None)
    unread.put(0, Logged("tardis_machine.realtime", logging.WARNING, "connection lost", {"exchange": "bitmex"}))
    [record] = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("tardis_machine.realtime", "WARNING", "connection lost")
    assert not unread._items


async def test_a_request_that_can_not_begin_says_why() -> None:
    request = StreamRequest(exchange="bitmex", data_types=["trade"], symbols=["XBTUSD"])
    spec = LiveSpec([request], "frames", None, {"nowhere": "ws://x"})
    pool = LivePool()
    with pytest.raises(OptionsError, match="exchange-urls: got 'nowhere'"):
        async for _ in pool.run(spec):
            pass
    await pool.stop()
    assert not pool.pids


def test_stream_requests() -> None:
    request = parse_stream_request({"exchange": "bitmex", "dataTypes": ["quote"], "symbols": ["XBTUSD"], "timeoutIntervalMS": 0})
    assert (request.timeout_interval_ms, request.with_error_messages) == (0, False)
    assert parse_stream_request({"exchange": "bitmex", "dataTypes": ["trade"]}).timeout_interval_ms == 10_000
    with pytest.raises(OptionsError, match=r"\[1\]\.symbols: got nothing"):
        parse_stream_requests([{"exchange": "bitmex", "dataTypes": ["trade"]}, {"exchange": "kraken", "dataTypes": ["trade"]}])
    with pytest.raises(OptionsError, match="dataTypes: kraken has no liquidation"):
        parse_stream_request({"exchange": "kraken", "symbols": ["BTC/USD"], "dataTypes": ["liquidation"]})
