"""Other people's clients of the history API against this machine: each in an environment of its own, compared with our own answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.dates import parse_date_us
from tardis_machine.history.client import HistoryClient
from tardis_machine.history.reader import read_lines
from tardis_machine.messages import Trade
from tests.integration.served import FILTERS
from tests.interop.machine import DAY, KEY, TOKEN, SharedMachine, run, shared_machine
from tests.servers.certificates import Authority
from tests.servers.process import TOOLS

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SharedMachine]:
    """With TLS, as the client for Node knows nothing else."""
    issued = authority.issue("server")
    with shared_machine(
        tmp_path_factory.mktemp("machine"), "--tls-cert", str(issued.cert), "--tls-key", str(issued.key)
    ) as machine:
        yield machine


def python_of(name: str) -> Path:
    python = TOOLS / "interop" / name / "bin" / "python"
    assert python.exists(), f"{name} is missing: run make setup"
    return python


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
async def test_tardis_dev_for_python_replays(
    machine: SharedMachine, tmp_path: Path, authority: Authority, compression: str
) -> None:
    program = (python_of("tardis-dev"), PROGRAMS / "tardis_dev_client.py")
    output = await run(*program, f"{machine.url}/v1", TOKEN, tmp_path, compression, SSL_CERT_FILE=str(authority.ca))
    check_lines(output.split(b"\n")[:-1], await machine.lines())


async def test_tardis_dev_for_python_finds_symbols_and_downloads(
    machine: SharedMachine, tmp_path: Path, authority: Authority
) -> None:
    program = (python_of("tardis-dev"), PROGRAMS / "tardis_dev_client.py")
    said = json.loads(await run(*program, f"{machine.url}/v1", TOKEN, tmp_path, "metadata", SSL_CERT_FILE=str(authority.ca)))
    assert said["symbols"] == [{"exchange": "bitmex", "symbols": ["XBTUSD", "ETHUSD"]}]
    assert said["instrument"]["priceIncrement"] == 0.5
    check_rows(said["rows"], await machine.trades("2020-02-03"))


async def test_tardis_client_replays(machine: SharedMachine, tmp_path: Path, authority: Authority) -> None:
    program = (python_of("tardis-client"), PROGRAMS / "tardis_client_client.py")
    output = await run(*program, machine.url, TOKEN, tmp_path, SSL_CERT_FILE=str(authority.ca))
    check_lines(output.split(b"\n")[:-1], await machine.lines())


async def test_tardis_dev_for_node_replays_and_finds_symbols(
    machine: SharedMachine, tmp_path: Path, authority: Authority
) -> None:
    library = TOOLS / "npm" / "node_modules" / "tardis-dev"
    program = ("node", PROGRAMS / "node_client.js", library)
    output = await run(*program, f"{machine.url}/v1", TOKEN, tmp_path, NODE_EXTRA_CA_CERTS=str(authority.ca))
    said: dict[str, Any] = json.loads(output)
    check_lines([line.encode() for line in said["lines"]], await machine.lines())
    trades = await machine.trades("2020-02-02T00:07")
    assert [(t["id"], t["price"], t["amount"], t["side"]) for t in said["trades"]] == [
        (t.id, t.price, t.amount, t.side) for t in trades
    ]
    assert said["details"]["id"] == "bitmex"
    assert (said["instrument"]["id"], [each["id"] for each in said["perpetuals"]]) == ("XBTUSD", ["XBTUSD", "ETHUSD"])
    assert said["access"][0]["dataPlan"] == "sample"
    assert KEY not in output.decode()


async def test_tardis_dev_for_node_shares_a_cache_with_us(machine: SharedMachine, tmp_path: Path, authority: Authority) -> None:
    """One folder for both: what we brought is there, it brings the rest, and then neither of us needs a server."""

    async def ours(api_url: str, to: str) -> list[bytes]:
        async with HistoryClient(api_url, KEY, tmp_path) as client:
            items = [item async for item in client.slices("bitmex", parse_date_us(DAY), parse_date_us(to), FILTERS)]
            return [line for item in items for line in await asyncio.to_thread(read_lines, item)]

    expected = await machine.lines()
    first = await ours(machine.upstream_url, f"{DAY}T00:03")
    assert first == expected[: len(first)]
    program = ("node", PROGRAMS / "node_client.js", TOOLS / "npm" / "node_modules" / "tardis-dev")
    output = await run(*program, f"{machine.url}/v1", TOKEN, tmp_path, NODE_EXTRA_CA_CERTS=str(authority.ca))
    check_lines([line.encode() for line in json.loads(output)["lines"]], expected)
    assert await ours("http://127.0.0.1:9/v1", f"{DAY}T00:07") == expected


def check_lines(came: list[bytes], expected: list[bytes]) -> None:
    assert len(expected) > 500
    assert b"" in expected
    assert came == expected


def check_rows(rows: list[str], trades: list[Trade]) -> None:
    """The rows of a day of trades."""
    assert rows[0] == "exchange,symbol,timestamp,local_timestamp,id,side,price,amount"
    assert len(trades) > 200
    cells = [row.split(",") for row in rows[1:]]
    assert [(row[3], row[4], row[5], float(row[6]), float(row[7])) for row in cells] == [
        (str(t.local_timestamp_us), t.id, t.side, float(t.price), float(t.amount)) for t in trades
    ]
