"""Binance: spot (also .us and the closed Jersey), USDT and coin margined futures.
https://developers.binance.com/docs/binance-spot-api-docs/web-socket-streams

A message names its stream: `{"stream": "btcusdt@depth@100ms", "data": {...}}`. Prices and amounts are text. Books are built from a
REST snapshot, which the recorder stores as `@depthSnapshot`, and the updates around it; their ids say which of them it holds already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, Trade
from ._contract import Exchange, Json, Mapper, Version
from ._parsing import levels, text_of, timestamp_from_ms, timestamp_from_us, to_number
from ._state import PendingTickers

OFF_BOOK = ("INSURANCE_FUND", "ADL", "NA")
# More than a recorder ever has to hold until its snapshot arrives; a bound all the same.
MAX_BUFFERED = 2000


class BinanceMapper(Mapper):
    """What all of Binance's mappers share: streams by their name's ending, symbols in lower case."""

    endings: tuple[str, ...]

    def spell_symbol(self, symbol: str) -> str:
        return symbol.lower()

    def accepts(self, message: Json) -> bool:
        return message.get("stream", "").endswith(self.endings)


class BinanceTradeMapper(BinanceMapper):
    channels = ("trade",)
    endings = ("@trade",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        trade = message["data"]
        if trade.get("X") in OFF_BOOK:
            return
        yield Trade(
            trade.get("s", UNSET),
            self.exchange,
            text_of(trade.get("t", UNSET)),
            to_number(trade.get("p", UNSET)),
            to_number(trade.get("q", UNSET)),
            "sell" if trade.get("m") else "buy",
            timestamp_from_us(trade.get("T", UNSET)),
            local_timestamp,
        )


class _Depth:
    """What is known of one symbol's book."""

    __slots__ = ("buffered", "last_update_id", "overlap_checked")

    def __init__(self) -> None:
        # Updates from before the snapshot; None once it was seen.
        self.buffered: deque[Json] | None = deque(maxlen=MAX_BUFFERED)
        self.last_update_id: Any = None
        self.overlap_checked = False


class BinanceBookChangeMapper(BinanceMapper):
    """Buffers updates until the snapshot, merges them into it, and passes on the later ones."""

    channels = ("depth", "depthSnapshot")

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._depths: dict[str, _Depth] = {}

    def accepts(self, message: Json) -> bool:
        return "@depth" in message.get("stream", "")

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookChange]:
        symbol = message["stream"].partition("@")[0].upper()
        data = message["data"]
        depth = self._depths.get(symbol)
        if depth is None:
            depth = self._depths[symbol] = _Depth()
        if "lastUpdateId" in data:
            if depth.buffered is not None:
                yield self._snapshot(symbol, depth, data, local_timestamp)
        elif depth.buffered is not None:
            depth.buffered.append(data)
        else:
            depth = self._depths[data["s"]]
            if self._is_news(depth, data):
                bids, asks = levels(data["b"]), levels(data["a"])
                yield BookChange(
                    data["s"], self.exchange, False, bids, asks, timestamp_from_us(data.get("E", UNSET)), local_timestamp
                )

    def _snapshot(self, symbol: str, depth: _Depth, data: Json, local_timestamp: str) -> BookChange:
        updates, depth.buffered, depth.last_update_id = depth.buffered or (), None, data["lastUpdateId"]
        bids = {price: amount for price, amount, *_ in data["bids"]}
        asks = {price: amount for price, amount, *_ in data["asks"]}
        for update in updates:
            if self._is_news(self._depths[update["s"]], update):
                _merge(bids, update["b"])
                _merge(asks, update["a"])
        timestamp = timestamp_from_us(data["T"]) if "T" in data else local_timestamp
        return BookChange(symbol, self.exchange, True, levels(bids.items()), levels(asks.items()), timestamp, local_timestamp)

    def _is_news(self, depth: _Depth, update: Json) -> bool:
        """Whether the snapshot does not hold the update already; the first that it does not must join it without a gap."""
        first, final, last = to_number(update.get("U", UNSET)), to_number(update.get("u", UNSET)), to_number(depth.last_update_id)
        if self._is_held(final, last):
            return False
        if not depth.overlap_checked:
            if self.realtime and not self._joins(first, final, update, last):
                raise ValueError(f"the book snapshot {last} and the first update {first} to {final} leave a gap")
            depth.overlap_checked = True
        return True

    def _is_held(self, final: float, last: float) -> bool:
        return final <= last

    def _joins(self, first: float, final: float, update: Json, last: float) -> bool:
        # -1: an instrument so new that its book is empty.
        return first <= last + 1 <= final or last == -1


