"""The exchanges that are simulated, by the name that the history API gives them."""

from __future__ import annotations

from . import binance, bitmex, bybit, coinbase, deribit, kraken, okex
from ._contract import Dialogue, Family, Frame, Hangup, Ping, Rest, RestAnswer, parse

__all__ = ["DEFAULT_EXCHANGES", "FAMILIES", "Dialogue", "Family", "Frame", "Hangup", "Ping", "Rest", "RestAnswer", "parse"]

_ALL = (
    bitmex.FAMILIES,
    binance.FAMILIES,
    coinbase.FAMILIES,
    deribit.FAMILIES,
    okex.FAMILIES,
    kraken.FAMILIES,
    bybit.FAMILIES,
)
FAMILIES: dict[str, Family] = {family.venue.exchange: family for families in _ALL for family in families}
DEFAULT_EXCHANGES = tuple(name for name in FAMILIES if name != "binance-jersey")
"""All but the one that has closed: it is here for those who ask for it."""
