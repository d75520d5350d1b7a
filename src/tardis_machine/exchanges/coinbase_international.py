"""Coinbase International Exchange. https://docs.cdp.coinbase.com/international-exchange/websocket-feed/websocket-overview

A message is flat, and names its channel: `{"channel": "MATCH", "type": "UPDATE", "product_id": "BTC-PERP", "time":
"2024-10-30T10:55:02.069Z", "sequence": 80, "match_id": "374491377330814981", "trade_price": "0.009573", …}`. Numbers are text. Times of
snapshots now and then are the year 1: then the recorder's has to do. Live data takes an account's credentials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, DerivativeTicker, Side, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import levels_by_side, next_hour, number_if_there, text_of, timestamp_from_text, to_number
from ._signing import read_base64_secret, sign
from ._ticker import TickerMapper

_CHANNELS = ("INSTRUMENTS", "MATCH", "FUNDING", "RISK", "LEVEL1", "LEVEL2", "CANDLES_ONE_MINUTE")
_BOTH_TYPES = ("SNAPSHOT", "UPDATE")
_SIDES: dict[Any, Side] = {"BUY": "buy", "SELL": "sell"}


def _time_of(message: Json, local_timestamp: str) -> str | None:
    """The exchange's time, or the recorder's where there is none that makes sense."""
    if "time" not in message:
        return local_timestamp
    timestamp = timestamp_from_text(message["time"])
    is_before_1970 = timestamp is not None and (timestamp < "1970" or timestamp[0] == "-")
    return local_timestamp if is_before_1970 else timestamp


class CoinbaseInternationalTradeMapper(Mapper):
    channels = ("MATCH",)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "MATCH" and message.get("type") == "UPDATE"

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        return [
            Trade(
                message.get("product_id", UNSET),
                self.exchange,
                message.get("match_id", UNSET),
                to_number(message.get("trade_price", UNSET)),
                to_number(message.get("trade_qty", UNSET)),
                _SIDES.get(message.get("aggressor_side"), "unknown"),  # an opening fill has none
                timestamp_from_text(message.get("time", UNSET)),
                local_timestamp,
            )
        ]


class CoinbaseInternationalBookChangeMapper(Mapper):
    channels = ("LEVEL2",)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "LEVEL2" and message.get("type") in _BOTH_TYPES

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        symbol = message.get("product_id", UNSET)
        if message["type"] == "SNAPSHOT":
            bids, asks = _snapshot_levels(message["bids"]), _snapshot_levels(message["asks"])
            return (BookChange(symbol, self.exchange, True, bids, asks, _time_of(message, local_timestamp), local_timestamp),)
        bids, asks = levels_by_side(message["changes"], "BUY", "SELL")
        timestamp = timestamp_from_text(message.get("time", UNSET))
        return (BookChange(symbol, self.exchange, False, bids, asks, timestamp, local_timestamp),)


def _snapshot_levels(levels: Sequence[Sequence[Any]]) -> list[BookLevel]:
    """Without amounts that can't be: below 0, or no number."""
    pairs = ((to_number(level[0]), to_number(level[1])) for level in levels)
    return [BookLevel(price, amount) for price, amount in pairs if amount >= 0]


class CoinbaseInternationalDerivativeTickerMapper(TickerMapper):
    """Of perpetuals alone. The last price is noted, and told with the next message of another channel."""

    channels = ("MATCH", "RISK", "FUNDING")

    def accepts(self, message: Json) -> bool:
        channel = message.get("channel")
        if channel != "RISK" and not (channel in ("MATCH", "FUNDING") and message.get("type") == "UPDATE"):
            return False
        return "product_id" in message and message["product_id"].endswith("-PERP")

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        ticker, channel = self.tickers[message["product_id"]], message["channel"]
        if channel == "MATCH":
            ticker.update_last_price(to_number(message.get("trade_price", UNSET)))
            return
        timestamp = timestamp_from_text(message.get("time", UNSET))
        if channel == "RISK":
            ticker.update_index_price(number_if_there(message, "index_price"))
            ticker.update_mark_price(number_if_there(message, "mark_price"))
            ticker.update_open_interest(number_if_there(message, "open_interest"))
        else:
            if message.get("is_final") is False:  # what will be paid, not what was
                ticker.update_funding_timestamp(next_hour(timestamp))
            ticker.update_funding_rate(to_number(message.get("funding_rate", UNSET)))
        ticker.update_timestamp(timestamp)
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)


