"""Replays of a cached hour through the real server, against the Node library and the raw limits of this machine, in one run.

    python -m benchmarks replay [-- --rounds 5 --minutes 60 --market mostly-updates]

All rows but one are of the same market; that one is of the other (`sample_hour`), as books of mostly updates are easier to follow.

Invariant: all contenders read the same files, take turns within a round, and the median of the rounds counts. A rate is by the wall
clock; the rate of a core divides by the processor time of all processes of the server instead, which other work on the machine disturbs
less. "processor us" is that time for each message of the one request that runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import quote

import orjson

from benchmarks.drain import http_request, ws_request
from benchmarks.replay_server import Cost, running_server
from benchmarks.report import Table, spread, to_count, to_ratio
from benchmarks.sample_hour import EXCHANGES, MARKETS, SYMBOLS, cache_dir, fill, options, raw_options, slices
from tardis_machine.history.reader import read_lines

NODE_LIBRARY = Path(__file__).parents[1] / ".tools" / "npm" / "node_modules" / "tardis-dev"
SNAPSHOT_MINUTES = 20
ALONE = ("binance-futures", "bybit", "deribit", "okex-swap")
"""Exchanges that are measured by themselves too, beside bitmex."""
NODE_MINUTES = 20
"""Minutes that Node replays: its rate does not depend on how many."""


@dataclass(frozen=True)
class Scenario:
    """One thing to measure."""

    name: str
    market: str
    request: str
    node: dict[str, object]
    """What the Node library is to do."""
    node_server_rate: float | None
    """Messages a second of the Node server, measured once on two cores like these; None: it was not."""
    times: float
    """How many times the library's rate we want."""
    subscription: str = ""


def scenarios(minutes: int, market: str) -> list[Scenario]:
    """All of them; one is of the other market."""
    [other] = MARKETS.keys() - {market}
    both = options("bitmex", minutes, "trade", "book_change")
    five = [options(exchange, minutes, "trade", "book_change") for exchange in EXCHANGES]
    quotes = options("bitmex", minutes, "quote")
    snapshots, deep = (
        options("bitmex", min(minutes, SNAPSHOT_MINUTES), name) for name in ("book_snapshot_25_100ms", "book_snapshot_50_0ms")
    )
    raw = raw_options("bitmex", minutes)
    subscription = json.dumps({"op": "subscribe", "args": [f"{channel}:XBTUSD" for channel in ("trade", "orderBookL2")]})
    ws_raw = f"/ws-replay?exchange=bitmex&from={quote(str(raw['from']))}&to={quote(str(raw['to']))}"

    def node(kind: str, *requests: dict[str, object]) -> dict[str, object]:
        few = [options(str(request["exchange"]), min(minutes, NODE_MINUTES))["to"] for request in requests]
        return {"kind": kind, "requests": [request | {"to": to} for request, to in zip(requests, few, strict=True)]}

    return [
        Scenario("/replay", market, http_request("/replay", raw), node("raw", raw), 600e3, 8),
        Scenario(
            "/replay-normalized trade, book_change",
            market,
            http_request("/replay-normalized", both),
            node("normalized", both),
            101e3,
            5,
        ),
        Scenario(f"… {other}", other, http_request("/replay-normalized", both), node("normalized", both), 101e3, 5),
        *(
            Scenario(
                f"… of {exchange}",
                market,
                http_request("/replay-normalized", options(exchange, minutes, "trade", "book_change")),
                node("normalized", options(exchange, minutes, "trade", "book_change")),
                None,
                5,
            )
            for exchange in ALONE
        ),
        Scenario(
            "… of five exchanges, merged", market, http_request("/replay-normalized", five), node("normalized", *five), 73e3, 6
        ),
        Scenario("… quote", market, http_request("/replay-normalized", quotes), node("normalized", quotes), 33e3, 6),
        # Twenty minutes in three seconds.
        Scenario(
            "… book_snapshot_25_100ms",
            market,
            http_request("/replay-normalized", snapshots),
            node("normalized", snapshots),
            12e3 / 3,
            6,
        ),
        Scenario("… book_snapshot_50_0ms", market, http_request("/replay-normalized", deep), node("normalized", deep), None, 5),
        Scenario("/ws-replay", market, ws_request(ws_raw), node("raw", raw), 135e3, 5, subscription),
        Scenario(
            "/ws-replay-normalized trade, book_change",
            market,
            ws_request(f"/ws-replay-normalized?options={quote(json.dumps(both))}"),
            node("normalized", both),
            42e3,
            6,
        ),
    ]


