"""Blockchain.com Exchange. https://exchange.blockchain.com/api/

A message is flat, and names its channel and what happened: `{"seqnum": 4, "event": "updated", "channel": "l2", "symbol": "BTC-USD",
"bids": [{"px": 8723.45, "qty": 1.45, "num": 2}], "asks": [], "timestamp": "2023-02-23T03:02:11.535015Z"}`. Numbers are JSON numbers. Times
have microseconds or more, of which milliseconds are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Credentials, Feed, FeedError, FrameKind, Handshake, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import text_of, timestamp_from_text, verbatim

_CHANNELS = ("trades", "l2", "l3", "ticker")


class BlockchainComTradeMapper(Mapper):
    channels = ("trades",)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "trades" and message.get("event") == "updated"

    def map(self, message: Json, local_timestamp: str) -> Sequence[Trade]:
        return (
            Trade(
                message.get("symbol", UNSET),
                self.exchange,
                message.get("trade_id", UNSET),
                verbatim(message.get("price", UNSET)),
                verbatim(message.get("qty", UNSET)),
                "sell" if message.get("side") == "sell" else "buy",
                timestamp_from_text(message.get("timestamp", UNSET)),
                local_timestamp,
            ),
        )


class BlockchainComBookChangeMapper(Mapper):
    channels = ("l2",)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "l2" and message.get("event") in ("updated", "snapshot")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        return (
            BookChange(
                message.get("symbol", UNSET),
                self.exchange,
                message["event"] == "snapshot",
                _levels(message["bids"]),
                _levels(message["asks"]),
                timestamp_from_text(message.get("timestamp", UNSET)),
                local_timestamp,
            ),
        )


def _levels(rows: Sequence[Json]) -> list[BookLevel]:
    return [BookLevel(verbatim(row.get("px", UNSET)), verbatim(row.get("qty", UNSET))) for row in rows]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"action": "subscribe", "channel": "l2", "symbol": "BTC-USD"}`."""
    if message.get("action") != "subscribe":
        return None
    channel, symbol = message.get("channel"), message.get("symbol")
    # Heartbeats, candles and accounts were not recorded.
    return [Filter(channel, [symbol])] if channel in _CHANNELS and symbol else []


class BlockchainComFeed(Feed):
    """Answers `{"event": "subscribed", …}` or `{"event": "rejected", "text": …}`; a book's snapshot comes at once.

    The messages of a connection are numbered one by one, whatever they are of (`seqnum`). Those without a number are not counted.
    """

    subscribe_interval_s = 0.05  # 1200 a minute

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self._has_begun = False

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/mercury-gateway/v1/ws", headers={"Origin": "https://exchange.blockchain.com"})

    def subscribe(self, now_us: int) -> list[str]:
        return [
            to_frame({"action": "subscribe", "channel": "heartbeat"}),
            *(
                to_frame({"action": "subscribe", "channel": item.channel, "symbol": symbol})
                for item in self.filters
                for symbol in dict.fromkeys(self.symbols(item))
            ),
        ]

    def classify(self, message: Json) -> FrameKind:
        number = message.get("seqnum")
        if number is not None:
            step = BookStep("seqnum", not self._has_begun, number, number - 1)
            self._has_begun = True
            if self.books.take(step) is FrameKind.GAP:
                return FrameKind.GAP
        return _kind(message.get("channel"), message.get("event"))

    def error(self, message: Json) -> FeedError:
        details = text_of(message.get("text") or "rejected without a reason")
        return FeedError(kind_of_error(details), details)


def _kind(channel: str | None, event: str | None) -> FrameKind:
    if event == "rejected":
        return FrameKind.ERROR
    if channel == "heartbeat":
        return FrameKind.HEARTBEAT
    return FrameKind.DATA if channel in _CHANNELS and event in ("updated", "snapshot") else FrameKind.ANSWER


EXCHANGES = (
    Exchange(
        name="blockchain-com",
        docs="https://exchange.blockchain.com/api/",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(BlockchainComTradeMapper),),
            "book_change": (Version(BlockchainComBookChangeMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(BlockchainComFeed, "wss://ws.blockchain.info"),
    ),
)

ABOUT = {
    "blockchain-com": About(
        "what the venue sends: snapshot and changes",
        "Times have microseconds or more, of which milliseconds are kept.",
    ),
}
