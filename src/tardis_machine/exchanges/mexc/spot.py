"""MEXC spot. https://www.mexc.com/api-docs/spot-v3/websocket-market-streams

Messages are Protobuf, and recorded as JSON: `{"channel": "spot@public.aggre.deals.v3.api.pb@10ms@BTCUSDT", "symbol": "BTCUSDT",
"sendTime": "1710000000000", "publicAggreDeals": {"deals": [{…}]}}`. Numbers are text. One may come without what its channel brings.
Each update of a book begins with the version after the one that the update before it ended with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from ...filters import Filter
from ...messages import UNSET, BookChange, BookTicker, Trade
from .._feed import Action, BookStep, FeedError, FrameKind, Handshake, Heard, kind_of_error, to_frame
from .._joined_book import JoinedBookMapper, JoinRules
from .._mapper import Json, Mapper
from .._parsing import optional_number, timestamp_from_ms, to_number
from . import protobuf
from .snapshots import SnapshotFeed

_DEALS = "spot@public.aggre.deals.v3.api.pb@10ms"
_DEPTH = "spot@public.aggre.depth.v3.api.pb@10ms"
_SNAPSHOT = "spot@public.aggre.depth.snapshot.v3.api.pb@10ms"
_BOOK_TICKER = "spot@public.aggre.bookTicker.v3.api.pb@10ms"
CHANNELS = (_DEALS, _DEPTH, _SNAPSHOT, _BOOK_TICKER)
_INTERVAL = "@10ms"


class MexcTradeMapper(Mapper):
    channels = (_DEALS,)

    def accepts(self, message: Json) -> bool:
        return "publicAggreDeals" in message and (message.get("channel") or "").startswith(f"{_DEALS}@")

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol = message.get("symbol", UNSET)
        for deal in message["publicAggreDeals"]["deals"]:
            yield Trade(
                symbol,
                self.exchange,
                deal.get("tradeId", UNSET),
                to_number(deal.get("price", UNSET)),
                to_number(deal.get("quantity", UNSET)),
                "buy" if deal.get("tradeType") == 1 else "sell",
                timestamp_from_ms(to_number(deal.get("time", UNSET))),
                local_timestamp,
            )


class MexcBookChangeMapper(JoinedBookMapper):
    channels = (_DEPTH, _SNAPSHOT)
    rules = JoinRules(same_by_number=True, moves_on=True)

    def accepts(self, message: Json) -> bool:
        if message.get("generated") is True:
            return "publicAggreDepthsSnapshot" in message and (message.get("channel") or "").startswith(f"{_SNAPSHOT}@")
        return "publicAggreDepths" in message and (message.get("channel") or "").startswith(f"{_DEPTH}@")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        symbol = message.get("symbol", UNSET)
        if message.get("generated") is True:
            snapshot = message["publicAggreDepthsSnapshot"]
            timestamp = timestamp_from_ms(to_number(snapshot.get("timestamp", UNSET)))
            version = snapshot.get("lastUpdateId", UNSET)
            return self.join_snapshot(symbol, version, snapshot["bids"], snapshot["asks"], timestamp, local_timestamp)
        update = message["publicAggreDepths"]
        return self.join_update(
            symbol,
            update.get("fromVersion", UNSET),
            update.get("toVersion", UNSET),
            UNSET,
            _pairs(update.get("bids")),
            _pairs(update.get("asks")),
            timestamp_from_ms(to_number(message.get("sendTime", UNSET))),
            local_timestamp,
        )


def _pairs(rows: Sequence[Json] | None) -> list[tuple[Any, Any]]:
    return [(row.get("price", UNSET), row.get("quantity", UNSET)) for row in rows or ()]


class MexcBookTickerMapper(Mapper):
    channels = (_BOOK_TICKER,)

    def accepts(self, message: Json) -> bool:
        return "publicAggreBookTicker" in message and (message.get("channel") or "").startswith(f"{_BOOK_TICKER}@")

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        ticker = message["publicAggreBookTicker"]
        return [
            BookTicker(
                symbol=message.get("symbol", UNSET),
                exchange=self.exchange,
                ask_amount=optional_number(ticker.get("askQuantity")),
                ask_price=optional_number(ticker.get("askPrice")),
                bid_price=optional_number(ticker.get("bidPrice")),
                bid_amount=optional_number(ticker.get("bidQuantity")),
                timestamp=timestamp_from_ms(to_number(message.get("sendTime", UNSET))),
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"method": "SUBSCRIPTION", "params": ["spot@public.aggre.deals.v3.api.pb@100ms@BTCUSDT"]}`."""
    if message.get("method") != "SUBSCRIPTION":
        return None
    filters = []
    for param in message.get("params", ()):
        channel, _, symbol = param.rpartition("@")
        # Only the shortest interval was recorded, and it serves those that want a longer one.
        recorded = channel.rpartition("@")[0] + _INTERVAL
        if recorded in CHANNELS:
            filters.append(Filter(recorded, [symbol]))
    return filters