def run_node(task: dict[str, object], market: str) -> tuple[Cost, float]:
    """What the Node library took for a task on a market, and its memory in MB."""
    script = Path(__file__).with_name("node_replay.js")
    command = ["node", str(script), str(NODE_LIBRARY), str(cache_dir(market)), json.dumps(task)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    took = json.loads(ended.stdout)
    return Cost(took["messages"], took["seconds"], took["cpuSeconds"]), took["peakMB"]


def decompress_and_split(minutes: int, market: str) -> Cost:
    """Reading alone."""
    began = time.process_time()
    lines = sum(len(read_lines(item)) for item in slices("bitmex", minutes, market=market))
    took_s = time.process_time() - began
    return Cost(lines, took_s, took_s)


def parse_and_drop(minutes: int, market: str) -> Cost:
    """Reading, and making objects of what is read."""
    began = time.process_time()
    count = 0
    for item in slices("bitmex", minutes, market=market):
        for line in read_lines(item):
            if line:
                orjson.loads(line[29:])
                count += 1
    took_s = time.process_time() - began
    return Cost(count, took_s, took_s)


class Rounds:
    """Runs of one contender."""

    def __init__(self) -> None:
        self.costs: list[Cost] = []

    @property
    def rates(self) -> list[float]:
        return [cost.messages / cost.wall_s for cost in self.costs]

    @property
    def rate(self) -> float:
        """Messages a second."""
        return median(self.rates)

    @property
    def core_rate(self) -> float:
        """Messages a second of processor time."""
        return median(cost.messages / cost.cpu_s for cost in self.costs)

    @property
    def processor_us(self) -> float:
        """Microseconds of processor time a message."""
        return 1e6 / self.core_rate

    @property
    def cores(self) -> float:
        """How many cores worked."""
        return median(cost.cpu_s / cost.wall_s for cost in self.costs)


def compare(minutes: int, rounds: int, with_node: bool, only: str, market: str) -> None:
    """All scenarios, in turns."""
    chosen = [scenario for scenario in scenarios(minutes, market) if only in scenario.name]
    ours = {scenario.name: Rounds() for scenario in chosen}
    node = {scenario.name: Rounds() for scenario in chosen}
    limits: dict[str, tuple[Callable[[int, str], Cost], Rounds]] = {
        "decompress and split": (decompress_and_split, Rounds()),
        "… and parse, and drop": (parse_and_drop, Rounds()),
    }
    node_peak_mb = 0.0
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running_server(market=name)) for name in {each.market for each in chosen}}
        for _ in range(rounds):
            for limit, its_rounds in limits.values():
                its_rounds.costs.append(limit(min(minutes, NODE_MINUTES), market))
            for scenario in chosen:
                ours[scenario.name].costs.append(servers[scenario.market].run(scenario.request, scenario.subscription))
                if with_node:
                    cost, peak_mb = run_node(scenario.node, scenario.market)
                    node[scenario.name].costs.append(cost)
                    node_peak_mb = max(node_peak_mb, peak_mb)
        peak_mb = max(server.peak_mb for server in servers.values())
    parse = limits["… and parse, and drop"][1].rate
    table = Table(
        f"Messages a second, {minutes} minutes of the {market} market, median of {rounds}",
        *(
            "",
            "ours",
            "",
            "cores",
            "of a core",
            "processor us",
            "Node library",
            "ours/library",
            "ours/library, of a core",
            "Node server",
            "ours/server",
            "wanted",
            "ours/parse",
        ),
    )
    for scenario in chosen:
        own, other, server_rate = ours[scenario.name], node[scenario.name], scenario.node_server_rate
        table.add(
            scenario.name,
            to_count(own.rate),
            spread(own.rates),
            f"{own.cores:.1f}",
            to_count(own.core_rate),
            f"{own.processor_us:.2f}",
            *(
                (to_count(other.rate), to_ratio(own.rate / other.rate), to_ratio(own.core_rate / other.core_rate))
                if with_node
                else ("", "", "")
            ),
            *(("", "") if server_rate is None else (to_count(server_rate), to_ratio(own.rate / server_rate))),
            to_ratio(scenario.times),
            f"{own.rate / parse:.2f}",
        )
    for name, (_, its_rounds) in limits.items():
        rates = (to_count(its_rounds.rate), spread(its_rounds.rates), "1.0", to_count(its_rounds.core_rate))
        table.add(name, *rates, f"{its_rounds.processor_us:.2f}")
    table.show()
    memory = Table("Memory, all processes, at most", "", "MB")
    memory.add("ours, all of the above", f"{peak_mb:.0f}")
    memory.add("the Node library", f"{node_peak_mb:.0f}" if with_node else "")
    memory.add("the Node server", "190-340")
    memory.show()


def scale(minutes: int, rounds: int, market: str) -> None:
    """Ten times the data."""
    costs: dict[int, list[Cost]] = {}
    peaks: dict[int, float] = {}
    for part in (minutes // 10, minutes):
        with running_server(market=market) as server:
            request = http_request("/replay-normalized", options("bitmex", part, "trade", "book_change"))
            costs[part] = [server.run(request) for _ in range(rounds)]
            peaks[part] = server.peak_mb
    table = Table(
        "Ten times the data: /replay-normalized trade, book_change", "minutes", "messages", "seconds", "cpu seconds", "MB"
    )
    for part, its_costs in costs.items():
        wall_s, cpu_s = median(cost.wall_s for cost in its_costs), median(cost.cpu_s for cost in its_costs)
        table.add(str(part), to_count(its_costs[0].messages), f"{wall_s:.2f}", f"{cpu_s:.2f}", f"{peaks[part]:.0f}")
    few, many = (
        [median(getattr(cost, what) for cost in costs[part]) for what in ("messages", "wall_s", "cpu_s")] for part in costs
    )
    ratios = [more / less for less, more in zip(few, many, strict=True)]
    table.add("ratio", *(f"{ratio:.1f}x" for ratio in ratios), f"{peaks[minutes] / peaks[minutes // 10]:.2f}x")
    table.show()


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks replay --")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--only", default="", help="scenarios whose name holds this text")
    parser.add_argument("--market", choices=list(MARKETS), default="everyday", help="of all rows but one (everyday)")
    parser.add_argument("--no-node", action="store_true", help="without the Node library")
    parser.add_argument("--no-scale", action="store_true", help="without ten times the data")
    given = parser.parse_args(arguments)
    for market in MARKETS:
        fill(given.minutes, market=market, exchanges=SYMBOLS if market == given.market else EXCHANGES)
    compare(given.minutes, given.rounds, not given.no_node, given.only, given.market)
    if not given.no_scale:
        scale(given.minutes, given.rounds, given.market)


if __name__ == "__main__":
    main()
