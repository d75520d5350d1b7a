"""Bitget: spot and futures. https://www.bitget.com/api-doc/uta/intro

A message says what its data is of: `{"action": "update", "arg": {"instType": "spot", "topic": "publicTrade", "symbol": "BTCUSDT"},
"data": [...], "ts": 1777358880172}`. All numbers in the data are text, times are milliseconds as text. Until 2026-04-28 (v2) the
argument had `channel` and `instId` for `topic` and `symbol`, and the data had longer names. Trades of action `snapshot` happened
before the subscription. Best levels come as a book of one, which is always a snapshot; v2 read its book of 15 levels so too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import orjson

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, in_batches, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import levels, nonzero_number, timestamp_from_ms, to_number
from ._spelling import AS_TYPED, NO_SYMBOLS, UPPER_CASE
from ._ticker import TickerMapper

_V3_SINCE = "2026-04-28T00:00:00.000Z"
_FUTURES = ("usdt-futures", "usdc-futures", "coin-futures")
_PONG = "pong"


class BitgetMapper(Mapper):
    """What these mappers share: the argument says which channel and symbol a message is of, here as v2 names them."""

    channel_field: ClassVar[str] = "channel"
    symbol_field: ClassVar[str] = "instId"
    sides: ClassVar[tuple[str, str]] = ("bids", "asks")
    actions: ClassVar[tuple[str, ...]] = ("snapshot",)

    def accepts(self, message: Json) -> bool:
        return message["arg"].get(self.channel_field) in self.channels and message.get("action") in self.actions


class BitgetV3Mapper(BitgetMapper):
    """The same as v3 names them."""

    channel_field = "topic"
    symbol_field = "symbol"
    sides = ("b", "a")


class BitgetTradeMapper(BitgetMapper):
    channels = ("trade",)
    actions = ("update",)
    fields: ClassVar[tuple[str, str, str, str, str]] = ("tradeId", "price", "size", "side", "ts")
    """Id, price, amount, side and time."""

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol = message["arg"].get(self.symbol_field, UNSET)
        trade_id, price, amount, side, time = self.fields
        for trade in message["data"]:
            yield Trade(
                symbol,
                self.exchange,
                trade.get(trade_id, UNSET),
                to_number(trade.get(price, UNSET)),
                to_number(trade.get(amount, UNSET)),
                "buy" if trade.get(side) == "buy" else "sell",
                timestamp_from_ms(to_number(trade.get(time, UNSET))),
                local_timestamp,
            )


class BitgetV3TradeMapper(BitgetV3Mapper, BitgetTradeMapper):
    channels = ("publicTrade",)
    fields = ("i", "p", "v", "S", "T")


class BitgetBookChangeMapper(BitgetMapper):
    """The best 15 levels, whole each time."""

    channels = ("books15",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookChange]:
        symbol, is_snapshot = message["arg"].get(self.symbol_field, UNSET), message["action"] == "snapshot"
        bids, asks = self.sides
        for book in message["data"]:
            timestamp = timestamp_from_ms(to_number(book.get("ts", UNSET)))
            yield BookChange(
                symbol, self.exchange, is_snapshot, levels(book[bids]), levels(book[asks]), timestamp, local_timestamp
            )


class BitgetV3BookChangeMapper(BitgetV3Mapper, BitgetBookChangeMapper):
    """A snapshot, then every change."""

    channels = ("books",)
    actions = ("snapshot", "update")


class BitgetBookTickerMapper(BitgetMapper):
    channels = ("books1",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        symbol = message["arg"].get(self.symbol_field, UNSET)
        bids, asks = self.sides
        for book in message["data"]:
            bid_price, bid_amount = self._best(book[bids])
            ask_price, ask_amount = self._best(book[asks])
            yield BookTicker(
                symbol=symbol,
                exchange=self.exchange,
                ask_amount=ask_amount,
                ask_price=ask_price,
                bid_price=bid_price,
                bid_amount=bid_amount,
                timestamp=timestamp_from_ms(to_number(book.get("ts", UNSET))),
                local_timestamp=local_timestamp,
            )

    def _best(self, side: Sequence[Any]) -> tuple[Any, Any]:
        level = next(iter(side), None)
        return (self.read(level[0]), self.read(level[1])) if level else (UNSET, UNSET)

    def read(self, value: Any) -> Any:
        """A price or an amount."""
        return to_number(value)


class BitgetV3BookTickerMapper(BitgetV3Mapper, BitgetBookTickerMapper):
    def read(self, value: Any) -> Any:
        return nonzero_number(value)


class BitgetDerivativeTickerMapper(BitgetMapper, TickerMapper):
    channels = ("ticker",)
    spelling = AS_TYPED
    last_price_field: ClassVar[str] = "lastPr"
    open_interest_field: ClassVar[str] = "holdingAmount"
    no_funding_times: ClassVar[tuple[str, ...]] = ("0",)
    """What stands for the next funding time where there is no funding, as futures have none."""

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        for row in message["data"]:
            yield from self.tell(row.get("symbol", UNSET), row, row.get("ts", UNSET), local_timestamp)

    def tell(self, symbol: str, row: Json, time: Any, local_timestamp: str) -> Iterator[DerivativeTicker]:
        """The ticker of a symbol, if a row of that time changes it."""
        ticker = self.tickers[symbol]
        ticker.update_index_price(to_number(row.get("indexPrice", UNSET)))
        ticker.update_mark_price(to_number(row.get("markPrice", UNSET)))
        ticker.update_open_interest(to_number(row.get(self.open_interest_field, UNSET)))
        ticker.update_last_price(to_number(row.get(self.last_price_field, UNSET)))
        ticker.update_timestamp(timestamp_from_ms(to_number(time)))
        funding_time = row.get("nextFundingTime", UNSET)
        if funding_time not in self.no_funding_times:
            ticker.update_funding_timestamp(timestamp_from_ms(to_number(funding_time)))
            ticker.update_funding_rate(to_number(row.get("fundingRate", UNSET)))
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)


class BitgetV3DerivativeTickerMapper(BitgetV3Mapper, BitgetDerivativeTickerMapper):
    actions = ("snapshot", "update")
    spelling = UPPER_CASE
    last_price_field = "lastPrice"
    open_interest_field = "openInterest"
    no_funding_times = ("0", "")

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        symbol, time = message["arg"].get("symbol", UNSET), message.get("ts", UNSET)
        for row in message["data"]:
            yield from self.tell(symbol, row, time, local_timestamp)


class BitgetV3LiquidationMapper(BitgetV3Mapper):
    """Of a whole market. The side is that of the position, so the order that closes it is of the other."""

    channels = ("liquidation",)
    actions = ("update",)
    spelling = NO_SYMBOLS

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        for liquidation in message["data"]:
            yield Liquidation(
                liquidation.get("symbol", UNSET),
                self.exchange,
                UNSET,
                to_number(liquidation.get("price", UNSET)),
                to_number(liquidation.get("amount", UNSET)),
                "sell" if liquidation.get("side") == "buy" else "buy",
                timestamp_from_ms(to_number(liquidation.get("ts", UNSET))),
                local_timestamp,
            )


def read_subscription(message: Json, date_us: int, *, channels: Collection[str]) -> list[Filter] | None:
    """`{"op": "subscribe", "args": [{"instType": "spot", "topic": "books", "symbol": "BTCUSDT"}]}`; v2: `channel`, `instId`."""
    if not isinstance(message, dict) or message.get("op") != "subscribe":  # a ping is text
        return None
    filters = []
    for arg in message.get("args", ()):
        symbol = arg.get("instId") or arg.get("symbol")
        filters.append(Filter(arg.get("channel") or arg.get("topic"), [symbol] if symbol else []))
    return [item for item in filters if item.channel in channels]  # candles were not recorded


class BitgetFeed(Feed):
    """Answers `{"event": "subscribe", "arg": …}` or `{"event": "error", "code": …, "msg": …}`. It closes what says no `ping` for two
    minutes, and answers `pong`, neither of them JSON. Each update of a book names the one before it (`pseq`)."""

    subscribe_interval_s = 0.1

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/v3/ws/public")

    def subscribe(self, now_us: int) -> list[str]:
        arguments = [argument for item in self.filters for argument in self._arguments(item)]
        return [to_frame({"op": "subscribe", "args": some}) for some in in_batches(arguments, 5)]

    def _arguments(self, item: Filter) -> list[dict[str, str]]:
        if item.channel == "liquidation":
            return [{"instType": market, "topic": item.channel} for market in _FUTURES]
        return [
            {"instType": _market_of(self.exchange, symbol), "topic": item.channel, "symbol": symbol}
            for symbol in dict.fromkeys(self.symbols(item))
        ]

    def ping(self, now_us: int) -> str:
        return "ping"

    @staticmethod
    def decode(raw: bytes) -> Json:
        return _PONG if raw == b"pong" else orjson.loads(raw)

    def classify(self, message: Json) -> Heard:
        if message is _PONG:
            return FrameKind.HEARTBEAT
        if "action" in message:
            arg = message["arg"]
            return [_book_step(message, book) for book in message["data"]] if arg["topic"] == "books" else FrameKind.DATA
        return FrameKind.ERROR if message.get("event") == "error" else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        details = f"{message.get('code', '')} {message.get('msg', '')}".strip() or "an error without details"
        return FeedError(kind_of_error(details), details)


def _market_of(exchange: str, symbol: str) -> str:
    if exchange == "bitget":
        return "spot"
    usdt, usdc, coin = _FUTURES
    return usdt if symbol.endswith("USDT") else usdc if symbol.endswith("PERP") else coin


def _book_step(message: Json, book: Json) -> BookStep:
    # Numbers come as numbers and as text. Those of some messages are 0, which says nothing.
    previous = int(book.get("pseq") or 0) or None
    return BookStep(message["arg"]["symbol"], message["action"] == "snapshot", int(book.get("seq") or 0), previous)


def _exchange(name: str, channels: tuple[str, ...], mappers: dict[str, tuple[Version, ...]]) -> Exchange:
    return Exchange(
        name=name,
        docs="https://www.bitget.com/api-doc/uta/intro",
        channels=channels,
        mappers={
            "trade": (Version(BitgetTradeMapper, _V3_SINCE), Version(BitgetV3TradeMapper)),
            "book_change": (Version(BitgetBookChangeMapper, _V3_SINCE), Version(BitgetV3BookChangeMapper)),
            **mappers,
            "book_ticker": (Version(BitgetBookTickerMapper, _V3_SINCE), Version(BitgetV3BookTickerMapper)),
        },
        subscriptions=partial(read_subscription, channels=frozenset(channels)),
        live=LiveApi(BitgetFeed, "wss://ws.bitget.com"),
    )


_CHANNELS = ("trade", "publicTrade", "books1", "books15", "books")

EXCHANGES = (
    _exchange("bitget", _CHANNELS, {}),
    _exchange(
        "bitget-futures",
        (*_CHANNELS, "ticker", "liquidation"),
        {
            "derivative_ticker": (
                Version(BitgetDerivativeTickerMapper, _V3_SINCE),
                Version(BitgetV3DerivativeTickerMapper),
            ),
            "liquidation": (Version(BitgetV3LiquidationMapper),),
        },
    ),
)

ABOUT = {
    "bitget": About("what the venue sends; 15 levels, always whole, before 2026-04-28", "The best levels come as a book of one."),
    "bitget-futures": About(
        "what the venue sends; 15 levels, always whole, before 2026-04-28", "As bitget; liquidations since v3 only."
    ),
}
