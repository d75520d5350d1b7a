"""What each exchange sends, and what it means: mappers, subscriptions and live feeds, one family of exchanges a module.

Invariant: pure; no event loop, network, clock or environment. To import this package imports no exchange.
"""

from __future__ import annotations

from ._decoding import decode_lines
from ._exchange import Exchange, make_mappers, switch_dates_us
from ._feed import Action, BookStep, Credentials, Feed, Fetch, FrameKind, Handshake, LiveApi, kind_of_error
from ._feeding import feed_messages
from ._mapper import DATA_TYPES, DataType, Json, Mapper
from ._parsing import to_number, verbatim
from ._registry import EXCHANGE_MODULES, EXCHANGES, exchange_named
from ._rows import LevelRows, Unread

__all__ = [
    "DATA_TYPES",
    "EXCHANGES",
    "EXCHANGE_MODULES",
    "Action",
    "BookStep",
    "Credentials",
    "DataType",
    "Exchange",
    "Feed",
    "Fetch",
    "FrameKind",
    "Handshake",
    "Json",
    "LevelRows",
    "LiveApi",
    "Mapper",
    "Unread",
    "decode_lines",
    "exchange_named",
    "feed_messages",
    "kind_of_error",
    "make_mappers",
    "switch_dates_us",
    "to_number",
    "verbatim",
]
