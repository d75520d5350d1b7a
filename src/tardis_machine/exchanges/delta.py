"""Delta Exchange. https://docs.delta.exchange/

A message names its type, and is flat: `{"type": "all_trades", "symbol": "BTCUSDT", "price": "9522.0", "size": 4662, "buyer_role":
"taker", "timestamp": 1602585251855645}`. Prices are text, amounts numbers or text, times microseconds. The mark price of BTCUSDT has the
symbol `MARK:BTCUSDT`. A trade has no id.

Trades were `recent_trade` until 2020-10-14. The book came whole (`l2_orderbook`) until 2023-04-01, and since then as a snapshot and the
changes to it (`l2_updates`), which are numbered without a hole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import level_rows, levels, number_if_there, text_of, timestamp_from_us, to_number
from ._ticker import TickerMapper

_ALL_TRADES_SINCE = "2020-10-14T00:00:00.000Z"
_CHANGES_SINCE = "2023-04-01T00:00:00.000Z"
_MARK = "MARK:"
_CHANNELS = (
    "l2_orderbook",
    "recent_trade",
    "recent_trade_snapshot",
    "mark_price",
    "spot_price",
    "funding_rate",
    "product_updates",
    "announcements",
    "all_trades",
    "v2/ticker",
    "l1_orderbook",
    "l2_updates",
    "spot_30mtwap_price",
)


def _timestamp_of(message: Json, local_timestamp: str) -> str | None:
    """Of a message that may have none."""
    return timestamp_from_us(message["timestamp"]) if "timestamp" in message else local_timestamp


class DeltaRecentTradeMapper(Mapper):
    channels = ("recent_trade",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "recent_trade"

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        return [
            Trade(
                message.get("symbol", UNSET),
                self.exchange,
                UNSET,
                to_number(message.get("price", UNSET)),
                to_number(message.get("size", UNSET)),
                "buy" if message.get("buyer_role") == "taker" else "sell",
                timestamp_from_us(message.get("timestamp", UNSET)),
                local_timestamp,
            )
        ]


class DeltaTradeMapper(DeltaRecentTradeMapper):
    channels = ("all_trades",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "all_trades"


class DeltaWholeBookMapper(Mapper):
    channels = ("l2_orderbook",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "l2_orderbook"

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        if "buy" not in message and "sell" not in message:
            return []
        bids, asks = (level_rows(message[side], "limit_price") if side in message else [] for side in ("buy", "sell"))
        timestamp = _timestamp_of(message, local_timestamp)
        return [BookChange(message.get("symbol", UNSET), self.exchange, True, bids, asks, timestamp, local_timestamp)]


class DeltaBookChangeMapper(Mapper):
    channels = ("l2_updates",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "l2_updates"

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        return [
            BookChange(
                message.get("symbol", UNSET),
                self.exchange,
                message.get("action") == "snapshot",
                levels(message["bids"]) if "bids" in message else [],
                levels(message["asks"]) if "asks" in message else [],
                _timestamp_of(message, local_timestamp),
                local_timestamp,
            )
        ]


class DeltaDerivativeTickerMapper(TickerMapper):
    """Trades tell the last price."""

    channels = ("all_trades", "funding_rate", "mark_price")
    trades: ClassVar[str] = "all_trades"

    def accepts(self, message: Json) -> bool:
        return message.get("type") in self.channels

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        kind, ticker = message["type"], self.tickers[message["symbol"].replace(_MARK, "", 1)]
        if kind == self.trades:
            ticker.update_last_price(to_number(message.get("price", UNSET)))
        elif kind == "mark_price":
            ticker.update_mark_price(to_number(message.get("price", UNSET)))
        else:
            ticker.update_funding_rate(number_if_there(message, "funding_rate"))
            ticker.update_predicted_funding_rate(number_if_there(message, "predicted_funding_rate"))
            if "next_funding_realization" in message:
                ticker.update_funding_timestamp(timestamp_from_us(message["next_funding_realization"]))
        ticker.update_timestamp(timestamp_from_us(message.get("timestamp", UNSET)))
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)


class DeltaRecentDerivativeTickerMapper(DeltaDerivativeTickerMapper):
    channels = ("recent_trade", "funding_rate", "mark_price")
    trades = "recent_trade"


class DeltaBookTickerMapper(Mapper):
    channels = ("l1_orderbook",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "l1_orderbook"

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        return [
            BookTicker(
                symbol=message.get("symbol", UNSET),
                exchange=self.exchange,
                ask_amount=number_if_there(message, "ask_qty"),
                ask_price=number_if_there(message, "best_ask"),
                bid_price=number_if_there(message, "best_bid"),
                bid_amount=number_if_there(message, "bid_qty"),
                timestamp=_timestamp_of(message, local_timestamp),
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"type": "subscribe", "payload": {"channels": [{"name": "l2_updates", "symbols": ["BTCUSDT"]}]}}`."""
    if message.get("type") != "subscribe":
        return None
    asked = (message.get("payload") or {}).get("channels") or ()
    # Candles and accounts were not recorded.
    return [_filter_of(one["name"], one) for one in asked if one.get("name") in _CHANNELS]


