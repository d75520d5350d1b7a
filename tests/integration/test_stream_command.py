"""`tardis-machine stream` as a process: what a team runs as a service."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tardis_machine import replay_normalized, to_json
from tardis_machine.commands.cli import main
from tests.integration.scripted_exchange import ScriptedExchange, scripted_exchange
from tests.integration.served import gone_within
from tests.integration.test_publishing import published
from tests.integration.test_stream_server import trade

REQUEST = ("--exchange", "bitmex", "--symbols", "XBTUSD", "--data-types", "trade", "--timeout-interval", "0")


@asynccontextmanager
async def streaming(exchange: ScriptedExchange, *argv: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TM_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tardis_machine", "stream", *argv, "--exchange-urls", f"bitmex:{exchange.url}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environ,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_it_publishes_restarts_what_dies_and_drains(tmp_path: Path) -> None:
    bus = ("--file-dir", str(tmp_path / "events"), "--spool-dir", str(tmp_path / "spool"))
    async with scripted_exchange() as exchange, streaming(exchange, *REQUEST, *bus) as process:
        peer = await exchange.client()
        await peer.send(trade(1), trade(2))
        await asyncio.sleep(0.3)
        [live] = _children(process.pid)
        os.kill(live, signal.SIGKILL)
        again = await exchange.client()
        await again.send(trade(3), {"status": 400, "error": "no"})
        await asyncio.sleep(0.3)
        [live] = _children(process.pid)
        process.send_signal(signal.SIGTERM)
        output, log = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, log.decode()
        assert output == b""
        assert gone_within([live], 0)
    assert "Traceback" not in log.decode()
    assert "a stream failed and is started again" in log.decode()
    # Three trades, an error and two ends of sessions.
    assert "file: 6 published, 6 confirmed" in log.decode()
    events = published(tmp_path / "events")
    assert sorted(event.trade.trade_id for event in events if event.HasField("trade")) == ["1", "2", "3"]
    ends = {event.session_end.complete: event.session_end for event in events if event.HasField("session_end")}
    assert "died" in ends[False].reason
    assert {entry.payload_case: entry.count for entry in ends[True].entries} == {"trade": 1, "error": 1}
    assert {event.meta["transport"] for event in events if event.HasField("trade")} == {"cli"}


async def test_what_it_recorded_is_replayed_alike(tmp_path: Path) -> None:
    record = ("--record-dir", str(tmp_path), "--with-disconnects")
    async with scripted_exchange() as exchange, streaming(exchange, *REQUEST, *record) as process:
        for number in range(2):
            peer = await exchange.client()
            await peer.send(*(trade(10 * number + place) for place in range(5)))
            await asyncio.sleep(0.3)
            peer.cut()
        await exchange.client()
        process.send_signal(signal.SIGTERM)
        output, log = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, log.decode()
    live = [json.loads(line) for line in output.splitlines()]
    assert [message["type"] for message in live] == [*["trade"] * 5, "disconnect"] * 2
    first, last = live[0]["localTimestamp"], live[-1]["localTimestamp"]
    replayed = [
        json.loads(to_json(message))
        async for batch in replay_normalized(
            exchange="bitmex",
            symbols=["XBTUSD"],
            data_types=["trade"],
            with_disconnect_messages=True,
            from_=f"{first[:16]}:00Z",
            to=f"{(datetime.fromisoformat(last) + timedelta(minutes=1)).isoformat()[:16]}:00Z",
            cache_dir=tmp_path,
            api_url="http://127.0.0.1:9/v1",
        )
        for message in batch
    ]
    told = {"symbols", "reason", "closeCode"}
    assert replayed == [{name: value for name, value in message.items() if name not in told} for message in live]


async def test_without_a_bus_it_prints() -> None:
    asked = {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade"], "withDisconnectMessages": True}
    async with scripted_exchange() as exchange, streaming(exchange, "--options", json.dumps([asked])) as process:
        peer = await exchange.client()
        await peer.send(trade(1))
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 10)
        assert json.loads(line)["id"] == "1"
        peer.cut()
        line = await asyncio.wait_for(process.stdout.readline(), 10)
        assert json.loads(line)["type"] == "disconnect"
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, log.decode()
        assert "Traceback" not in log.decode()


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ((), "--exchange or --options is required"),
        (("--exchange", "deribit", "--data-types", "trade"), "--symbols: live data of deribit needs at least one symbol"),
        (("--exchange", "bitmex"), "--data-types: expected an array"),
        ((*REQUEST, "--options", "{}"), "--exchange can't be combined with --options, which holds the whole request"),
        ((*REQUEST, "--exchange-urls", "nowhere:ws://x"), "exchange-urls: expected an exchange that has live data"),
    ],
)
def test_mistakes_are_said_in_one_sentence(argv: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", *argv]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith(f"error: {problem}")
    assert "Traceback" not in said
