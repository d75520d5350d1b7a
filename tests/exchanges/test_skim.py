"""Lines that another worker maps are skimmed: what follows them is as if they had been mapped, on every exchange."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tardis_machine.errors import NormalizeError
from tardis_machine.exchanges import EXCHANGES
from tardis_machine.messages import parse_timestamp_us, to_timestamp
from tardis_machine.pipeline.normalizer import Normalizer
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.sample.venues import VENUES
from tests.exchanges.feeding import assert_skims
from tests.exchanges.test_vectors import dump, parse_keeping_numbers, rows

START_US = 1_711_929_600_000_000  # 2024-04-01
RECORDING = Recording(SampleMarket(3, 0.2), disconnects_per_day=2_880)


@pytest.mark.parametrize("exchange", sorted(VENUES))
def test_a_recording(exchange: str) -> None:
    data_types = EXCHANGES[exchange].data_types

    def make() -> Normalizer:
        return Normalizer(exchange, data_types, START_US, with_disconnects=True)

    lines = RECORDING.slice(exchange, START_US, 1, make().filters()).splitlines()
    random = Random(exchange)
    assert_skims(make, lines, [random.randrange(len(lines) + 1) for _ in range(6)])
    # As workers do that take turns: many pieces, every other one skimmed.
    turns, alone = make(), make()
    for start in range(0, len(lines), 40):
        piece = lines[start : start + 40]
        expected = alone.feed_lines(piece)
        if start % 80:
            assert turns.feed_lines(piece) == expected
        else:
            turns.skim_lines(piece)


@pytest.mark.parametrize("folder", ["normalize", "normalize_mutated"])
@pytest.mark.parametrize("exchange", sorted(EXCHANGES))
def test_real_messages(vectors: Path, exchange: str, folder: str) -> None:
    for row in rows(vectors / folder / f"{exchange}.jsonl"):
        if row["realtime"]:
            continue
        at_us = None if row["createdAt"] is None else parse_timestamp_us(row["createdAt"])

        def make(row: dict[str, list[str]] = row, at_us: int | None = at_us) -> Normalizer:
            return Normalizer(exchange, row["dataTypes"], at_us)

        lines = []
        for step in parse_keeping_numbers(row["text"])["steps"]:
            if "error" in step:
                break  # a replay ends there
            clock = to_timestamp(parse_timestamp_us(step["localTimestamp"]))
            lines.append(clock[:-1].encode() + b"0Z " + dump(step["message"]).encode())
        try:
            assert_skims(make, lines, {1, len(lines) // 2, len(lines) - 1} & set(range(1, len(lines))))
        except NormalizeError as error:
            raise AssertionError(row["id"]) from error


@pytest.mark.parametrize("exchange", sorted(EXCHANGES))
def test_books_are_skimmed_faster_than_mapped(exchange: str) -> None:
    assert Normalizer(exchange, ["trade", "book_change"], START_US).can_skim