_LEVEL = {1: protobuf.text("price"), 2: protobuf.text("quantity")}
_DEAL = {
    1: protobuf.text("price"),
    2: protobuf.text("quantity"),
    3: protobuf.int32("tradeType"),
    4: protobuf.int64("time"),
    5: protobuf.text("tradeId"),
}
_FRAME = {
    1: protobuf.text("channel"),
    3: protobuf.text("symbol"),
    4: protobuf.text("symbolId"),
    5: protobuf.int64("createTime"),
    6: protobuf.int64("sendTime"),
    313: protobuf.message(
        "publicAggreDepths",
        {
            1: protobuf.messages("asks", _LEVEL),
            2: protobuf.messages("bids", _LEVEL),
            3: protobuf.text("eventType"),
            4: protobuf.text("fromVersion"),
            5: protobuf.text("toVersion"),
            6: protobuf.int64("lastOrderCreateTime"),
        },
    ),
    314: protobuf.message("publicAggreDeals", {1: protobuf.messages("deals", _DEAL), 2: protobuf.text("eventType")}),
    315: protobuf.message(
        "publicAggreBookTicker",
        {
            1: protobuf.text("bidPrice"),
            2: protobuf.text("bidQuantity"),
            3: protobuf.text("askPrice"),
            4: protobuf.text("askQuantity"),
            5: protobuf.text("version"),
            6: protobuf.int64("lastOrderCreateTime"),
        },
    ),
}


class MexcFeed(SnapshotFeed):
    """Data is Protobuf; answers are JSON: `{"id": 0, "code": 0, "msg": "spot@…"}`, where another code is a complaint."""

    # Of one connection.
    max_subscriptions = 30
    rules = MexcBookChangeMapper.rules

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/ws")

    def subscribe(self, now_us: int) -> list[Action]:
        asked = [
            (item.channel, symbol)
            for item in self.filters
            if item.channel != _SNAPSHOT
            for symbol in dict.fromkeys(self.symbols(item))
        ]
        return [
            to_frame({"method": "SUBSCRIPTION", "params": [f"{channel}@{symbol}" for channel, symbol in asked]}),
            *(
                self.fetch_snapshot(symbol, f"/api/v3/depth?symbol={symbol}&limit=5000")
                for channel, symbol in asked
                if channel == _DEPTH
            ),
        ]

    def ping(self, now_us: int) -> str:
        return to_frame({"method": "PING"})

    def to_text(self, frame: bytes) -> bytes:
        return frame if frame[:1] == b"{" else orjson.dumps(protobuf.read_message(_FRAME, frame))

    def classify(self, message: Json) -> Heard:
        channel = message.get("channel")
        if channel is None:
            if message.get("msg") == "PONG":
                return FrameKind.HEARTBEAT
            return FrameKind.ERROR if message.get("code", 0) != 0 else FrameKind.ANSWER
        update = message.get("publicAggreDepths")
        if update is None:
            return FrameKind.DATA
        first = int(update["fromVersion"])
        return BookStep(message["symbol"], False, int(update["toVersion"]), first - 1, first)

    def error(self, message: Json) -> FeedError:
        details = f"{message.get('code', '')} {message.get('msg', '')}".strip()
        return FeedError(kind_of_error(details), details)

    def read_snapshot(self, symbol: str, answer: Json) -> tuple[int, Json] | None:
        names = ("lastUpdateId", "asks", "bids", "timestamp")
        version = answer.get("lastUpdateId")
        if type(version) is not int or type(answer.get("asks")) is not list or type(answer.get("bids")) is not list:
            return None
        snapshot = {name: answer[name] for name in names if name in answer}
        return version, {
            "channel": f"{_SNAPSHOT}@{symbol}",
            "symbol": symbol,
            "generated": True,
            "publicAggreDepthsSnapshot": snapshot,
        }
