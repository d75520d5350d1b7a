"""Polymarket. https://docs.polymarket.com/api-reference/wss/market

A message says what happened: `{"event_type": "last_trade_price", "asset_id": "50004092…", "price": "0.61", "size": "25", "side": "SELL",
"timestamp": "1778480999950", …}`. A symbol is the id of an asset, one outcome of a market, and has up to 78 digits. Numbers are text,
times milliseconds as text. Books of several assets come as a list, and changes of both outcomes of a market in one message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import level_rows, nonzero_number, text_of, timestamp_from_ms, to_number
from ._spelling import AS_TYPED

_MARKET_CHANNELS = ("book", "price_change", "last_trade_price", "tick_size_change")
# They come only to those who ask for custom features.
_CUSTOM_CHANNELS = ("best_bid_ask", "new_market", "market_resolved")
_EVENTS = frozenset((*_MARKET_CHANNELS, *_CUSTOM_CHANNELS))


def _event_of(message: Json) -> Any:
    return message.get("event_type") if isinstance(message, dict) else None


def _time_of(message: Json) -> str | None:
    return timestamp_from_ms(to_number(message.get("timestamp", UNSET)))


class PolymarketTradeMapper(Mapper):
    channels = ("last_trade_price",)
    spelling = AS_TYPED

    def accepts(self, message: Json) -> bool:
        return _event_of(message) == "last_trade_price"

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        return [
            Trade(
                message.get("asset_id", UNSET),
                self.exchange,
                message.get("transaction_hash", UNSET),
                to_number(message.get("price", UNSET)),
                to_number(message.get("size", UNSET)),
                message["side"].lower(),
                _time_of(message),
                local_timestamp,
            )
        ]


class PolymarketBookChangeMapper(Mapper):
    channels = ("book", "price_change")
    spelling = AS_TYPED

    def accepts(self, message: Json) -> bool:
        if isinstance(message, list):
            return bool(message) and all(_event_of(book) == "book" for book in message)
        return _event_of(message) in self.channels

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookChange]:
        if isinstance(message, list):
            for book in message:
                yield self._snapshot(book, local_timestamp)
        elif message["event_type"] == "book":
            yield self._snapshot(message, local_timestamp)
        else:
            timestamp = _time_of(message)
            for change in message["price_changes"]:
                level = BookLevel(to_number(change.get("price", UNSET)), to_number(change.get("size", UNSET)))
                side = change.get("side")
                yield BookChange(
                    change.get("asset_id", UNSET),
                    self.exchange,
                    False,
                    [level] if side == "BUY" else [],
                    [level] if side == "SELL" else [],
                    timestamp,
                    local_timestamp,
                )

    def _snapshot(self, book: Json, local_timestamp: str) -> BookChange:
        bids, asks = level_rows(book["bids"]), level_rows(book["asks"])
        return BookChange(book.get("asset_id", UNSET), self.exchange, True, bids, asks, _time_of(book), local_timestamp)


class PolymarketBookTickerMapper(Mapper):
    """Amounts are not told."""

    channels = ("best_bid_ask",)
    spelling = AS_TYPED

    def accepts(self, message: Json) -> bool:
        return _event_of(message) == "best_bid_ask"

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        return [
            BookTicker(
                symbol=message.get("asset_id", UNSET),
                exchange=self.exchange,
                ask_amount=UNSET,
                ask_price=nonzero_number(message.get("best_ask")),
                bid_price=nonzero_number(message.get("best_bid")),
                bid_amount=UNSET,
                timestamp=_time_of(message),
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"type": "market", "assets_ids": ["50004092…"], "custom_feature_enabled": true}`."""
    if message.get("type") != "market":
        return None
    channels = _MARKET_CHANNELS + _CUSTOM_CHANNELS if message.get("custom_feature_enabled") is True else _MARKET_CHANNELS
    assets = message.get("assets_ids")
    return [Filter(channel, UNSET if assets is None else assets) for channel in channels]


class PolymarketFeed(Feed):
    """All channels of some assets are asked for with one frame; there is no answer but the books. Complaints and pongs are bare text."""

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/ws/market")

    def subscribe(self, now_us: int) -> list[str]:
        assets = list(dict.fromkeys(symbol for item in self.filters for symbol in self.symbols(item)))
        frame = {"type": "market", "assets_ids": assets, "initial_dump": True, "level": 2, "custom_feature_enabled": True}
        return [to_frame(frame)]

    def ping(self, now_us: int) -> str:
        return "PING"

    @staticmethod
    def decode(raw: bytes) -> Json:
        return orjson.loads(raw) if raw[:1] in (b"{", b"[") else raw.decode()

    def classify(self, message: Json) -> Heard:
        if isinstance(message, list):
            books = [book["asset_id"] for book in message if book.get("event_type") == "book"]
            return [BookStep(book, is_snapshot=True) for book in books] or FrameKind.DATA
        if isinstance(message, str):
            return FrameKind.HEARTBEAT if message == "PONG" else FrameKind.ERROR
        event = message.get("event_type")
        if event == "price_change":
            return [BookStep(change["asset_id"], is_snapshot=False) for change in message["price_changes"]] or FrameKind.DATA
        if event == "book":
            return BookStep(message["asset_id"], is_snapshot=True)
        if event in _EVENTS:
            return FrameKind.DATA
        return FrameKind.ERROR if "error" in message else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        details = message if isinstance(message, str) else text_of(message["error"])
        return FeedError(kind_of_error(details), details or "an error without details")


EXCHANGES = (
    Exchange(
        name="polymarket",
        docs="https://docs.polymarket.com/api-reference/wss/market",
        channels=(
            "book",
            "price_change",
            "last_trade_price",
            "best_bid_ask",
            "tick_size_change",
            "sport_result",
            "new_market",
            "market_resolved",
        ),
        mappers={
            "trade": (Version(PolymarketTradeMapper),),
            "book_change": (Version(PolymarketBookChangeMapper),),
            "book_ticker": (Version(PolymarketBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(PolymarketFeed, "wss://ws-subscriptions-clob.polymarket.com"),
    ),
)

ABOUT = {
    "polymarket": About(
        "what the venue sends: snapshot and changes",
        "A symbol is the id of an asset, of up to 78 digits; a message may hold several books.",
    ),
}