def _merge(book: dict[Any, Any], changes: Iterable[Sequence[Any]]) -> None:
    for price, amount, *_ in changes:
        if to_number(amount) == 0:
            book.pop(price, None)
        else:
            book[price] = amount


class BinanceFuturesBookChangeMapper(BinanceBookChangeMapper):
    """Futures count otherwise: an update names the one before it (`pu`), and the snapshot's own id lies within the first."""

    def _is_held(self, final: float, last: float) -> bool:
        return final < last

    def _joins(self, first: float, final: float, update: Json, last: float) -> bool:
        return first <= last <= final or to_number(update.get("pu", UNSET)) == last


class BinanceDerivativeTickerMapper(BinanceMapper):
    channels = ("markPrice", "ticker", "openInterest")

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._tickers = PendingTickers(exchange)
        # Coin margined futures have their index in a stream of its own, by pair.
        self._index_prices: dict[str, float] = {}

    def filters(self, symbols: Sequence[str] | None) -> list[Filter]:
        filters = super().filters(symbols)
        if self.exchange == "binance-delivery":
            pairs = UNSET if symbols is None else [self.spell_symbol(symbol).partition("_")[0] for symbol in symbols]
            filters.append(Filter("indexPrice", pairs))
        return filters

    def accepts(self, message: Json) -> bool:
        stream = message.get("stream", "")
        return stream.endswith(("@ticker", "@openInterest")) or "@markPrice" in stream or "@indexPrice" in stream

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        data = message["data"]
        event = data.get("e")
        if event == "indexPriceUpdate":
            self._index_prices[data["i"]] = to_number(data.get("p", UNSET))
            return
        symbol = data["s"] if "s" in data else data["symbol"]
        ticker = self._tickers[symbol]
        ticker.update_index_price(self._index_prices.get(symbol.partition("_")[0]))
        if event == "markPriceUpdate":
            # Futures that expire have no funding: their rate is empty or their time 0.
            if "r" in data and data["r"] != "" and data.get("T") != 0:
                ticker.update_funding_rate(to_number(data["r"]))
                ticker.update_funding_timestamp(timestamp_from_ms(data.get("T", UNSET)))
            if "i" in data:
                ticker.update_index_price(to_number(data["i"]))
            ticker.update_mark_price(to_number(data.get("p", UNSET)))
            ticker.update_timestamp(timestamp_from_us(data.get("E", UNSET)))
        elif event == "24hrTicker":
            ticker.update_last_price(to_number(data.get("c", UNSET)))
            ticker.update_timestamp(timestamp_from_us(data.get("E", UNSET)))
        if "openInterest" in data:
            ticker.update_open_interest(to_number(data["openInterest"]))
        if ticker.has_changed:
            yield ticker.snapshot(local_timestamp)


