"""Lighter. https://apidocs.lighter.xyz/docs/websocket-reference

A message says what it is and of which market: `{"type": "update/order_book", "channel": "order_book:1", "timestamp": 1776692222437,
"order_book": {"bids": [{"price": "75300.4", "size": "0.00117"}, …], …}}`. A symbol is a market's id (`0` is ETH). Prices and sizes are
text, times milliseconds. The answer to a subscription, of type `subscribed/…`, has the state at that time: of a book it is the snapshot,
all others are of the past and left out. Statistics of all markets come as one object, by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import level_rows, nonzero_number, text_of, timestamp_from_ms, to_number
from ._spelling import AS_TYPED, EMPTY_LIST
from ._ticker import TickerMapper

_CHANNELS = ("order_book", "trade", "ticker", "market_stats", "spot_market_stats")
# They are asked for without a market.
_OF_ALL_MARKETS = frozenset(("market_stats", "spot_market_stats"))
_SNAPSHOT, _CHANGE = "subscribed/order_book", "update/order_book"


def _symbol_of(row: Json) -> str:
    if row.get("market_id") is None:
        raise ValueError("there is no market_id")
    return text_of(row["market_id"])


def _symbol_of_channel(channel: str) -> str | None:
    """`order_book:1` is of 1; None where it is of no market, or of all."""
    _, colon, symbol = channel.partition(":")
    return symbol if colon and symbol != "all" else None


def _execution(trade: Json, exchange: str, local_timestamp: str) -> tuple[Any, ...]:
    """The fields of a trade, which those of a liquidation are too."""
    return (
        _symbol_of(trade),
        exchange,
        trade.get("trade_id_str", UNSET),
        to_number(trade.get("price", UNSET)),
        to_number(trade.get("size", UNSET)),
        "buy" if trade.get("is_maker_ask") else "sell",
        timestamp_from_ms(trade.get("timestamp", UNSET)),
        local_timestamp,
    )


class LighterTradeMapper(Mapper):
    channels = ("trade",)
    spelling = AS_TYPED

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "update/trade"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        for trade in message["trades"]:
            yield Trade(*_execution(trade, self.exchange, local_timestamp))


class LighterLiquidationMapper(Mapper):
    """Deleveraging and settlements stand among them, and are none."""

    channels = ("trade",)
    spelling = AS_TYPED

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "update/trade" and isinstance(message.get("liquidation_trades"), list)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        for trade in message["liquidation_trades"]:
            if trade.get("type") == "liquidation":
                yield Liquidation(*_execution(trade, self.exchange, local_timestamp))


class LighterBookChangeMapper(Mapper):
    channels = ("order_book",)
    spelling = AS_TYPED

    def accepts(self, message: Json) -> bool:
        kind = message.get("type")
        return kind in (_CHANGE, _SNAPSHOT)

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        symbol = _symbol_of_channel(message["channel"])
        if symbol is None:
            return []
        book, is_snapshot = message["order_book"], message["type"] == _SNAPSHOT
        bids, asks = level_rows(book["bids"]), level_rows(book["asks"])
        timestamp = timestamp_from_ms(message.get("timestamp", UNSET))
        return [BookChange(symbol, self.exchange, is_snapshot, bids, asks, timestamp, local_timestamp)]


class LighterDerivativeTickerMapper(TickerMapper):
    channels = ("market_stats",)
    spelling = EMPTY_LIST

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "update/market_stats"

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        stats = message["market_stats"]
        for row in _in_order(stats) if message.get("channel") == "market_stats:all" else (stats,):
            ticker = self.tickers[_symbol_of(row)]
            ticker.update_mark_price(to_number(row.get("mark_price", UNSET)))
            ticker.update_index_price(to_number(row.get("index_price", UNSET)))
            ticker.update_funding_rate(to_number(row.get("current_funding_rate", UNSET)))
            ticker.update_last_price(to_number(row.get("last_trade_price", UNSET)))
            ticker.update_open_interest(to_number(row.get("open_interest", UNSET)))
            if ticker.has_changed:
                ticker.update_timestamp(timestamp_from_ms(message.get("timestamp", UNSET)))
                yield ticker.to_message(local_timestamp)


def _in_order(stats: Json) -> Iterable[Json]:
    """Of all markets, 2 before 10: JavaScript goes through an object so, whatever order its text has."""
    return [stats[name] for name in sorted(stats, key=_place)]


def _place(name: str) -> float:
    return int(name) if name.isdecimal() else float("inf")


class LighterBookTickerMapper(Mapper):
    channels = ("ticker",)
    spelling = AS_TYPED

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "update/ticker"

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        symbol = _symbol_of_channel(message["channel"])
        if symbol is None:
            return []
        ticker = message.get("ticker")
        ask_price, ask_amount = _best(ticker, "a")
        bid_price, bid_amount = _best(ticker, "b")
        return [
            BookTicker(
                symbol=symbol,
                exchange=self.exchange,
                ask_amount=ask_amount,
                ask_price=ask_price,
                bid_price=bid_price,
                bid_amount=bid_amount,
                timestamp=timestamp_from_ms(message.get("timestamp", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


def _best(ticker: Json, side: str) -> tuple[Any, Any]:
    """Price and amount of a side; a ticker has only those that changed."""
    level = ticker.get(side) if isinstance(ticker, dict) else None
    if not isinstance(level, dict):
        return UNSET, UNSET
    return nonzero_number(level.get("price")), nonzero_number(level.get("size"))


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"type": "subscribe", "channel": "order_book/0"}`."""
    if message.get("type") != "subscribe":
        return None
    channel, _, symbol = str(message.get("channel")).partition("/")
    # The chain's height, accounts and candles were not recorded.
    return [Filter(channel, [symbol] if symbol not in ("", "all") else [])] if channel in _CHANNELS else []


