"""Live data through the real server: how much a live process takes in, and how old a message is when its client has it.

    python -m benchmarks live [-- --only speed --messages 400000 --seconds 10]

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
from statistics import median
from typing import Any
from urllib.parse import quote

from benchmarks.bench_replay import NODE_LIBRARY
from benchmarks.live_exchange import LAST
from benchmarks.replay_server import ReplayServer, running_server
from benchmarks.report import Table, spread, to_count, to_ratio
from benchmarks.sample_hour import fill

OPTIONS = {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade", "book_change"], "timeoutIntervalMS": 0}
RATES = (1_000, 10_000, 50_000)
RATE_TARGET, NODE_TARGET = 50_000, 4.0
AGE_TARGET_MS = 2.0
JUDGED_RATES = (1_000, 10_000)
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


def show_speed(port: int, messages: int, rounds: int, *, with_node: bool) -> None:
    """As fast as it goes, in turns."""
    empty_s = through_machine(port, 0, 1)["cpuSeconds"]
    table = Table(
        f"As fast as it goes, {to_count(messages)} raw messages; median of {rounds} rounds",
        *("", "raw messages/s", "of a core", "", "wanted", "ours/Node", "wanted of it"),
    )
    contenders = {"live process": through_machine} | ({"Node library, JSON included": by_node} if with_node else {})
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    of_core: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            took = contender(port, 0, messages)
            rates[name].append(messages / took["seconds"])
            of_core[name].append(messages / (took["cpuSeconds"] - (empty_s if contender is through_machine else 0.0)))
    for name, contender in contenders.items():
        cells = [to_count(median(rates[name])), to_count(median(of_core[name])), spread(of_core[name])]
        if contender is through_machine:
            cells.append(to_count(RATE_TARGET))
            if with_node:
                ours, node = of_core.values()
                cells += [to_ratio(median(own / other for own, other in zip(ours, node, strict=True))), to_ratio(NODE_TARGET)]
        table.add(name, *cells)
    table.show()


def show_ages(port: int, seconds: int, rounds: int, rates: Sequence[int], *, with_node: bool) -> None:
    """How much older a message is behind the machine than beside it."""
    ages = Table(
        f"Age of a message when its client has it, ms; median of {rounds} rounds", "raw messages/s", "", "p50", "p99", "max"
    )
    contenders = {"directly": directly, "through the machine": through_machine} | ({"Node library": by_node} if with_node else {})
    verdicts = []
    for rate in rates:
        found: dict[str, list[Sequence[float]]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, contender in contenders.items():
                found[name].append(contender(port, rate, rate * seconds)["ages_ms"])
        for name, measured in found.items():
            ages.add(to_count(rate), name, *(f"{median(points):.2f}" for points in zip(*measured, strict=True)))
        more_ms = median(
            ours[1] - theirs[1] for ours, theirs in zip(found["through the machine"], found["directly"], strict=True)
        )
        if rate in JUDGED_RATES:
            is_met = "met" if more_ms <= AGE_TARGET_MS else "not met"
            verdicts.append(
                f"wanted: p99 at {to_count(rate)} messages/s no more than {AGE_TARGET_MS:g} ms above directly: {is_met} ({more_ms:+.2f} ms)"
            )
    ages.show()
    for verdict in verdicts:
        print(f"\n{verdict}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks live --")
    parser.add_argument("--only", choices=("speed", "ages"), help="one of the tables")
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rate", type=int, action="append", help="of the ages; may be repeated; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-node", action="store_true", help="without the Node library")
    given = parser.parse_args(arguments)
    fill(4)
    with running_exchange() as port:
        if given.only != "ages":
            show_speed(port, given.messages, given.rounds, with_node=not given.no_node)
        if given.only != "speed":
            show_ages(port, given.seconds, given.rounds, given.rate or RATES, with_node=not given.no_node)


if __name__ == "__main__":
    main()
