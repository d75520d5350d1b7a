"""Normalizing: microseconds a recorded message, for each exchange, and how that compares with a bitmex message of the same size.

The stream of an exchange is made of its transcript: the messages of its newest sections that give something each time they are repeated,
behind those that their state takes. Odd ones, of which a null comes, are left out: no exchange sends them by the million. A book that is
joined by numbers does not repeat: of such, trades and quotes are measured. What a bitmex message of some size takes, is read off a line
through small and large ones. All take turns, and the best round of each counts.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.report import Table, to_ratio
from tardis_machine.dates import parse_date_us
from tardis_machine.errors import NormalizeError
from tardis_machine.exchanges import EXCHANGES
from tardis_machine.messages import to_json, to_timestamp
from tardis_machine.pipeline.normalizer import Normalizer
from tests.exchanges.fuzz import raws_of, transcript_of

SLOW = 0.5
"""Of bitmex's speed."""
FEW = 4


@dataclass
class Stream:
    """What is fed again and again."""

    normalizer: Normalizer
    lines: list[bytes]
    best_s: float = float("inf")

    @property
    def size(self) -> float:
        """Bytes of a message."""
        return sum(map(len, self.lines)) / len(self.lines)

    def us(self, copies: int) -> float:
        """A message."""
        return self.best_s / (len(self.lines) * copies) * 1e6

    def run(self, copies: int) -> None:
        """One round."""
        lines = self.lines * copies
        began = time.process_time()
        self.normalizer.feed_lines(lines)
        self.best_s = min(self.best_s, time.process_time() - began)


def line_of(at_us: int, raw: bytes) -> bytes:
    return to_timestamp(at_us)[:-1].encode() + b"0Z " + raw


def stream_of(exchange: str) -> Stream:
    """The newest date of the transcript that has a few messages which repeat, or that with the most of them."""
    dates = sorted({parse_date_us(section.at) for section in transcript_of(exchange).of("history")}, reverse=True)
    streams = [stream_at(exchange, at_us) for at_us in dates]
    return next((stream for stream in streams if len(stream.lines) >= FEW), max(streams, key=lambda stream: len(stream.lines)))


def stream_at(exchange: str, at_us: int) -> Stream:
    """All sections of a date."""
    sections = [section for section in transcript_of(exchange).of("history") if parse_date_us(section.at) == at_us]
    normalizer = Normalizer(exchange, EXCHANGES[exchange].data_types, at_us)
    kept: list[bytes] = []
    for again in (False, True):
        for section in sections:
            for raw in raws_of(section):
                line = line_of(at_us, raw)
                try:
                    messages = normalizer.feed_lines([line])
                    if again and messages and b"null" not in to_json(messages):
                        kept.append(line)
                except NormalizeError:
                    continue
    return Stream(normalizer, kept)


def bitmex_stream(levels: int) -> Stream:
    """Updates of books and trades by turns."""
    at_us = parse_date_us("2026-06-01")
    row = '{"timestamp":"2026-06-01T00:00:00.050Z","symbol":"XBTUSD","id":%d,"side":"Buy","size":100,"price":%d.5,"trdMatchID":"a-%d"}'
    rows = ",".join(row % (number, 8500 + number, number) for number in range(levels))
    normalizer = Normalizer("bitmex", EXCHANGES["bitmex"].data_types, at_us)
    normalizer.feed_lines([line_of(at_us, f'{{"table":"orderBookL2","action":"partial","data":[{rows}]}}'.encode())])
    kinds = (("orderBookL2", "update"), ("trade", "insert"))
    return Stream(normalizer, [line_of(at_us, f'{{"table":"{t}","action":"{a}","data":[{rows}]}}'.encode()) for t, a in kinds])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--copies", type=int, default=100, help="how often the messages are in a round")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    small, large = bitmex_stream(1), bitmex_stream(12)
    streams = {exchange: stream_of(exchange) for exchange in EXCHANGES}
    gc.disable()  # as workers do
    for _ in range(given.rounds):
        for stream in (small, large, *(stream for stream in streams.values() if stream.lines)):
            stream.run(given.copies)
        gc.collect()
    slope = (large.us(given.copies) - small.us(given.copies)) / (large.size - small.size)
    table = Table("Microseconds a recorded message", "exchange", "bytes", "us", "bitmex of that size", "ratio", "")
    ranked = sorted(streams.items(), key=lambda item: -item[1].us(given.copies) if item[1].lines else 0.0)
    for exchange, stream in ranked:
        if not stream.lines:
            table.add(exchange, "", "", "", "", "nothing repeats")
            continue
        us, like_bitmex = stream.us(given.copies), small.us(given.copies) + slope * (stream.size - small.size)
        ratio = like_bitmex / us
        table.add(
            exchange, f"{stream.size:.0f}", f"{us:.2f}", f"{like_bitmex:.2f}", to_ratio(ratio), "slow" if ratio < SLOW else ""
        )
    table.show()


if __name__ == "__main__":
    main()
