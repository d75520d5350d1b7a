"""HitBTC. https://api.hitbtc.com/#socket-market-data

API v2 speaks JSON-RPC, and a message names its method: `{"jsonrpc": "2.0", "method": "updateTrades", "params": {"symbol": "ETHBTC",
"data": [{"id": 54469456, "price": "0.054656", "quantity": "0.057", "side": "buy", "timestamp": "2017-10-19T16:33:42.821Z"}]}}`. Numbers
are text. A subscription to trades first brings `snapshotTrades`, which are of the past, and one to a book `snapshotOrderbook`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..filters import Filter
from ..messages import UNSET, BookChange, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import level_rows, text_of, timestamp_from_text, to_number


class HitbtcTradeMapper(Mapper):
    channels = ("updateTrades",)

    def accepts(self, message: Json) -> bool:
        return message.get("method") == "updateTrades"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        params = message["params"]
        symbol = params.get("symbol", UNSET)
        for trade in params["data"]:
            yield Trade(
                symbol,
                self.exchange,
                text_of(trade.get("id", UNSET)),
                to_number(trade.get("price", UNSET)),
                to_number(trade.get("quantity", UNSET)),
                trade.get("side", UNSET),
                timestamp_from_text(trade.get("timestamp", UNSET)),
                local_timestamp,
            )


class HitbtcBookChangeMapper(Mapper):
    channels = ("snapshotOrderbook", "updateOrderbook")

    def accepts(self, message: Json) -> bool:
        return message.get("method") in ("updateOrderbook", "snapshotOrderbook")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        params, is_snapshot = message["params"], message["method"] == "snapshotOrderbook"
        bids, asks = level_rows(params["bid"]), level_rows(params["ask"])
        timestamp = timestamp_from_text(params.get("timestamp", UNSET))
        return (BookChange(params.get("symbol", UNSET), self.exchange, is_snapshot, bids, asks, timestamp, local_timestamp),)


# What a subscription brings.
_BROUGHT = {
    "subscribeTrades": ("snapshotTrades", "updateTrades"),
    "subscribeOrderbook": ("snapshotOrderbook", "updateOrderbook"),
}
_ASKED = {channel: method for method, channels in _BROUGHT.items() for channel in channels}


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"method": "subscribeTrades", "params": {"symbol": "ETHBTC"}, "id": 1}`."""
    if "method" not in message:
        return None
    # Tickers, candles and calls that are no subscription have nothing that was recorded.
    return [Filter(channel, [message["params"]["symbol"]]) for channel in _BROUGHT.get(message["method"], ())]


class HitbtcFeed(Feed):
    """Answers `{"jsonrpc": "2.0", "result": true, "id": 1}` or `{"jsonrpc": "2.0", "error": {"code": 2001, "message": …}, "id": 1}`. A
    book's `sequence` only grows, and so shows no gap."""

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/api/2/ws")

    def subscribe(self, now_us: int) -> list[str]:
        asked = dict.fromkeys((_ASKED[item.channel], symbol) for item in self.filters for symbol in self.symbols(item))
        return [
            to_frame({"method": method, "params": {"symbol": symbol}, "id": number})
            for number, (method, symbol) in enumerate(asked, start=1)
        ]

    def classify(self, message: Json) -> Heard:
        method = message.get("method")
        if method == "updateOrderbook" or method == "snapshotOrderbook":
            return BookStep(message["params"]["symbol"], method == "snapshotOrderbook")
        if method is not None:
            return FrameKind.DATA
        return FrameKind.ERROR if "error" in message else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        error = message["error"]
        told = [error.get(name) for name in ("code", "message", "description")] if isinstance(error, dict) else [error]
        details = " ".join(text_of(part) for part in told if part) or "an error without details"
        return FeedError(kind_of_error(details), details)


EXCHANGES = (
    Exchange(
        name="hitbtc",
        docs="https://api.hitbtc.com/#socket-market-data",
        channels=("updateTrades", "snapshotTrades", "snapshotOrderbook", "updateOrderbook"),
        mappers={"trade": (Version(HitbtcTradeMapper),), "book_change": (Version(HitbtcBookChangeMapper),)},
        subscriptions=read_subscription,
        live=LiveApi(HitbtcFeed, "wss://api.hitbtc.com"),
    ),
)

ABOUT = {
    "hitbtc": About(
        "what the venue sends: snapshot and changes",
        "Speaks API v2; updates of a book are numbered without a hole.",
    ),
}
