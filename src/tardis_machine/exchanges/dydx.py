"""dYdX: v3, which was closed in 2024, and v4. https://docs.dydx.xyz/indexer-client/websockets

A message names its channel: `{"type": "channel_data", "channel": "v4_trades", "id": "BTC-USD", "contents": {...}}`. What answers a
subscription is `subscribed`: a book's snapshot, all markets, and trades of the past, which are left out. Numbers are text. Books and
markets have no time.

Books of v3 number their changes: each level has the offset of its last change, and a change that is older than that is left out. Those
of v4 do not, and may cross. `message_id` counts the messages of a connection, but an answer is numbered before it is sent: no chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, DerivativeTicker, Liquidation, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import level_rows, levels, number_if_there, text_of, timestamp_from_text, to_number
from ._remembered import Remembered
from ._spelling import EMPTY_LIST
from ._ticker import TickerMapper

_V3_CHANNELS = ("v3_trades", "v3_orderbook", "v3_markets")
_V4_CHANNELS = ("v4_trades", "v4_orderbook", "v4_markets")


class DydxTradeMapper(Mapper):
    channels = ("v3_trades",)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == self.channels[0] and message.get("type") == "channel_data"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol = message.get("id", UNSET)
        for trade in message["contents"]["trades"]:
            yield Trade(
                symbol,
                self.exchange,
                self.id_of(trade),
                to_number(trade.get("price", UNSET)),
                to_number(trade.get("size", UNSET)),
                "sell" if trade.get("side") == "SELL" else "buy",
                _time_of(trade, local_timestamp),
                local_timestamp,
            )

    def id_of(self, trade: Json) -> Any:
        """v3 tells none."""
        return UNSET


def _time_of(trade: Json, local_timestamp: str) -> str | None:
    created_at = trade.get("createdAt")
    return timestamp_from_text(created_at) if created_at else local_timestamp


class DydxV4TradeMapper(DydxTradeMapper):
    channels = ("v4_trades",)

    def id_of(self, trade: Json) -> Any:
        return trade.get("id", UNSET)


class DydxV4LiquidationMapper(Mapper):
    channels = ("v4_trades",)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "v4_trades" and message.get("type") == "channel_data"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        for trade in message["contents"]["trades"]:
            if trade.get("type") == "LIQUIDATED":
                yield Liquidation(
                    message.get("id", UNSET),
                    self.exchange,
                    trade.get("id", UNSET),
                    to_number(trade.get("price", UNSET)),
                    to_number(trade.get("size", UNSET)),
                    "sell" if trade.get("side") == "SELL" else "buy",
                    _time_of(trade, local_timestamp),
                    local_timestamp,
                )


_Offsets = Remembered[Any, float]


class DydxBookChangeMapper(Mapper):
    channels = ("v3_orderbook",)

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # By symbol, of bids and asks: the offset of each price's last change.
        self._offsets: Remembered[str, tuple[_Offsets, _Offsets]] = Remembered()

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "v3_orderbook"

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        symbol, contents = message.get("id", UNSET), message.get("contents")
        if message.get("type") == "subscribed":
            self._offsets[symbol] = _offsets_of(contents["bids"]), _offsets_of(contents["asks"])
            bids, asks = level_rows(contents["bids"]), level_rows(contents["asks"])
            return (BookChange(symbol, self.exchange, True, bids, asks, local_timestamp, local_timestamp),)
        if not contents:
            return ()
        offset = to_number(contents.get("offset", UNSET))
        if symbol not in self._offsets:
            self._offsets[symbol] = _Offsets(), _Offsets()
        known_bids, known_asks = self._offsets[symbol]
        bids, asks = _newer(contents["bids"], known_bids, offset), _newer(contents["asks"], known_asks, offset)
        for known, side in ((known_bids, contents["bids"]), (known_asks, contents["asks"])):
            for level in side:
                known[level[0]] = offset
        if not (bids or asks):
            return ()
        return (BookChange(symbol, self.exchange, False, bids, asks, local_timestamp, local_timestamp),)


def _offsets_of(rows: Sequence[Json]) -> _Offsets:
    return _Offsets((row.get("price"), to_number(row.get("offset", UNSET))) for row in rows)


def _newer(side: Sequence[Sequence[Any]], known: _Offsets, offset: float) -> list[BookLevel]:
    """The levels that were not changed after this. An offset that is no number is neither older nor newer, and tells nothing."""
    return levels([level for level in side if level[0] not in known or not known[level[0]] >= offset])


class DydxV4BookChangeMapper(Mapper):
    channels = ("v4_orderbook",)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "v4_orderbook"

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        symbol, contents = message.get("id", UNSET), message.get("contents")
        is_snapshot = message.get("type") == "subscribed"
        if is_snapshot:
            bids, asks = level_rows(contents["bids"]), level_rows(contents["asks"])
        else:
            contents = contents or {}
            bids, asks = levels(contents.get("bids", ())), levels(contents.get("asks", ()))
            if not (bids or asks):
                return ()
        return (BookChange(symbol, self.exchange, is_snapshot, bids, asks, local_timestamp, local_timestamp),)


class DydxDerivativeTickerMapper(TickerMapper):
    channels = ("v3_markets", "v3_trades")
    spellings: ClassVar = {"v3_markets": EMPTY_LIST}

    def accepts(self, message: Json) -> bool:
        channel, markets = message.get("channel"), self.channels[0]
        return channel == markets or (channel == self.channels[1] and message.get("type") == "channel_data")

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        contents = message.get("contents")
        if message["channel"] == self.channels[1]:
            self.tickers[message.get("id", UNSET)].update_last_price(to_number(contents["trades"][-1].get("price", UNSET)))
            return
        for symbol, market in self.markets(message.get("type"), contents):
            ticker = self.tickers[symbol]
            self.tell(ticker, market)
            ticker.update_timestamp(local_timestamp)
            if ticker.has_changed:
                yield ticker.to_message(local_timestamp)

    def markets(self, kind: str | None, contents: Json) -> Iterator[tuple[str, Json]]:
        """Symbols with what is said of each, in order."""
        yield from ((contents.get("markets") if kind == "subscribed" else contents) or {}).items()

    def tell(self, ticker: Any, market: Json) -> None:
        """What is said of a market."""
        ticker.update_index_price(number_if_there(market, "indexPrice"))
        ticker.update_mark_price(number_if_there(market, "oraclePrice"))
        ticker.update_open_interest(number_if_there(market, "openInterest"))
        ticker.update_funding_rate(number_if_there(market, "nextFundingRate"))
        if "nextFundingAt" in market:
            ticker.update_funding_timestamp(timestamp_from_text(market["nextFundingAt"]))


class DydxV4DerivativeTickerMapper(DydxDerivativeTickerMapper):
    channels = ("v4_markets", "v4_trades")
    spellings: ClassVar = {"v4_markets": EMPTY_LIST}

    def markets(self, kind: str | None, contents: Json) -> Iterator[tuple[str, Json]]:
        if kind == "subscribed":
            yield from (contents.get("markets") or {}).items()
        elif kind == "channel_data":
            yield from (contents.get("trading") or {}).items()
            for symbol, market in (contents.get("oraclePrices") or {}).items():
                yield symbol, {"oraclePrice": market["oraclePrice"]} if "oraclePrice" in market else {}

    def tell(self, ticker: Any, market: Json) -> None:
        ticker.update_mark_price(number_if_there(market, "oraclePrice"))
        ticker.update_open_interest(number_if_there(market, "openInterest"))
        ticker.update_funding_rate(number_if_there(market, "nextFundingRate"))


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"type": "subscribe", "channel": "v4_trades", "id": "BTC-USD"}`."""
    if message.get("type") != "subscribe":
        return None
    channel = message.get("channel")
    # Candles, accounts and blocks were not recorded.
    if channel not in _V3_CHANNELS and channel not in _V4_CHANNELS:
        return []
    return [Filter(channel, [message["id"]] if message.get("id") else [])]


