"""OKX, once OKEx: two generations of its API, one behind the other, and its spreads. https://www.okx.com/docs-v5

Invariant: a minute is written in the language that was in force on its day; the switch falls on midnight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ...instrument import Instrument
from ...market import Minute, SampleMarket, SlotBook
from .._contract import SECOND, Row, Venue, Wants
from .._listing import quarter_ends
from . import v3, v5
from .listing import PRODUCTS, Language
from .spreads import OkexSpreadsVenue

__all__ = ["OkexSpreadsVenue", "OkexVenue"]

# 2021-12-23, when the recorder went over to the new API.
_V5_SINCE_MINUTE = 27_336_960


class OkexVenue(Venue):
    """okex (spot), okex-swap, okex-futures or okex-options."""

    def __init__(self, exchange: str) -> None:
        self.exchange = exchange
        self._product = PRODUCTS[exchange]
        self._list = lru_cache(maxsize=16)(self._product.listing)
        self.channels = (*v3.channels(self._product), *v5.channels(self._product))
        self.book_channels = tuple(v5.BOOKS)

    def instruments(self, minute_index: int) -> Sequence[Instrument]:
        return self._list(self.exchange, quarter_ends(minute_index)[0])

    def rows(self, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
        return _language(minute.index).rows(self._product, market, minute, channels)

    def greeting(self, market: SampleMarket, arrival: int, wants: Wants) -> Iterator[Row]:
        index = arrival // (60 * SECOND)
        return _language(index).greeting(self._product, market, self.instruments(index), arrival, wants)

    def opening(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> str | None:
        return v5.opening(minute, channel, arrival)

    def shown(self, market: SampleMarket, minute: Minute, channel: str, arrival: int) -> SlotBook:
        return v5.shown(minute, channel, arrival)

    def common(self, market: SampleMarket, minute_index: int, wants: Wants) -> Iterator[Row]:
        return _language(minute_index).common(self._product, market, self.instruments(minute_index), minute_index, wants)


def _language(minute_index: int) -> Language:
    return v5 if minute_index >= _V5_SINCE_MINUTE else v3
