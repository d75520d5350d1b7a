"""Raw messages to normalized ones, for tests that write an exchange's messages by hand."""

from __future__ import annotations

from typing import Any

import orjson

from tardis_machine.dates import parse_date_us
from tardis_machine.messages import BookLevel, OptionSummary
from tardis_machine.pipeline.normalizer import Normalizer

RECORDED = b"2024-03-01T00:00:00.1234567Z"
LOCAL = "2024-03-01T00:00:00.123456Z"
"""The recorder's clock in every message."""


def normalize(exchange: str, data_type: str, *raw: Any, at: str | None = None, realtime: bool = False) -> list[Any]:
    """What one connection gives, with the mappers of a date; None among the messages is a lost connection."""
    lines = [b"" if message is None else RECORDED + b" " + orjson.dumps(message) for message in raw]
    at_us = None if at is None else parse_date_us(at)
    return Normalizer(exchange, [data_type], at_us, realtime).feed_lines(lines)


def book(*levels: tuple[float, float]) -> list[BookLevel]:
    """One side of a book, of prices and amounts."""
    return [BookLevel(price, amount) for price, amount in levels]


def summary(*fields: Any) -> OptionSummary:
    """The summary of an option with these fields, in their order."""
    return OptionSummary(*fields)
