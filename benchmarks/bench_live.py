"""Live data through the real server: how much a live process takes in, and how old a message is when its client has it.

    python -m benchmarks live [-- --messages 400000 --seconds 10]

Invariant: the exchange, the server, its live process and the client are processes apart, on one machine. A rate of a core is messages
by the processor time of the live process alone, which other work on the machine disturbs little; ages are from the exchange's write to
the client's read, and stand beside those of a client that is connected to the exchange itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.bench_replay import NODE_LIBRARY
from benchmarks.live_exchange import LAST
from benchmarks.replay_server import ReplayServer, running_server
from benchmarks.report import Table, to_count, to_ratio
from benchmarks.sample_hour import fill

OPTIONS = {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade", "book_change"], "timeoutIntervalMS": 0}
RATES = (1_000, 10_000, 50_000)
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@contextmanager
def running_exchange() -> Iterator[int]:
    """Its port."""
    command = [sys.executable, "-m", "benchmarks.live_exchange"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def through_machine(port: int, rate: float, messages: int) -> dict[str, Any]:
    """What a client of the server has."""
    with running_server("--workers", "1", "--exchange-urls", f"bitmex:ws://127.0.0.1:{port}/{rate:g}/{messages}") as server:
        before = set(server.pids)
        url = f"ws://127.0.0.1:{server.port}/ws-stream-normalized?options={quote(json.dumps(OPTIONS))}"
        with subprocess.Popen([sys.executable, "-m", "benchmarks.live_client", url], stdout=subprocess.PIPE) as client:
            live = _only_new(server, before, client)
            cpu_s = 0.0
            while client.poll() is None:
                try:
                    cpu_s = _cpu_s(live)
                except FileNotFoundError:
                    break
                try:
                    client.wait(0.02)
                except subprocess.TimeoutExpired:
                    continue
            assert client.stdout is not None
            took: dict[str, Any] = json.loads(client.stdout.read())
        return took | {"cpuSeconds": cpu_s}


def _only_new(server: ReplayServer, before: set[int], client: subprocess.Popen[bytes]) -> int:
    while client.poll() is None:
        if new := set(server.pids) - before:
            return new.pop()
        time.sleep(0.005)
    raise SystemExit("the client ended before its live process was seen")


def directly(port: int, rate: float, messages: int) -> dict[str, Any]:
    """What a client of the exchange itself has."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.live_client",
        f"ws://127.0.0.1:{port}/{rate:g}/{messages}/realtime",
        '{"op":"subscribe"}',
    ]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)  # type: ignore[no-any-return]


def by_node(port: int, rate: float, messages: int) -> dict[str, Any]:
    """What the Node library has in its own process: there is no server and no other client."""
    script = Path(__file__).with_name("node_live.js")
    environ = os.environ | {"WSS_URL_BITMEX": f"ws://127.0.0.1:{port}/{rate:g}/{messages}/realtime"}
    ended = subprocess.run(["node", str(script), str(NODE_LIBRARY), LAST], stdout=subprocess.PIPE, check=True, env=environ)
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks live --")
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--no-node", action="store_true", help="without the Node library")
    given = parser.parse_args(arguments)
    fill(4)
    with running_exchange() as port:
        empty = through_machine(port, 0, 1)["cpuSeconds"]
        table = Table(
            f"As fast as it goes, {to_count(given.messages)} raw messages",
            "",
            "raw messages/s",
            "of a core",
            "wanted",
            "ours/Node",
        )
        ours = through_machine(port, 0, given.messages)
        ours_core = given.messages / (ours["cpuSeconds"] - empty)
        node = {} if given.no_node else by_node(port, 0, given.messages)
        node_core = given.messages / node["cpuSeconds"] if node else 0.0
        ratio = to_ratio(ours_core / node_core) if node else ""
        table.add("live process", to_count(given.messages / ours["seconds"]), to_count(ours_core), "50.0 k", ratio)
        if node:
            table.add("Node library, JSON included", to_count(given.messages / node["seconds"]), to_count(node_core))
        table.show()
        ages = Table("Age of a message when its client has it, ms", "raw messages/s", "", "p50", "p99", "max")
        for rate in RATES:
            contenders = {"directly": directly, "through the machine": through_machine} | (
                {} if given.no_node else {"Node library": by_node}
            )
            for name, contender in contenders.items():
                took = contender(port, rate, rate * given.seconds)
                ages.add(to_count(rate), name, *(f"{age:.2f}" for age in took["ages_ms"]))
        ages.show()


if __name__ == "__main__":
    main()
