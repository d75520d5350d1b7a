"""The registry of exchanges: explicit, and validated when it is imported.

Invariant: a name is here once, and everything that it names is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..errors import OptionsError
from . import binance, bitmex, bybit, coinbase, deribit, kraken, okex
from ._exchange import Decoder, Exchange, make_mappers, switch_dates_us, validate
from ._feed import Feed, FrameKind, HttpRequest, Live, kind_of_error
from ._feeding import clock_of, clocks_of, feed_messages, join_lines
from ._mapper import DATA_TYPES, DataType, Json, Mapper

__all__ = [
    "DATA_TYPES",
    "EXCHANGES",
    "DataType",
    "Decoder",
    "Exchange",
    "Feed",
    "FrameKind",
    "HttpRequest",
    "Json",
    "Live",
    "Mapper",
    "clock_of",
    "clocks_of",
    "exchange_named",
    "feed_messages",
    "join_lines",
    "kind_of_error",
    "make_mappers",
    "switch_dates_us",
]


def _registry(*families: tuple[Exchange, ...]) -> Mapping[str, Exchange]:
    registry: dict[str, Exchange] = {}
    for exchange in (exchange for family in families for exchange in family):
        if exchange.name in registry:
            raise ValueError(f"{exchange.name} is registered twice")
        validate(exchange)
        registry[exchange.name] = exchange
    return MappingProxyType(registry)


EXCHANGES: Mapping[str, Exchange] = _registry(
    binance.EXCHANGES,
    bitmex.EXCHANGES,
    bybit.EXCHANGES,
    coinbase.EXCHANGES,
    deribit.EXCHANGES,
    kraken.EXCHANGES,
    okex.EXCHANGES,
)


def exchange_named(name: object) -> Exchange:
    """The exchange of that name; an unknown one is the caller's mistake."""
    exchange = EXCHANGES.get(name) if isinstance(name, str) else None
    if exchange is None:
        given = repr(name)
        given = given if len(given) <= 80 else f"{given[:77]}..."
        raise OptionsError(f"exchange: got {given}, takes one of {', '.join(sorted(EXCHANGES))}", "exchange")
    return exchange