class CoinbaseInternationalBookTickerMapper(Mapper):
    channels = ("LEVEL1",)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "LEVEL1" and message.get("type") in _BOTH_TYPES

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        return [
            BookTicker(
                symbol=message.get("product_id", UNSET),
                exchange=self.exchange,
                ask_amount=number_if_there(message, "ask_qty"),
                ask_price=number_if_there(message, "ask_price"),
                bid_price=number_if_there(message, "bid_price"),
                bid_amount=number_if_there(message, "bid_qty"),
                timestamp=_time_of(message, local_timestamp),
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"type": "SUBSCRIBE", "product_ids": ["BTC-PERP"], "channels": ["LEVEL2", "MATCH"], …}`."""
    if message.get("type") != "SUBSCRIBE":
        return None
    symbols = message.get("product_ids")
    return [
        Filter(channel) if symbols is None else Filter(channel, symbols)
        for channel in message.get("channels", ())
        if channel in _CHANNELS
    ]


_KEY, _SECRET, _PASSPHRASE = (f"COINBASE_INTERNATIONAL_API_{name}" for name in ("KEY", "SECRET", "PASSPHRASE"))
# What a signature is for.
_PURPOSE = "CBINTLMD"


class CoinbaseInternationalFeed(Feed):
    """Answers `{"type": "SUBSCRIPTIONS", …}` or `{"type": "REJECT", "message": …}`. Each call is signed; without credentials it is sent
    unsigned, and rejected."""

    credential_names = (_KEY, _SECRET, _PASSPHRASE)

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/")

    def subscribe(self, now_us: int) -> list[str]:
        signature = self._signature(now_us // 1_000_000)
        return [
            to_frame(
                {
                    "type": "SUBSCRIBE",
                    "product_ids": list(dict.fromkeys(self.symbols(item))),
                    "channels": [item.channel],
                    **signature,
                }
            )
            for item in self.filters
        ]

    def _signature(self, now_s: int) -> dict[str, Any]:
        """What a call is signed with; nothing where a credential is missing."""
        key, secret, passphrase = (self.credentials.get(name) for name in (_KEY, _SECRET, _PASSPHRASE))
        if not (key and secret and passphrase):
            return {}
        signature = sign(read_base64_secret(_SECRET, secret), f"{now_s}{key}{_PURPOSE}{passphrase}")
        return {"signature": signature, "key": key, "time": now_s, "passphrase": passphrase}

    def classify(self, message: Json) -> Heard:
        if message.get("type") == "REJECT":
            return FrameKind.ERROR
        channel = message.get("channel")
        if channel == "LEVEL2":
            return BookStep(message["product_id"], message["type"] == "SNAPSHOT")
        return FrameKind.DATA if channel in _CHANNELS else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        said = next((message[name] for name in ("message", "reason") if message.get(name)), "rejected without a reason")
        details = text_of(said)
        if self._signature(0):
            return FeedError(kind_of_error(details), details)
        return FeedError("auth", f"{details}: live data takes credentials; give {_KEY}, {_SECRET} and {_PASSPHRASE}")


EXCHANGES = (
    Exchange(
        name="coinbase-international",
        docs="https://docs.cdp.coinbase.com/international-exchange/websocket-feed/websocket-overview",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(CoinbaseInternationalTradeMapper),),
            "book_change": (Version(CoinbaseInternationalBookChangeMapper),),
            "derivative_ticker": (Version(CoinbaseInternationalDerivativeTickerMapper),),
            "book_ticker": (Version(CoinbaseInternationalBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(CoinbaseInternationalFeed, "wss://ws-md.international.coinbase.com"),
    ),
)

ABOUT = {
    "coinbase-international": About(
        "what the venue sends: snapshot and changes",
        "Live data takes an account's credentials, and every frame is signed.",
    ),
}
