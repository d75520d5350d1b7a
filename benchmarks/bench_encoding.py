"""Encoding to Bronze: microseconds an event, ours, compiled and in Python, against the Protobuf library field by field, in one run.

All do the same work to the same bytes (checked before anything is timed): event id, sequence, envelope, payload. They take
turns, the best round of each counts, and time is that of the processor, so that other work on the machine disturbs little.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.report import Table, to_ratio
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.messages import BookChange, BookLevel, Trade, js_number, parse_timestamp_us, to_timestamp
from tests.compiled_or_not import import_as_python, import_compiled

MODULES = [f"tardis_machine.bronze.{name}" for name in ("wire", "payloads", "sealing", "encoding")]
*_, COMPILED = import_compiled(*MODULES)
WIRE_AS_PYTHON, _, SEALING_AS_PYTHON, ENCODING_AS_PYTHON = import_as_python(*MODULES)

SOURCE = "tardis-machine/0.1.0"
META = {
    "request_id": "0f8fad5b",
    "route": "/replay-normalized",
    "transport": "http",
    "app_version": "0.1.0",
    "session_id": "7c9e6679",
}
NOW_US = 1_700_000_000_123_456
BATCH = 1000
TARGETS_US = {"trade": 4.0, "trade, three in a line": 4.0, "book change of 10 levels": 12.0}


def make_trades(count: int, in_a_line: int = 1, seed: int = 1) -> list[Trade]:
    """Those of one line share their local time; alone in a line, a trade can reuse nothing of the one before."""
    rng = random.Random(seed)
    instant_us = 1_559_347_200_000_000
    trades: list[Trade] = []
    for index in range(count):
        if index % in_a_line == 0:
            instant_us += rng.randrange(50, 5_000)
            local_timestamp = to_timestamp(instant_us)
        trades.append(
            Trade(
                "XBTUSD",
                "bitmex",
                f"{rng.getrandbits(32):08x}-36bb-42fc-b2cd-{rng.getrandbits(48):012x}",
                js_number(8000 + rng.randrange(2000) / 2),
                js_number(round(rng.lognormvariate(0, 2), 6)),
                rng.choice(("buy", "sell")),
                to_timestamp(instant_us - rng.randrange(1_000, 50_000), milliseconds=True),
                local_timestamp,
            )
        )
    return trades


def make_book_changes(count: int, levels: int = 10, seed: int = 2) -> list[BookChange]:
    """Half of the levels bids, half asks; one in five removed."""
    rng = random.Random(seed)
    instant_us = 1_559_347_200_000_000

    def side() -> list[BookLevel]:
        return [
            BookLevel(
                js_number(8000 + rng.randrange(2000) / 2),
                js_number(round(rng.lognormvariate(0, 2), 6)) if rng.random() > 0.2 else 0,
            )
            for _ in range(levels // 2)
        ]

    changes = []
    for _ in range(count):
        instant_us += rng.randrange(50, 5_000)
        event_time = to_timestamp(instant_us - rng.randrange(1_000, 50_000), milliseconds=True)
        changes.append(BookChange("XBTUSD", "bitmex", False, side(), side(), event_time, to_timestamp(instant_us)))
    return changes


class LibraryEncoder:
    """The same events, built with the generated classes."""

    def __init__(self, fill: Callable[[pb.NormalizedEvent, Any], Any], payload_case: str) -> None:
        self._fill = fill
        self._numbering = SEALING_AS_PYTHON.EventNumbering("bitmex", "XBTUSD", payload_case)

    def encode(self, messages: Sequence[Any]) -> list[bytes]:
        numbering = self._numbering
        values = []
        for message in messages:
            event = pb.NormalizedEvent()
            event.source = SOURCE
            event.exchange = message.exchange
            event.symbol = message.symbol
            local_us = parse_timestamp_us(message.local_timestamp)
            set_timestamp(event.local_ts, local_us)
            set_timestamp(event.ingest_ts, NOW_US)
            event.origin = pb.ORIGIN_REPLAY
            for name, value in META.items():
                event.meta[name] = value
            event.millisecond_timestamps = 2
            payload = self._fill(event, message)
            event.event_id = numbering.event_id(WIRE_AS_PYTHON.encode_timestamp(local_us), local_us, payload.SerializeToString())
            event.sequence = numbering.next_sequence
            numbering.next_sequence += 1
            values.append(event.SerializeToString(deterministic=True))
        return values


def set_timestamp(field: Any, instant_us: int) -> None:
    field.seconds, micros = divmod(instant_us, 1_000_000)
    field.nanos = micros * 1000


def fill_trade(event: pb.NormalizedEvent, message: Trade) -> pb.Trade:
    trade = event.trade
    trade.trade_id = str(message.id)
    trade.price_str = repr(message.price)
    trade.qty_str = repr(message.amount)
    trade.side = pb.SIDE_BUY if message.side == "buy" else pb.SIDE_SELL
    set_timestamp(trade.event_ts, parse_timestamp_us(str(message.timestamp)))
    return trade


def fill_book_change(event: pb.NormalizedEvent, message: BookChange) -> pb.BookChange:
    change = event.book_change
    change.is_snapshot = message.is_snapshot
    set_timestamp(change.event_ts, parse_timestamp_us(str(message.timestamp)))
    for field, levels in ((change.bids, message.bids), (change.asks, message.asks)):
        for level in levels:
            field.add(price_str=repr(level.price), qty_str=repr(level.amount))
    return change


def seconds_of(encode: Callable[[Sequence[Any]], Any], messages: Sequence[Any]) -> float:
    started = time.process_time()
    for first in range(0, len(messages), BATCH):
        encode(messages[first : first + BATCH])
    return time.process_time() - started


def compare(
    messages: Sequence[Any], fill: Callable[[pb.NormalizedEvent, Any], Any], payload_case: str, rounds: int
) -> tuple[float, float, float]:
    """Microseconds an event: ours, ours in Python, the library's."""

    def ours(module: Any) -> Callable[[Sequence[Any]], Any]:
        encoder = module.BronzeEncoder(
            session_id=META["session_id"], origin="replay", meta=META, source=SOURCE, clock_us=lambda: NOW_US
        )
        encode: Callable[[Sequence[Any]], Any] = encoder.encode
        return encode

    def library() -> Callable[[Sequence[Any]], Any]:
        return LibraryEncoder(fill, payload_case).encode

    sample = messages[:BATCH]
    for module in (COMPILED, ENCODING_AS_PYTHON):
        if [event.value for event in ours(module)(sample)] != library()(sample):
            raise SystemExit("the encoders do not write the same bytes: nothing to compare")
    times = [
        (
            seconds_of(ours(COMPILED), messages),
            seconds_of(ours(ENCODING_AS_PYTHON), messages),
            seconds_of(library(), messages),
        )
        for _ in range(rounds)
    ]
    compiled, in_python, other = (min(column) / len(messages) * 1e6 for column in zip(*times, strict=True))
    return compiled, in_python, other


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    # Few, so that they are in the processor's cache, as they are where they were just made.
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args(arguments)
    gc.disable()  # as workers do
    cases = (
        ("trade", make_trades(given.events), fill_trade, "trade"),
        ("trade, three in a line", make_trades(given.events, in_a_line=3), fill_trade, "trade"),
        ("book change of 10 levels", make_book_changes(given.events), fill_book_change, "book_change"),
    )
    table = Table("Microseconds an event", "", "ours", "in Python", "library", "ratio", "wanted")
    for name, messages, fill, payload_case in cases:
        compiled, in_python, other = compare(messages, fill, payload_case, given.rounds)
        times = (f"{time_us:.2f}" for time_us in (compiled, in_python, other))
        table.add(name, *times, to_ratio(other / compiled), f"{TARGETS_US[name]:.1f}")
    table.show()


if __name__ == "__main__":
    main()