class BinanceLiquidationMapper(BinanceMapper):
    channels = ("forceOrder",)
    endings = ("@forceOrder",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        order = message["data"]["o"]
        if order.get("X") != "FILLED":
            return
        yield Liquidation(
            order.get("s", UNSET),
            self.exchange,
            UNSET,
            to_number(order.get("p", UNSET)),
            to_number(order.get("z", UNSET)),
            "sell" if order.get("S") == "SELL" else "buy",
            timestamp_from_us(order.get("T", UNSET)),
            local_timestamp,
        )


class BinanceBookTickerMapper(BinanceMapper):
    channels = ("bookTicker",)
    endings = ("@bookTicker",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        ticker = message["data"]
        yield BookTicker(
            ticker.get("s", UNSET),
            self.exchange,
            to_number(ticker["A"]) if "A" in ticker else UNSET,
            to_number(ticker["a"]) if "a" in ticker else UNSET,
            to_number(ticker["b"]) if "b" in ticker else UNSET,
            to_number(ticker["B"]) if "B" in ticker else UNSET,
            timestamp_from_us(ticker["E"]) if "E" in ticker else local_timestamp,
            local_timestamp,
        )


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"method": "SUBSCRIBE", "params": ["btcusdt@depth@100ms", "!contractInfo"]}`."""
    if message.get("method") != "SUBSCRIBE":
        return None
    filters = []
    for stream in message.get("params", ()):
        symbol, _, channel = stream.partition("@")
        filters.append(Filter(channel.partition("@")[0], [symbol]) if channel else Filter(symbol))
    return filters


_DOCS = "https://developers.binance.com/docs/binance-spot-api-docs/web-socket-streams"
_DOCS_FUTURES = "https://developers.binance.com/docs/derivatives/usds-margined-futures/websocket-market-streams"
_DOCS_DELIVERY = "https://developers.binance.com/docs/derivatives/coin-margined-futures/websocket-market-streams"

_SPOT_CHANNELS = ("trade", "aggTrade", "ticker", "depth", "depthSnapshot", "bookTicker", "recentTrades", "borrowInterest")
_FUTURES_CHANNELS = (
    "trade",
    "aggTrade",
    "ticker",
    "depth",
    "markPrice",
    "premiumIndex",
    "indexConstituents",
    "depthSnapshot",
    "bookTicker",
    "forceOrder",
    "openInterest",
    "fundingInfo",
    "insuranceBalance",
    "recentTrades",
    "compositeIndex",
    "topLongShortAccountRatio",
    "topLongShortPositionRatio",
    "globalLongShortAccountRatio",
    "takerlongshortRatio",
    "!contractInfo",
    "assetIndex",
)
_DELIVERY_CHANNELS = (
    "trade",
    "aggTrade",
    "ticker",
    "depth",
    "markPrice",
    "indexPrice",
    "depthSnapshot",
    "bookTicker",
    "forceOrder",
    "openInterest",
    "fundingInfo",
    "recentTrades",
    "topLongShortAccountRatio",
    "topLongShortPositionRatio",
    "globalLongShortAccountRatio",
    "takerBuySellVol",
    "!contractInfo",
)

_TRADES_AND_BOOK = {"trade": (Version(BinanceTradeMapper),), "book_change": (Version(BinanceBookChangeMapper),)}
_SPOT = {**_TRADES_AND_BOOK, "book_ticker": (Version(BinanceBookTickerMapper),)}
_FUTURES = {
    "trade": (Version(BinanceTradeMapper),),
    "book_change": (Version(BinanceFuturesBookChangeMapper),),
    "derivative_ticker": (Version(BinanceDerivativeTickerMapper),),
    "liquidation": (Version(BinanceLiquidationMapper),),
    "book_ticker": (Version(BinanceBookTickerMapper),),
}

EXCHANGES = (
    Exchange("binance", _DOCS, _SPOT_CHANNELS, _SPOT, read_subscription),
    Exchange("binance-us", _DOCS, _SPOT_CHANNELS, _SPOT, read_subscription),
    Exchange("binance-jersey", _DOCS, _SPOT_CHANNELS, _TRADES_AND_BOOK, read_subscription),
    Exchange("binance-futures", _DOCS_FUTURES, _FUTURES_CHANNELS, _FUTURES, read_subscription),
    Exchange("binance-delivery", _DOCS_DELIVERY, _DELIVERY_CHANNELS, _FUTURES, read_subscription),
)
