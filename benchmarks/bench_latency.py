"""How old a trade is when its event is confirmed on Kafka: from the exchange's write, through the machine, to a consumer.

    python -m benchmarks latency [-- --rate 1000 --seconds 10]

Invariant: exchange, machine, live process, broker, consumer and client are processes apart, on one machine. The age on Kafka is taken
where a consumer has the record, which nobody can read before it is confirmed: it is an upper bound, with one fetch in it. Beside it stands
the age at a WebSocket client of the same stream, at the same time; and both where batches wait for no more than a millisecond.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.bench_live import OPTIONS, RATES, running_exchange
from benchmarks.replay_server import running_server
from benchmarks.report import Table, to_count
from benchmarks.sample_hour import fill
from tests.contract.bus_under_test import BusUnderTest, load_bus

DEADLINE_S = 120
WAYS = ("a client of the machine", "Kafka")
DELAYS: dict[str, dict[str, Any]] = {"default": {}, "1 ms": {"max-batch-delay-ms": 1}}


def measure(bus: BusUnderTest, folder: Path, exchange_port: int, rate: int, messages: int, delay: str) -> dict[str, Any]:
    """What client and consumer had of one stream."""
    topic = bus.new_destination(f"latency-{folder.name}")
    keywords = {**bus.direct_keywords(), "topic": topic, "dead-letter-dir": folder / "dead-letters", **DELAYS[delay]}
    urls = f"bitmex:ws://127.0.0.1:{exchange_port}/{rate}/{messages}"
    reader = [sys.executable, "-m", "benchmarks.kafka_reader", *keywords["brokers"], topic]
    with (
        running_server("--exchange-urls", urls, "--spool-dir", str(folder / "spool"), *bus.flags(**keywords)) as server,
        subprocess.Popen(reader, stdout=subprocess.PIPE, text=True) as consumer,
    ):
        assert consumer.stdout is not None
        try:
            assert consumer.stdout.readline() == "ready\n"
            url = f"ws://127.0.0.1:{server.port}/ws-stream-normalized?options={quote(json.dumps(OPTIONS))}"
            client = [sys.executable, "-m", "benchmarks.live_client", url]
            seen = subprocess.run(client, stdout=subprocess.PIPE, check=True, timeout=DEADLINE_S)
            consumer.wait(DEADLINE_S)
            return dict(zip(WAYS, (json.loads(seen.stdout), json.loads(consumer.stdout.read())), strict=True))
        finally:
            consumer.kill()


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks latency --")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rate", type=int, action="append", help="messages a second; may be repeated; all by default")
    given = parser.parse_args(arguments)
    fill(4)
    table = Table("Age of a trade, ms", "raw messages/s", "batch delay", "when it is at", "p50", "p99", "max", "messages")
    with tempfile.TemporaryDirectory() as temporary, running_exchange() as port:
        folder = Path(temporary)
        bus = load_bus("kafka")(folder)
        try:
            for rate, delay in product(given.rate or RATES, DELAYS):
                took = measure(bus, folder / f"{rate}-{delay.partition(' ')[0]}", port, rate, rate * given.seconds, delay)
                for way in WAYS:
                    ages = [f"{age:.2f}" for age in took[way]["ages_ms"]]
                    table.add(to_count(rate), delay, way, *ages, to_count(took[way]["messages"]))
        finally:
            bus.close()
    table.show()


if __name__ == "__main__":
    main()