class LighterFeed(Feed):
    """Greets with `{"type": "connected"}`, answers with the state, or with `{"error": {"code": …, "message": …}}`.

    A change says which one it follows: its `begin_nonce` is the `nonce` of the one before.
    """

    max_subscriptions = 100
    subscribe_interval_s = 0.3  # 200 frames a minute

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/stream")

    def subscribe(self, now_us: int) -> list[str]:
        return [to_frame({"type": "subscribe", "channel": name}) for item in self.filters for name in self._names(item)]

    def _names(self, item: Filter) -> list[str]:
        if item.channel in _OF_ALL_MARKETS:
            return [f"{item.channel}/all"]
        return [f"{item.channel}/{symbol}" for symbol in dict.fromkeys(self.symbols(item))]

    def classify(self, message: Json) -> Heard:
        if "error" in message:
            return FrameKind.ERROR
        kind = message.get("type", "")
        if kind == _CHANGE:
            book = message["order_book"]
            return BookStep(message["channel"], False, book["nonce"], book.get("begin_nonce") or None)
        if kind == _SNAPSHOT:
            return BookStep(message["channel"], True, message["order_book"]["nonce"])
        if kind.startswith(("update/", "subscribed/")):
            return FrameKind.DATA
        return FrameKind.HEARTBEAT if kind in ("ping", "pong") else FrameKind.ANSWER

    def reply(self, message: Json, now_us: int) -> list[str]:
        return [to_frame({"type": "pong"})] if message.get("type") == "ping" else []

    def error(self, message: Json) -> FeedError:
        error = message["error"]
        details = f"{error.get('code', '')} {error.get('message', '')}".strip() if isinstance(error, dict) else text_of(error)
        return FeedError(kind_of_error(details), details or "an error without details")


EXCHANGES = (
    Exchange(
        name="lighter",
        docs="https://apidocs.lighter.xyz/docs/websocket-reference",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(LighterTradeMapper),),
            "book_change": (Version(LighterBookChangeMapper),),
            "derivative_ticker": (Version(LighterDerivativeTickerMapper),),
            "liquidation": (Version(LighterLiquidationMapper),),
            "book_ticker": (Version(LighterBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(LighterFeed, "wss://mainnet.zklighter.elliot.ai"),
    ),
)

ABOUT = {
    "lighter": About(
        "what the venue sends: snapshot and changes",
        "A symbol is a market's id, as text; statistics come for all markets at once.",
    ),
}
