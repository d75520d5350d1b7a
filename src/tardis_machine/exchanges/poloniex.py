"""Poloniex. https://api-docs.poloniex.com/spot/websocket/market-data

Until 2022-08-02 (v1) a message is an array, `[14, 98112906, [["o", 1, "0.0025", "8.5"], ["t", "572068", 1, "0.0025", "0.1", 1593561602]],
"BTC_BTS"]`: the number of a channel, which stands for a symbol, a sequence, then snapshots `i`, orders `o` and trades `t` of one symbol.
Where the symbol is left out, an earlier snapshot of the channel told it. Books have no time.

Since (v2) it is `{"channel": "book_lv2", "action": "update", "data": [{"symbol": "BTS_BTC", "bids": …}]}`, numbers are text and times
milliseconds. Symbols changed with it: what was BTC_BTS is BTS_BTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import levels, text_of, timestamp_from_ms, to_number
from ._remembered import Remembered

_V2_SINCE = "2022-08-02T00:00:00.000Z"
_SNAPSHOT, _ORDER, _TRADE = "i", "o", "t"


class PoloniexV1Mapper(Mapper):
    """Learns the symbols of channels from snapshots, also from those that it does not map."""

    channels = ("price_aggregated_book",)
    kinds: tuple[str, ...]
    """The items that it maps."""

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # By the number of a channel.
        self._symbols: Remembered[Any, Any] = Remembered()

    def accepts(self, message: Json) -> bool:
        # Heartbeats and answers are shorter.
        if type(message) is not list or len(message) < 3:
            return False
        items = message[2]
        first = items[0]
        if first[0] == _SNAPSHOT:
            self._symbols[message[0]] = first[1].get("currencyPair", UNSET)
        kinds = self.kinds
        return any(item[0] in kinds for item in items)

    def symbol_of(self, message: Json) -> Any:
        """UNSET where nothing told it."""
        return message[-1] if type(message[-1]) is str else self._symbols.get(message[0], UNSET)


class PoloniexV1TradeMapper(PoloniexV1Mapper):
    kinds = (_TRADE,)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol = self.symbol_of(message)
        if symbol is UNSET:
            return
        for item in message[2]:
            if item[0] != _TRADE:
                continue
            _, trade_id, side, price, amount, seconds, *_ = item
            yield Trade(
                symbol,
                self.exchange,
                text_of(trade_id),
                to_number(price),
                to_number(amount),
                "buy" if side == 1 and side is not True else "sell",
                timestamp_from_ms(to_number(seconds) * 1000),
                local_timestamp,
            )


class PoloniexV1BookChangeMapper(PoloniexV1Mapper):
    """Each snapshot of a message, then all of its orders as one change."""

    kinds = (_SNAPSHOT, _ORDER)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookChange]:
        symbol = self.symbol_of(message)
        if symbol is UNSET:
            return
        bids: list[BookLevel] = []
        asks: list[BookLevel] = []
        has_orders = False
        for item in message[2]:
            if item[0] == _ORDER:
                has_orders = True
                side = to_number(item[1]) if type(item[1]) is str else item[1]
                if side == 1:
                    bids.append(BookLevel(to_number(item[2]), to_number(item[3])))
                elif side == 0:
                    asks.append(BookLevel(to_number(item[2]), to_number(item[3])))
            elif item[0] == _SNAPSHOT:
                book = item[1]["orderBook"]
                yield BookChange(
                    symbol,
                    self.exchange,
                    True,
                    _snapshot_side(book[1]),
                    _snapshot_side(book[0]),
                    local_timestamp,
                    local_timestamp,
                )
        if has_orders:
            yield BookChange(symbol, self.exchange, False, bids, asks, local_timestamp, local_timestamp)


def _snapshot_side(amounts: Json) -> list[BookLevel]:
    """Amounts by price; an empty array where there are none."""
    return [] if amounts == [] else levels(amounts.items())


def _has_rows(message: Json, channel: str) -> bool:
    """Whether a message is one of a channel, and says something. Arrays are of v1."""
    return type(message) is dict and message.get("channel") == channel and "data" in message and len(message["data"]) > 0


class PoloniexTradeMapper(Mapper):
    channels = ("trades",)

    def accepts(self, message: Json) -> bool:
        return _has_rows(message, "trades")

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        for trade in message["data"]:
            yield Trade(
                trade.get("symbol", UNSET),
                self.exchange,
                trade.get("id", UNSET),
                to_number(trade.get("price", UNSET)),
                to_number(trade.get("quantity", UNSET)),
                "sell" if trade.get("takerSide") == "sell" else "buy",
                timestamp_from_ms(trade.get("createTime", UNSET)),
                local_timestamp,
            )


class PoloniexBookChangeMapper(Mapper):
    channels = ("book_lv2",)

    def accepts(self, message: Json) -> bool:
        return _has_rows(message, "book_lv2")

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookChange]:
        is_snapshot = message.get("action") == "snapshot"
        for book in message["data"]:
            bids, asks = levels(book["bids"]), levels(book["asks"])
            timestamp = timestamp_from_ms(book.get("ts", UNSET))
            yield BookChange(book.get("symbol", UNSET), self.exchange, is_snapshot, bids, asks, timestamp, local_timestamp)


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """In v1 `{"command": "subscribe", "channel": "BTC_ETH"}`. What clients say in v2, `{"event": "subscribe", …}`, is not read."""
    if message.get("command") != "subscribe":
        return None
    return [Filter("price_aggregated_book", [message["channel"]])]


class PoloniexFeed(Feed):
    """Answers `{"event": "subscribe", "channel": "trades", "symbols": […]}` or `{"event": "error", "message": …}`. It ends what is
    silent for 30 seconds. Each message of a book names the one before it."""

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/ws/public")

    def subscribe(self, now_us: int) -> list[str]:
        return [
            to_frame({"event": "subscribe", "channel": [item.channel], "symbols": list(dict.fromkeys(self.symbols(item)))})
            for item in self.filters
        ]

    def ping(self, now_us: int) -> str:
        return to_frame({"event": "ping"})

    def classify(self, message: Json) -> Heard:
        if "data" in message:
            if message["channel"] != "book_lv2":
                return FrameKind.DATA
            is_snapshot = message["action"] == "snapshot"
            return [BookStep(book["symbol"], is_snapshot, book["id"], book["lastId"]) for book in message["data"]]
        event = message.get("event")
        if event == "pong":
            return FrameKind.HEARTBEAT
        return FrameKind.ERROR if event == "error" else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        details = text_of(message.get("message") or "an error without details")
        return FeedError(kind_of_error(details), details)


EXCHANGES = (
    Exchange(
        name="poloniex",
        docs="https://api-docs.poloniex.com/spot/websocket/market-data",
        channels=("price_aggregated_book", "trades", "ticker", "book_lv2"),
        mappers={
            "trade": (Version(PoloniexV1TradeMapper, _V2_SINCE), Version(PoloniexTradeMapper)),
            "book_change": (Version(PoloniexV1BookChangeMapper, _V2_SINCE), Version(PoloniexBookChangeMapper)),
        },
        subscriptions=read_subscription,
        live=LiveApi(PoloniexFeed, "wss://ws.poloniex.com"),
    ),
)

ABOUT = {
    "poloniex": About(
        "what the venue sends: snapshot and changes",
        "Quote and base changed places in symbols on 2022-08-02; books had no time before.",
    ),
}
