"""What a recorded message costs to parse, map and write, for every exchange and data type, so that a slow mapper is seen.

    python -m benchmarks mapping [-- --rounds 5 --only bybit]

The messages are those of the transcripts, said again and again: each time over a new connection, so that books begin anew. What it takes
to make the mappers of a connection is measured too, and taken off. Messages of a transcript are few and short: the figures compare
mappers with each other, and are no rates.

Invariant: processor time of this process alone, the best of some rounds.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.report import Table
from tardis_machine.dates import parse_date_us
from tardis_machine.exchanges import EXCHANGES, make_mappers
from tardis_machine.pipeline.frames import READS_ROWS, to_json_lines
from tardis_machine.pipeline.normalizer import Normalizer
from tests.exchanges.test_transcripts import recorded_time
from tests.exchanges.transcript import FOLDER, SUFFIX, Section, read_transcript

CONNECTIONS = 100
REFERENCE = "bitmex"


class Cost(NamedTuple):
    """Of a data type of an exchange."""

    exchange: str
    data_type: str
    bytes_a_line: float
    us_a_line: float

    @property
    def ns_a_byte(self) -> float:
        return self.us_a_line * 1000 / self.bytes_a_line


def best_s(work: Callable[[], object], rounds: int) -> float:
    """Processor time of the fastest round."""
    took = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
        gc.collect()
    return min(took)


def measure(exchange: str, section: Section, data_type: str, rounds: int) -> Cost | None:
    """None where nothing of the section comes out as this type."""
    clock, at_us = recorded_time(section), parse_date_us(section.at)
    said = [clock + b" " + step.text.encode() for step in section.steps if step.verb == "<"]
    lines = [b"", *said] * CONNECTIONS

    def run() -> int:
        written = to_json_lines(Normalizer(exchange, [data_type], at_us, only_written=READS_ROWS).feed_lines(lines))
        return len(written)

    def connect() -> None:
        for _ in range(CONNECTIONS):
            make_mappers(EXCHANGES[exchange], [data_type], at_us, False)

    if not run():
        return None
    us = (best_s(run, rounds) - best_s(connect, rounds)) * 1e6 / (CONNECTIONS * len(said))
    return Cost(exchange, data_type, sum(map(len, said)) / len(said), us)


def costs_of(exchange: str, rounds: int) -> list[Cost]:
    """The data types of its transcript, of the latest date that has them."""
    found: dict[str, Cost] = {}
    for section in read_transcript(FOLDER / f"{exchange}{SUFFIX}").of("history"):
        if any(step.verb == "!" for step in section.steps):
            continue
        for data_type in section.data_types:
            if cost := measure(exchange, section, data_type, rounds):
                found[data_type] = cost
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks mapping --")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="exchanges whose name holds this text")
    given = parser.parse_args(arguments)
    gc.disable()
    reference = {cost.data_type: cost for cost in costs_of(REFERENCE, given.rounds)}
    table = Table(
        f"A message of a transcript, and what a byte of it costs against one of {REFERENCE}'s",
        "",
        "data type",
        "bytes",
        "us",
        "ns a byte",
        f"of {REFERENCE}",
    )
    costs = [cost for name in sorted(EXCHANGES) if given.only in name for cost in costs_of(name, given.rounds)]
    for cost in sorted(costs, key=lambda one: one.ns_a_byte, reverse=True):
        like = reference.get(cost.data_type)
        ratio = f"{cost.ns_a_byte / like.ns_a_byte:.1f}" if like else ""
        table.add(
            cost.exchange, cost.data_type, f"{cost.bytes_a_line:.0f}", f"{cost.us_a_line:.2f}", f"{cost.ns_a_byte:.1f}", ratio
        )
    table.show()


if __name__ == "__main__":
    main()
