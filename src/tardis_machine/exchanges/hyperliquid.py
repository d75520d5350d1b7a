"""Hyperliquid. https://hyperliquid.gitbook.io/hyperliquid-docs/for-developers/api/websocket/subscriptions

A message names its channel: `{"channel": "bbo", "data": {"coin": "BTC", "time": 1781654400050, "bbo": [{"px": "100", …}, …]}}`. Numbers
are text, times milliseconds. A book is always whole. The first trades of each coin happened before the subscription.

Coins are spelled in both cases (`kPEPE`, `xyz:GOLD`), symbols in upper case. The fast book, recorded since 2026-06-17, is asked for and
sent as `l2Book` with `"fast": true`. History names it `fastBook`; what is heard live is recorded as it was sent, and the mapper takes both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Trade
from ._exchange import About, Exchange, Version
from ._feed import Feed, FeedError, FrameKind, Handshake, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import level_rows, number_if_there, text_of, timestamp_from_ms, to_number
from ._remembered import Seen
from ._spelling import Spelling
from ._ticker import TickerMapper

_CHANNELS = ("l2Book", "fastBook", "trades", "activeAssetCtx", "activeSpotAssetCtx", "bbo")
_FAST_BOOK_SINCE = "2026-06-17T00:00:00.000Z"
# Those that are traded by the thousand.
_KILO_COINS = frozenset(("kPEPE", "kSHIB", "kBONK", "kFLOKI", "kLUNC", "kDOGS", "kNEIRO"))


def _coin_of(symbol: str) -> str:
    """`KPEPE` is kPEPE, `XYZ:GOLD` the xyz:GOLD of the builder xyz; all else is as typed."""
    kilo = symbol[:1].lower() + symbol[1:]
    if kilo in _KILO_COINS:
        return kilo
    builder, colon, coin = symbol.rpartition(":")
    return builder.lower() + colon + coin


_COINS = Spelling(_coin_of)


class HyperliquidTradeMapper(Mapper):
    channels = ("trades",)
    spelling = _COINS

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # Coins whose first message, which is of the past, was left out.
        self._begun: Seen[str | None] = Seen()

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "trades"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        for trade in message["data"]:
            coin = trade.get("coin")
            if coin not in self._begun:
                self._begun.add(coin)
                return
            yield Trade(
                coin.upper(),
                self.exchange,
                _id_of(trade),
                to_number(trade.get("px", UNSET)),
                to_number(trade.get("sz", UNSET)),
                "buy" if trade.get("side") == "B" else "sell",
                timestamp_from_ms(trade.get("time", UNSET)),
                local_timestamp,
            )


def _id_of(trade: Json) -> str:
    if trade.get("tid") is None:
        raise ValueError("a trade has no tid")
    return text_of(trade["tid"])


def _sides(sides: Sequence[Any]) -> Sequence[Any]:
    """Bids and asks, or the best of them; null, or left out, where there are none."""
    return [*sides, None, None][:2]


class HyperliquidBookChangeMapper(Mapper):
    channels = ("l2Book",)
    spelling = _COINS

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "l2Book" and message["data"].get("fast") is not True

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        data = message["data"]
        bids, asks = (level_rows(side or (), "px", "sz") for side in _sides(data["levels"]))
        timestamp = timestamp_from_ms(data.get("time", UNSET))
        return [BookChange(data["coin"].upper(), self.exchange, True, bids, asks, timestamp, local_timestamp)]


class HyperliquidFastBookChangeMapper(HyperliquidBookChangeMapper):
    channels = ("fastBook",)

    def accepts(self, message: Json) -> bool:
        channel = message.get("channel")
        return channel == "fastBook" or (channel == "l2Book" and message["data"].get("fast") is True)


class HyperliquidDerivativeTickerMapper(TickerMapper):
    channels = ("activeAssetCtx",)
    spelling = _COINS

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "activeAssetCtx"

    def map(self, message: Json, local_timestamp: str) -> list[DerivativeTicker]:
        data = message["data"]
        context = data["ctx"]
        ticker = self.tickers[data["coin"].upper()]
        ticker.update_funding_rate(number_if_there(context, "funding"))
        ticker.update_mark_price(number_if_there(context, "markPx"))
        ticker.update_open_interest(number_if_there(context, "openInterest"))
        ticker.update_index_price(number_if_there(context, "oraclePx"))
        if not ticker.has_changed:
            return []
        ticker.update_timestamp(local_timestamp)  # the exchange tells none
        return [ticker.to_message(local_timestamp)]


class HyperliquidBookTickerMapper(Mapper):
    channels = ("bbo",)
    spelling = _COINS

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "bbo"

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        data = message["data"]
        bid, ask = _sides(data["bbo"])
        return [
            BookTicker(
                symbol=data["coin"].upper(),
                exchange=self.exchange,
                ask_amount=to_number(ask.get("sz", UNSET)) if ask else UNSET,
                ask_price=to_number(ask.get("px", UNSET)) if ask else UNSET,
                bid_price=to_number(bid.get("px", UNSET)) if bid else UNSET,
                bid_amount=to_number(bid.get("sz", UNSET)) if bid else UNSET,
                timestamp=timestamp_from_ms(data.get("time", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"method": "subscribe", "subscription": {"type": "trades", "coin": "SOL"}}`."""
    if message.get("method") != "subscribe":
        return None
    asked = message.get("subscription") or message
    channel, coin = asked.get("type"), asked.get("coin")
    if channel == "l2Book" and asked.get("fast") is True:
        channel = "fastBook"
    # Candles, prices of all coins and accounts were not recorded.
    return [Filter(channel, [coin])] if channel in _CHANNELS and coin else []


class HyperliquidFeed(Feed):
    """Answers `{"channel": "subscriptionResponse", …}` or `{"channel": "error", "data": "Already subscribed: …"}`."""

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/ws")

    def subscribe(self, now_us: int) -> list[str]:
        return [
            to_frame({"method": "subscribe", "subscription": _subscription(item.channel, coin)})
            for item in self.filters
            for coin in dict.fromkeys(self.symbols(item))
        ]

    def ping(self, now_us: int) -> str:
        return to_frame({"method": "ping"})

    def classify(self, message: Json) -> FrameKind:
        channel = message.get("channel")
        if channel in _CHANNELS:
            return FrameKind.DATA
        if channel == "pong":
            return FrameKind.HEARTBEAT
        return FrameKind.ERROR if channel == "error" else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        details = text_of(message.get("data", "an error without details"))
        return FeedError(kind_of_error(details), details)


def _subscription(channel: str, coin: str) -> Json:
    if channel == "fastBook":
        return {"type": "l2Book", "coin": coin, "fast": True}
    return {"type": channel, "coin": coin}


EXCHANGES = (
    Exchange(
        name="hyperliquid",
        docs="https://hyperliquid.gitbook.io/hyperliquid-docs/for-developers/api/websocket/subscriptions",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(HyperliquidTradeMapper),),
            "book_change": (Version(HyperliquidBookChangeMapper, _FAST_BOOK_SINCE), Version(HyperliquidFastBookChangeMapper)),
            "derivative_ticker": (Version(HyperliquidDerivativeTickerMapper),),
            "book_ticker": (Version(HyperliquidBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(HyperliquidFeed, "wss://api.hyperliquid.xyz"),
    ),
)

ABOUT = {
    "hyperliquid": About("what the venue sends, whole each time", "Coins are spelled in both cases, symbols in upper case."),
}
