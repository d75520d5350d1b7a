"""The demo as a user runs it: the whole walk, with counts that agree at every stage; and its ways to live data and to brokers."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tardis_machine.commands.demo.client import run_client
from tardis_machine.commands.demo.display import Display
from tardis_machine.commands.demo.plan import plan_demo
from tardis_machine.errors import UsageError
from tardis_machine.settings import resolve
from tests.servers.process import ROOT
from tests.servers.redis import RedisServer
from tests.spark.conftest import SMALL_DATA_CONF

DEMO = (sys.executable, "-m", "tardis_machine", "demo")
EXCHANGES = ["binance", "bitmex", "coinbase", "deribit", "okex"]


def run(*command: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TM_")}
    environ |= {"COLUMNS": "120", "TM_SPARK_CONF": ",".join(f"{name}={value}" for name, value in SMALL_DATA_CONF.items())}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(printed: str, folder: Path, stages: list[str]) -> list[int]:
    """Looks at what is shown; returns the counts of the first stage."""
    rows = re.findall(r"│ (\S+(?: \S+)*) +│ +([\d,]+) │ +([\d,]+) │ +([\d,]+) │ +([\d,]+) │ ✓ │", printed)
    assert [stage for stage, *_ in rows] == stages
    assert len({tuple(counts) for _, *counts in rows}) == 1
    assert "nothing is missing" in printed
    bars = re.findall(r"│ (\w+) +│ \d\d:\d\d:\d\d │(?: +[\d.]+ │){6}", printed)
    assert sorted(set(bars)) == EXCHANGES
    assert (folder / "bars.png").stat().st_size > 10_000
    return [int(count.replace(",", "")) for count in rows[0][1:]]


@pytest.mark.timeout(900)
def test_history_through_files(tmp_path: Path) -> None:
    folder = tmp_path / "a demo"
    for left_over in ("events/part-old.parquet", "lake/silver/trades/_delta_log/00000000000000000000.json", "spool/file/lock"):
        (folder / left_over).parent.mkdir(parents=True)
        (folder / left_over).write_text("of an earlier run that was killed")
    printed = run(*DEMO, "--demo-dir", str(folder), "--demo-span", "2m", "--demo-activity", "10")
    trades, changes, tickers, _ = check(printed, folder, ["client received", "file confirmed", "bronze", "silver"])
    assert trades > 500
    assert changes > 2_000
    assert tickers > 100


def test_live_to_a_broker(tmp_path: Path, redis: RedisServer) -> None:
    """What comes after the bus is the same as for history."""
    argv = ["--demo-live", "--demo-span=6s", "--demo-activity=20", f"--demo-dir={tmp_path}"]
    argv += ["--redis-host=127.0.0.1", f"--redis-port={redis.port}", "--redis-stream=demo"]
    settings = resolve(argv, {}, command="demo")
    counts = run_client(plan_demo(settings), settings, Display())
    received, confirmed = counts["client received"], counts["redis confirmed"]
    assert confirmed.pop("session_end") == len(EXCHANGES)
    assert confirmed == received
    assert redis.ask("XLEN", "demo") == received.total() + len(EXCHANGES)
    # How much six seconds bring depends on how busy the machine is.
    assert min(received[kind] for kind in ("trade", "book_change", "derivative_ticker")) > 0


async def test_it_stays_for_a_browser_where_it_is_asked_to(tmp_path: Path) -> None:
    argv = ["--demo-dir", str(tmp_path), "--demo-span", "1m", "--demo-open"]
    code = f"""
from tardis_machine.commands.demo.display import Display
from tardis_machine.commands.demo.page import keep_serving
from tardis_machine.commands.demo.plan import plan_demo
from tardis_machine.settings import resolve
if __name__ == "__main__":
    settings = resolve({argv!r}, {{}}, command="demo")
    keep_serving(plan_demo(settings), settings, Display())
"""
    script = tmp_path / "demo.py"
    script.write_text(code)
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while not (found := re.search(rb"(http://localhost:\d+/) until Ctrl-C", await process.stdout.readline())):
                pass
        with urlopen(found[1].decode(), timeout=10) as response:
            assert b"<title>tardis-machine</title>" in response.read()
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0


def test_a_command_with_a_bus_of_its_own() -> None:
    printed = run(sys.executable, "-m", "tests.with_bus", "nats", "--", sys.executable, "-m", "tardis_machine", "doctor")
    assert "All checks passed: nats." in printed


@pytest.mark.parametrize("argv", [["--demo-live", "--demo-real"], ["--file-dir=x", "--redis-host=h", "--redis-stream=s"]])
def test_what_does_not_go_together_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^--demo-live and --demo-real can't be combined|^the demo publishes to one bus"):
        plan_demo(resolve(argv, {}, command="demo"))
