"""Spreads, of two instruments traded as one: `BTC-USDT_BTC-USDT-SWAP`. https://www.okx.com/docs-v5/en/#spread-trading

The API is the one of today (v5), with `sprdId` for `instId`. There is no book but its five best levels, whole each time.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...messages import UNSET, BookChange, BookTicker
from .._mapper import Json
from .._parsing import levels
from .rows import EPOCH
from .v5 import OkexV5Mapper, OkexV5TradeMapper, timestamp_of, to_book_ticker


class OkexSpreadTradeMapper(OkexV5TradeMapper):
    channels = reads = ("sprd-public-trades",)
    symbol_field = "sprdId"


class OkexSpreadBookChangeMapper(OkexV5Mapper):
    channels = ("sprd-books5",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookChange]:
        symbol = message["arg"].get("sprdId", UNSET)
        for book in message["data"]:
            timestamp = timestamp_of(book)
            if timestamp != EPOCH:
                bids, asks = levels(book["bids"]), levels(book["asks"])
                yield BookChange(symbol, self.exchange, True, bids, asks, timestamp, local_timestamp)


class OkexSpreadBookTickerMapper(OkexV5Mapper):
    channels = ("sprd-bbo-tbt",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        symbol = message["arg"].get("sprdId", UNSET)
        for book in message.get("data") or ():
            timestamp = timestamp_of(book)
            if timestamp != EPOCH:
                yield to_book_ticker(symbol, self.exchange, book, timestamp, local_timestamp)
