"""Arrow answers against JSON, from the request to a data frame, and to the last byte alone.

    python -m benchmarks arrow [-- --rounds 5 --minutes 20]

A rate is by the wall clock; "processor us" is the processor time of server and client together for each message, which
other work on the machine disturbs less, and the ratio beside it is of that.

Invariant: both answers are of one request to one server, read by one library, in turns; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from urllib.parse import quote
from urllib.request import Request, urlopen

import orjson
import polars as pl

from benchmarks.replay_server import ReplayServer, running_server
from benchmarks.report import Table, to_count, to_ratio
from benchmarks.sample_hour import fill, options

ARROW = "application/vnd.apache.arrow.stream"


def _read(data: bytes, accept: str) -> int:
    return len(data)


def _to_frame(data: bytes, accept: str) -> int:
    frame = pl.read_ipc_stream(data) if accept == ARROW else pl.read_ndjson(io.BytesIO(data), infer_schema_length=1_000)
    return frame.height


def _to_objects(data: bytes, accept: str) -> int:
    """What a program does that looks at each message."""
    if accept == ARROW:
        return sum(1 for _ in pl.read_ipc_stream(data).iter_rows())
    return sum(1 for _ in map(orjson.loads, data.splitlines()))


USES: dict[str, Callable[[bytes, str], int]] = {
    "to the last byte": _read,
    "to a polars frame": _to_frame,
    "to a row of Python after the other": _to_objects,
}


def _took_s(server: ReplayServer, asked: dict[str, object], accept: str, use: Callable[[bytes, str], int]) -> tuple[float, float]:
    """Seconds by the wall clock, and of the processor."""
    url = f"http://127.0.0.1:{server.port}/replay-normalized?options={quote(json.dumps(asked))}"
    began, cpu_s = time.perf_counter(), time.process_time() + server.cpu_s()
    with urlopen(Request(url, headers={"Accept": accept})) as response:
        use(response.read(), accept)
    return time.perf_counter() - began, time.process_time() + server.cpu_s() - cpu_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks arrow --")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=int, default=20)
    given = parser.parse_args(arguments)
    fill(given.minutes)
    table = Table(
        f"Messages a second, {given.minutes} minutes, median of {given.rounds}",
        *("", "", "JSON", "Arrow", "Arrow/JSON", "JSON processor us", "Arrow processor us", "Arrow/JSON", "JSON MB", "Arrow MB"),
    )
    with running_server() as server:
        for exchange, data_types in (
            ("bitmex", ["book_change"]),
            ("bitmex", ["trade", "book_change"]),
            ("okex", ["trade", "book_change"]),
        ):
            asked = options(exchange, given.minutes, *data_types)
            sizes: dict[str, int] = {}
            messages = 0
            for accept in ("application/json", ARROW):  # which also warms up
                url = f"http://127.0.0.1:{server.port}/replay-normalized?options={quote(json.dumps(asked))}"
                with urlopen(Request(url, headers={"Accept": accept})) as response:
                    data = response.read()
                sizes[accept] = len(data)
                messages = _to_frame(data, accept)
            for name, use in USES.items():
                took: dict[str, list[tuple[float, float]]] = {accept: [] for accept in sizes}
                for _ in range(given.rounds):
                    for accept, times in took.items():
                        times.append(_took_s(server, asked, accept, use))
                rates = [messages / median(wall_s for wall_s, _ in times) for times in took.values()]
                costs = [1e6 * median(cpu_s for _, cpu_s in times) / messages for times in took.values()]
                megabytes = [f"{size / 1e6:.0f}" for size in sizes.values()]
                table.add(
                    f"{exchange} {', '.join(data_types)}",
                    name,
                    *map(to_count, rates),
                    to_ratio(rates[1] / rates[0]),
                    *(f"{cost:.1f}" for cost in costs),
                    to_ratio(costs[0] / costs[1]),
                    *megabytes,
                )
    table.show()


if __name__ == "__main__":
    main()
