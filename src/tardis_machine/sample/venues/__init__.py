"""The venues of the sample market that were recorded, by the name that the history API gives them. Some are only live: live/families."""

from __future__ import annotations

from ._contract import Venue
from .binance import BinanceVenue
from .bitmex import BitmexVenue
from .coinbase import CoinbaseVenue
from .deribit import DeribitVenue
from .okex import OkexSpreadsVenue, OkexVenue

__all__ = ["VENUES", "Venue"]

VENUES: dict[str, Venue] = {
    venue.exchange: venue
    for venue in (
        BitmexVenue(),
        *(BinanceVenue(name) for name in ("binance", "binance-us", "binance-jersey", "binance-futures", "binance-delivery")),
        CoinbaseVenue(),
        DeribitVenue(),
        *(OkexVenue(name) for name in ("okex", "okex-swap", "okex-futures", "okex-options")),
        OkexSpreadsVenue(),
    )
}