def _filter_of(channel: str, asked: Json) -> Filter:
    symbols = asked.get("symbols")
    if symbols is None:
        return Filter(channel)
    return Filter(channel, [f"{_MARK}{symbol}" for symbol in symbols] if channel == "mark_price" else symbols)


class DeltaFeed(Feed):
    """Answers `{"type": "subscriptions", "channels": […]}`, where a channel that it refuses has an error. It closes what says nothing for
    a minute."""

    # Those of l2_updates.
    max_subscriptions = 100
    needs_symbols = False

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/")

    def subscribe(self, now_us: int) -> list[str]:
        return [to_frame({"type": "subscribe", "payload": {"channels": [_channel_of(item)]}}) for item in self.filters]

    def ping(self, now_us: int) -> str:
        return to_frame({"type": "ping"})

    def classify(self, message: Json) -> Heard:
        kind = message.get("type")
        if kind == "l2_updates" and message["action"] != "error":
            number = message["sequence_no"]
            return BookStep(message["symbol"], message["action"] == "snapshot", number, number - 1)
        if kind == "pong":
            return FrameKind.HEARTBEAT
        if _complaint(message) is not None:
            return FrameKind.ERROR
        return FrameKind.ANSWER if kind is None or kind == "subscriptions" else FrameKind.DATA

    def error(self, message: Json) -> FeedError:
        details = _complaint(message) or "an error without details"
        # All that it refuses it calls forbidden, with or without an account.
        return FeedError(kind_of_error(details.replace("forbidden", "")), details)


def _channel_of(item: Filter) -> Json:
    if item.symbols is UNSET:
        return {"name": item.channel}
    prefix = _MARK if item.channel == "mark_price" else ""
    return {"name": item.channel, "symbols": [f"{prefix}{symbol}" for symbol in dict.fromkeys(item.symbols)]}


def _complaint(message: Json) -> str | None:
    """What is wrong, in the exchange's words; None where nothing is."""
    kind = message.get("type")
    if kind == "subscriptions":
        refused = [f"{one.get('name')}: {text_of(one['error'])}" for one in message["channels"] if one.get("error") is not None]
        return "; ".join(refused) or None
    if kind == "l2_updates":
        return f"{message.get('symbol')}: {message.get('msg')}"
    if message.get("error") is not None:
        return text_of(message["error"])
    return text_of(message.get("message", "")) if kind == "error" else None


EXCHANGES = (
    Exchange(
        name="delta",
        docs="https://docs.delta.exchange/",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(DeltaRecentTradeMapper, _ALL_TRADES_SINCE), Version(DeltaTradeMapper)),
            "book_change": (Version(DeltaWholeBookMapper, _CHANGES_SINCE), Version(DeltaBookChangeMapper)),
            "derivative_ticker": (
                Version(DeltaRecentDerivativeTickerMapper, _ALL_TRADES_SINCE),
                Version(DeltaDerivativeTickerMapper),
            ),
            "book_ticker": (Version(DeltaBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(DeltaFeed, "wss://socket.delta.exchange"),
    ),
)

ABOUT = {
    "delta": About("what the venue sends; always whole before 2023-04-01", "Trades have no id; live data needs no symbols."),
}