class DydxV4Feed(Feed):
    """It greets with `{"type": "connected"}`, and answers `{"type": "subscribed", …}`, which is data, or `{"type": "error", …}`."""

    # 32 of a channel; two calls a second.
    max_subscriptions = 32
    subscribe_interval_s = 0.5

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/v4/ws")

    def subscribe(self, now_us: int) -> list[str]:
        asked = [
            {"type": "subscribe", "channel": item.channel} | ({} if symbol is None else {"id": symbol})
            for item in self.filters
            for symbol in ([None] if item.channel == "v4_markets" else dict.fromkeys(self.symbols(item)))
        ]
        return [to_frame(call) for call in asked]

    def classify(self, message: Json) -> Heard:
        channel = message.get("channel")
        if channel == "v4_orderbook" and "contents" in message:
            return BookStep(message["id"], message["type"] == "subscribed")
        if channel in _V4_CHANNELS and "contents" in message:
            return FrameKind.DATA
        return FrameKind.ERROR if message.get("type") == "error" else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        details = text_of(message.get("message", "an error without details"))
        return FeedError(kind_of_error(details), details)


EXCHANGES = (
    Exchange(
        name="dydx",
        docs="https://docs.dydx.exchange/#v3-websocket-api",
        channels=_V3_CHANNELS,
        mappers={
            "trade": (Version(DydxTradeMapper),),
            "book_change": (Version(DydxBookChangeMapper),),
            "derivative_ticker": (Version(DydxDerivativeTickerMapper),),
        },
        subscriptions=read_subscription,
    ),
    Exchange(
        name="dydx-v4",
        docs="https://docs.dydx.xyz/indexer-client/websockets",
        channels=_V4_CHANNELS,
        mappers={
            "trade": (Version(DydxV4TradeMapper),),
            "book_change": (Version(DydxV4BookChangeMapper),),
            "derivative_ticker": (Version(DydxV4DerivativeTickerMapper),),
            "liquidation": (Version(DydxV4LiquidationMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(DydxV4Feed, "wss://indexer.dydx.trade"),
    ),
)

ABOUT = {
    "dydx": About(
        "what the venue sends: snapshot and changes",
        "Each level has the offset of its last change; v3 was replaced by dydx-v4.",
        closed="2024",
    ),
    "dydx-v4": About("what the venue sends: snapshot and changes", "Books are not numbered, and may cross."),
}
