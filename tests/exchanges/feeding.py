"""Raw messages to normalized ones, for tests that write an exchange's messages by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from tardis_machine.exchanges._parsing import parse_date_us
from tardis_machine.messages import BookLevel, OptionSummary
from tardis_machine.pipeline.normalizer import Normalizer

RECORDED = b"2024-03-01T00:00:00.1234567Z"
LOCAL = "2024-03-01T00:00:00.123456Z"
"""The recorder's clock in every message."""


def normalize(exchange: str, data_type: str, *raw: Any, at: str | None = None, realtime: bool = False) -> list[Any]:
    """What one connection gives, with the mappers of a date; None among the messages is a lost connection."""
    lines = [b"" if message is None else RECORDED + b" " + orjson.dumps(message) for message in raw]
    at_us = None if at is None else parse_date_us(at)
    normalizer = Normalizer(exchange, [data_type], at_us, realtime)
    messages = normalizer.feed_lines(lines)
    if not realtime:
        assert_skims(lambda: Normalizer(exchange, [data_type], at_us), lines, range(1, len(lines)))
    return messages


def assert_skims(make: Callable[[], Normalizer], lines: Sequence[bytes], cuts: Iterable[int]) -> None:
    """What follows lines that were skimmed is as if they had been fed."""
    for cut in cuts:
        fed, skimmed = make(), make()
        fed.feed_lines(lines[:cut])
        skimmed.skim_lines(lines[:cut])
        assert skimmed.feed_lines(lines[cut:]) == fed.feed_lines(lines[cut:]), f"after {cut} lines"


def book(*levels: tuple[float, float]) -> list[BookLevel]:
    """One side of a book, of prices and amounts."""
    return [BookLevel(price, amount) for price, amount in levels]


def summary(*fields: Any) -> OptionSummary:
    """The summary of an option with these fields, in their order."""
    return OptionSummary(*fields)
