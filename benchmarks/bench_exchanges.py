"""Normalizing: microseconds a recorded message, for each exchange, and how that compares with a bitmex message of the same size.

The stream of an exchange is made of its transcript: the messages of its newest sections that give something each time they are repeated,
behind those that their state takes. Odd ones, of which a null comes, are left out: no exchange sends them by the million. Updates of a book
that moves on with each are numbered anew. What a bitmex message of another size takes than those of its own transcript do, is read off a
line through small and large ones. All take turns, and the best round of each counts; a round is long enough that how it begins does not.
"""

from __future__ import annotations

import argparse
import gc
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.report import Table, to_ratio
from tardis_machine.dates import parse_date_us
from tardis_machine.errors import NormalizeError
from tardis_machine.exchanges import EXCHANGES
from tardis_machine.messages import BookChange, to_json, to_timestamp
from tardis_machine.pipeline.normalizer import Normalizer
from tests.exchanges.fuzz import raws_of, transcript_of

SLOW = 0.5
"""Of bitmex's speed."""
FEW = 4
_CHAINED = {"u": 0, "U": 0, "pu": -1}
NUMBERED: Mapping[str, Mapping[str, int]] = {
    "aster": _CHAINED,
    "aster-futures": _CHAINED,
    "mexc": {"toVersion": 0, "fromVersion": 0},
    "mexc-futures": {"version": 0, "begin": 0, "end": 0},
}
"""Exchanges whose books move on with each update: the fields that number it, and how far each is from its number, which the first has."""


def number_of(exchange: str, line: bytes) -> int:
    """The number of an update."""
    found = re.search(rb'"%b":"?(\d+)' % next(iter(NUMBERED[exchange])).encode(), line)
    assert found
    return int(found[1])


def numbered(exchange: str, line: bytes, number: int) -> bytes:
    """The update with another number."""
    for name, distance in NUMBERED[exchange].items():
        line = re.sub(rb'("%b":"?)\d+' % name.encode(), rb"\g<1>%d" % (number + distance), line)
    return line


@dataclass
class Stream:
    """What is fed again and again."""

    exchange: str
    normalizer: Normalizer
    lines: list[bytes]
    update: bytes = b""
    """That of the lines which is numbered anew each time, where there is one."""
    number: int = 0
    """Where its book is."""
    best_s: float = float("inf")
    messages: int = 0
    """Normalized ones, of a round."""

    @property
    def size(self) -> float:
        """Bytes of a message."""
        return sum(map(len, self.lines)) / len(self.lines)

    def us(self, copies: int) -> float:
        """A message."""
        return self.best_s / (len(self.lines) * copies) * 1e6

    @property
    def messages_a_second(self) -> float:
        """Normalized ones."""
        return self.messages / self.best_s

    def run(self, copies: int) -> None:
        """One round."""
        lines = [self.next(line) for _ in range(copies) for line in self.lines]
        began = time.process_time()
        messages = self.normalizer.feed_lines(lines)
        self.best_s = min(self.best_s, time.process_time() - began)
        self.messages = len(messages)

    def next(self, line: bytes) -> bytes:
        """The line as it comes next."""
        if line is not self.update:
            return line
        self.number += 1
        return numbered(self.exchange, line, self.number)


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
    update = b""
    for again in (False, True):
        for section in sections:
            for raw in raws_of(section):
                line = line_of(at_us, raw)
                try:
                    messages = normalizer.feed_lines([line])
                except NormalizeError:
                    continue
                if not messages or b"null" in to_json(messages):
                    continue
                if again:
                    kept.append(line)
                elif isinstance(change := messages[-1], BookChange) and not change.is_snapshot:
                    update = line
    if update and exchange in NUMBERED:
        return Stream(exchange, normalizer, [*kept, update], update, number_of(exchange, update))
    return Stream(exchange, normalizer, kept)


def bitmex_stream(levels: int) -> Stream:
    """Updates of books and trades by turns."""
    at_us = parse_date_us("2026-06-01")
    row = '{"timestamp":"2026-06-01T00:00:00.050Z","symbol":"XBTUSD","id":%d,"side":"Buy","size":100,"price":%d.5,"trdMatchID":"a-%d"}'
    rows = ",".join(row % (number, 8500 + number, number) for number in range(levels))
    normalizer = Normalizer("bitmex", EXCHANGES["bitmex"].data_types, at_us)
    normalizer.feed_lines([line_of(at_us, f'{{"table":"orderBookL2","action":"partial","data":[{rows}]}}'.encode())])
    kinds = (("orderBookL2", "update"), ("trade", "insert"))
    return Stream(
        "bitmex", normalizer, [line_of(at_us, f'{{"table":"{t}","action":"{a}","data":[{rows}]}}'.encode()) for t, a in kinds]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--copies", type=int, default=500, help="how often the messages are in a round")
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
    own = streams["bitmex"]
    table = Table("Microseconds a recorded message", "exchange", "bytes", "us", "messages/s", "bitmex of that size", "ratio", "")
    ranked = sorted(streams.items(), key=lambda item: -item[1].us(given.copies) if item[1].lines else 0.0)
    for exchange, stream in ranked:
        if not stream.lines:
            table.add(exchange, "", "", "", "", "", "nothing repeats")
            continue
        us, like_bitmex = stream.us(given.copies), own.us(given.copies) + slope * (stream.size - own.size)
        ratio = like_bitmex / us
        table.add(
            exchange,
            f"{stream.size:.0f}",
            f"{us:.2f}",
            f"{stream.messages_a_second / 1000:.0f} k",
            f"{like_bitmex:.2f}",
            to_ratio(ratio),
            "slow" if ratio < SLOW else "",
        )
    table.show()


if __name__ == "__main__":
    main()
