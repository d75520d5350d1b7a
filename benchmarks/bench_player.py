"""The player: how late instants leave at a speed, how long a seek takes, and what it costs that a replay can be cut.

    python -m benchmarks player [-- --seconds 20 --rounds 5]

Invariant: lateness is what the server itself saw, from when an instant was due to its being written, and for all instants of the run; the
client is another process. Costs are ratios of runs that take turns. How late is a matter of the machine: other work on it shows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from math import inf
from statistics import median
from urllib.parse import quote
from urllib.request import urlopen

from aiohttp import ClientSession

from benchmarks.drain import http_request, ws_request
from benchmarks.replay_server import Cost, ReplayServer, running_server
from benchmarks.report import Table, spread, to_count
from benchmarks.sample_hour import fill, options

WANTED_S = 0.005
WANTED_SHARE = 0.99
MINUTES = 60
_BUCKET = re.compile(r'tardis_machine_player_late_seconds_bucket\{le="([^"]+)",route="[^"]+"\} (\S+)')


def asked(speed: float, seconds: float) -> dict[str, object]:
    """A request that takes so long at a speed."""
    end_s = min(round(seconds * speed), MINUTES * 60)
    to = f"2020-02-01T00:{end_s // 60:02d}:{end_s % 60:02d}Z" if end_s < 3600 else "2020-02-01T01:00:00Z"
    return options("bitmex", MINUTES, "trade", "book_change") | {"to": to, "speed": speed}


def buckets(server: ReplayServer) -> dict[float, float]:
    """How many instants were at most so late, of all routes."""
    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as response:
        text = response.read().decode()
    counts: dict[float, float] = {}
    for bound, count in _BUCKET.findall(text):
        counts[float(bound.replace("+Inf", "inf"))] = counts.get(float(bound.replace("+Inf", "inf")), 0) + float(count)
    return counts


def play(server: ReplayServer, request: str, clients: int) -> dict[float, float]:
    """The lateness of a request that so many clients have at once."""
    before = buckets(server)
    task = json.dumps({"request": request, "subscription": ""}).encode()
    with ExitStack() as stack:
        command = [sys.executable, "-m", "benchmarks.drain", str(server.port)]
        drains = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) for _ in range(clients)
        ]
        for drain in drains:
            assert drain.stdin is not None
            drain.stdin.write(task)
            drain.stdin.close()
        if any(drain.wait() for drain in drains):
            sys.exit("a client failed")
    return {bound: count - before.get(bound, 0) for bound, count in buckets(server).items()}


def lateness(seconds: float) -> None:
    """At some speeds, and with several clients."""
    table = Table("How late instants leave", "", "instants", "at most 1 ms", "at most 5 ms", "p99 at most", "wanted")
    for speed, clients in ((1, 1), (10, 1), (100, 1), (1, 10)):
        with running_server() as server:
            target = f"/ws-replay-normalized?options={quote(json.dumps(asked(speed, seconds)))}"
            late = play(server, ws_request(target), clients)
        total = late[inf]
        p99_s = next(bound for bound, count in sorted(late.items()) if count >= WANTED_SHARE * total)
        shares = [f"{late[bound] / total:.2%}" for bound in (0.001, WANTED_S)]
        name = f"{speed}x" if clients == 1 else f"{speed}x, {clients} clients at once"
        table.add(name, to_count(total), *shares, f"{p99_s * 1000:g} ms", f"{WANTED_S * 1000:g} ms" if speed == 1 else "")
    table.show()


async def seek(port: int, minute: int) -> tuple[float, float]:
    """Seconds to the book of that minute, and back to the one before it."""
    query = {"options": json.dumps(options("bitmex", MINUTES, "trade", "book_change") | {"speed": 1})}
    took: list[float] = []
    async with ClientSession() as http, http.ws_connect(f"http://127.0.0.1:{port}/ws-replay-normalized", params=query) as socket:
        await socket.send_json({"control": "pause"})
        for place in (minute, minute - 1):
            began = time.perf_counter()
            await socket.send_json({"control": "seek", "to": f"2020-02-01T00:{place:02d}:30Z"})
            has_sought = False
            async for frame in socket:
                message = json.loads(frame.data)
                has_sought = has_sought or message.get("control") == "seek"
                if has_sought and message.get("isSnapshot"):
                    break
            took.append(time.perf_counter() - began)
    return took[0], took[1]


def seeks(rounds: int) -> None:
    """How long a seek takes, by how much of its day lies before it."""
    table = Table(
        f"Seconds from a seek to its book, median of {rounds}", "minutes since the start of the day", "there", "a minute back"
    )
    with running_server() as server:
        for minute in (1, 10, 59):
            took = [asyncio.run(seek(server.port, minute)) for _ in range(rounds)]
            table.add(str(minute), *(f"{median(each):.2f}" for each in zip(*took, strict=True)))
    table.show()


def cost(rounds: int) -> None:
    """A replay that can be cut at each instant, against one that is not cut."""
    plain = options("bitmex", MINUTES, "trade", "book_change")
    requests = {"without a speed": plain, "speed max": plain | {"speed": "max"}, "speed 100000": plain | {"speed": 100_000}}
    costs: dict[str, list[Cost]] = {name: [] for name in requests}
    with running_server() as server:
        for _ in range(rounds):
            for name, request in requests.items():
                costs[name].append(server.run(http_request("/replay-normalized", request)))
    table = Table(
        f"Messages a second of /replay-normalized, median of {rounds}", "", "by the wall", "", "of a core", "ratio of a core"
    )
    base = median(each.messages / each.cpu_s for each in costs["without a speed"])
    for name, its in costs.items():
        rates, core = [each.messages / each.wall_s for each in its], median(each.messages / each.cpu_s for each in its)
        table.add(name, to_count(median(rates)), spread(rates), to_count(core), f"{core / base:.2f}")
    table.show()


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks player --")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each speed is watched")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    fill(MINUTES)
    lateness(given.seconds)
    seeks(given.rounds)
    cost(given.rounds)


if __name__ == "__main__":
    main()
