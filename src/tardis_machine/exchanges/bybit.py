"""Bybit: contracts, spot and options. https://bybit-exchange.github.io/docs/v5/ws/connect

A message names its topic, which ends in the symbol: `{"topic": "orderbook.50.BTCUSDT", "type": "delta", "ts": …, "data": {...}}`.
Since 2023-04-05 (v5) all markets are alike, numbers are text and times milliseconds. Before, contracts and spot had an API each:
fields of contracts were spelled in two ways (`mark_price_e4`, `markPriceE4`), with times in microseconds; topics of spot had no
symbol.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

from ..filters import Filter
from ..messages import (
    UNSET,
    BookChange,
    BookLevel,
    BookTicker,
    DerivativeTicker,
    Liquidation,
    OptionSummary,
    Side,
    Trade,
    js_number,
    parse_timestamp_us,
)
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, in_batches, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import (
    levels,
    nonzero_number,
    number_if_there,
    text_of,
    timestamp_from_expiration,
    timestamp_from_ms,
    timestamp_from_text,
    timestamp_from_us,
    to_number,
    verbatim,
)
from ._remembered import Remembered
from ._ticker import PendingTicker, TickerMapper


class BybitMapper(Mapper):
    """What these mappers share: one channel, which starts the topic."""

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self.topic = f"{self.channels[0]}."

    def accepts(self, message: Json) -> bool:
        return message.get("topic", "").startswith(self.topic)


_SIDES: dict[Any, Side] = {"Buy": "buy", "Sell": "sell"}


def _liquidation_side(side: Any) -> Side:
    """Theirs is the side of the position: a long was sold."""
    return "sell" if side == "Buy" else "buy"


class BybitV5TradeMapper(BybitMapper):
    channels = ("publicTrade",)

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        return [
            Trade(
                trade.get("s", UNSET),
                self.exchange,
                trade.get("i", UNSET),
                to_number(trade.get("p", UNSET)),
                to_number(trade.get("v", UNSET)),
                _SIDES.get(trade.get("S"), "unknown"),
                timestamp_from_ms(trade.get("T", UNSET)),
                local_timestamp,
            )
            for trade in message["data"]
        ]


class BybitV5BookChangeMapper(BybitMapper):
    channels = ("orderbook.50",)

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        data = message["data"]
        return [
            BookChange(
                data.get("s", UNSET),
                self.exchange,
                message.get("type") == "snapshot",
                levels(data["b"]),
                levels(data["a"]),
                timestamp_from_ms(message.get("ts", UNSET)),
                local_timestamp,
            )
        ]


class BybitV5OptionBookChangeMapper(BybitV5BookChangeMapper):
    channels = ("orderbook.25",)


class BybitV5BookTickerMapper(BybitMapper):
    """A book of one level: a change may name only one side, and the level that it takes the place of, with amount 0."""

    channels = ("orderbook.1",)

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # Best ask and bid by symbol, once a snapshot was seen.
        self._best: Remembered[str, tuple[BookLevel, BookLevel]] = Remembered()

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        data = message["data"]
        symbol = data.get("s", UNSET)
        known = (_NO_LEVEL, _NO_LEVEL) if message.get("type") == "snapshot" else self._best.get(symbol)
        if known is None:
            return
        ask, bid = best = (_first_level(data["a"]) or known[0], _first_level(data["b"]) or known[1])
        self._best[symbol] = best
        yield BookTicker(
            symbol=symbol,
            exchange=self.exchange,
            ask_amount=ask.amount,
            ask_price=ask.price,
            bid_price=bid.price,
            bid_amount=bid.amount,
            timestamp=timestamp_from_ms(message.get("ts", UNSET)),
            local_timestamp=local_timestamp,
        )


_NO_LEVEL = BookLevel(UNSET, UNSET)


def _first_level(side: Sequence[Sequence[Any]]) -> BookLevel | None:
    return next((BookLevel(to_number(price), to_number(amount)) for price, amount, *_ in side if amount != "0"), None)


class BybitV5DerivativeTickerMapper(BybitMapper, TickerMapper):
    channels = ("tickers",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        data = message["data"]
        ticker = self.tickers[data.get("symbol", UNSET)]
        for name, update in _V5_FIELDS:
            # What a contract does not have is empty.
            if data.get(name, "") != "":
                update(ticker, to_number(data[name]))
        if data.get("nextFundingTime", "") != "":
            ticker.update_funding_timestamp(timestamp_from_ms(to_number(data["nextFundingTime"])))
        ticker.update_timestamp(timestamp_from_ms(message.get("ts", UNSET)))
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)


_V5_FIELDS = (
    ("fundingRate", PendingTicker.update_funding_rate),
    ("indexPrice", PendingTicker.update_index_price),
    ("markPrice", PendingTicker.update_mark_price),
    ("openInterest", PendingTicker.update_open_interest),
    ("lastPrice", PendingTicker.update_last_price),
)


class BybitV5LiquidationMapper(BybitMapper):
    """At most one a second for each contract."""

    channels = ("liquidation",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        data = message["data"]
        yield Liquidation(
            data.get("symbol", UNSET),
            self.exchange,
            UNSET,
            to_number(data.get("price", UNSET)),
            to_number(data.get("size", UNSET)),
            _liquidation_side(data.get("side")),
            timestamp_from_ms(message.get("ts", UNSET)),
            local_timestamp,
        )


class BybitV5AllLiquidationsMapper(BybitMapper):
    """Every liquidation."""

    channels = ("allLiquidation",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        for data in message["data"]:
            yield Liquidation(
                data.get("s", UNSET),
                self.exchange,
                UNSET,
                to_number(data.get("p", UNSET)),
                to_number(data.get("v", UNSET)),
                _liquidation_side(data.get("S")),
                timestamp_from_ms(data.get("T", UNSET)),
                local_timestamp,
            )


class BybitV5OptionSummaryMapper(BybitMapper):
    channels = ("tickers",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[OptionSummary]:
        option = message["data"]
        _, expiration, strike, kind, *_ = option["symbol"].split("-")
        yield OptionSummary(
            symbol=option["symbol"],
            exchange=self.exchange,
            option_type="put" if kind == "P" else "call",
            strike_price=to_number(strike),
            expiration_date=timestamp_from_expiration(expiration),
            best_bid_price=nonzero_number(option.get("bidPrice")),
            best_bid_amount=nonzero_number(option.get("bidSize")),
            best_bid_iv=nonzero_number(option.get("bidIv")),
            best_ask_price=nonzero_number(option.get("askPrice")),
            best_ask_amount=nonzero_number(option.get("askSize")),
            best_ask_iv=nonzero_number(option.get("askIv")),
            last_price=nonzero_number(option.get("lastPrice")),
            open_interest=nonzero_number(option.get("openInterest")),
            mark_price=nonzero_number(option.get("markPrice")),
            mark_iv=nonzero_number(option.get("markPriceIv")),
            delta=nonzero_number(option.get("delta")),
            gamma=nonzero_number(option.get("gamma")),
            vega=nonzero_number(option.get("vega")),
            theta=nonzero_number(option.get("theta")),
            rho=UNSET,
            underlying_price=nonzero_number(option.get("underlyingPrice")),
            underlying_index="",
            timestamp=timestamp_from_ms(message.get("ts", UNSET)),
            local_timestamp=local_timestamp,
        )


def _timestamp_from_either(message: Json) -> str | None:
    return timestamp_from_us(message["timestamp_e6"] if "timestamp_e6" in message else message.get("timestampE6", UNSET))


class BybitTradeMapper(BybitMapper):
    channels = ("trade",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        for trade in message["data"]:
            if "trade_time_ms" in trade:
                timestamp = timestamp_from_ms(to_number(trade["trade_time_ms"]))
            elif "tradeTimeMs" in trade:
                timestamp = timestamp_from_ms(to_number(trade["tradeTimeMs"]))
            else:
                timestamp = timestamp_from_text(trade.get("timestamp", UNSET))
            yield Trade(
                trade.get("symbol", UNSET),
                self.exchange,
                trade["trade_id"] if "trade_id" in trade else trade.get("tradeId", UNSET),
                to_number(trade.get("price", UNSET)),
                verbatim(trade.get("size", UNSET)),
                _SIDES.get(trade.get("side"), "unknown"),
                timestamp,
                local_timestamp,
            )


class BybitBookChangeMapper(BybitMapper):
    channels = ("orderBookL2_25",)

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        data, is_snapshot = message["data"], message.get("type") == "snapshot"
        if not is_snapshot:
            changes = [*data["delete"], *data["update"], *data["insert"]]
        elif isinstance(data, list):
            changes = data
        else:
            changes = data["order_book"] if "order_book" in data else data["orderBook"]
        bids: list[BookLevel] = []
        asks: list[BookLevel] = []
        for level in changes:
            side = level.get("side")
            if side in ("Buy", "Sell"):
                amount = verbatim(level["size"]) if "size" in level else 0
                (bids if side == "Buy" else asks).append(BookLevel(to_number(level.get("price", UNSET)), amount))
        symbol = message["topic"].rpartition(".")[2]
        return [BookChange(symbol, self.exchange, is_snapshot, bids, asks, _timestamp_from_either(message), local_timestamp)]


class BybitDerivativeTickerMapper(BybitMapper, TickerMapper):
    channels = ("instrument_info",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        data = message["data"]
        info = data if "symbol" in data else data["update"][0]
        ticker = self.tickers[info.get("symbol", UNSET)]
        for update, spellings in _FIELDS:
            for name, divisor in spellings:
                if name in info:
                    update(ticker, verbatim(info[name]) if divisor is None else js_number(to_number(info[name]) / divisor))
                    break
        funding = info["next_funding_time"] if "next_funding_time" in info else info.get("nextFundingTime", UNSET)
        funding_timestamp = timestamp_from_text(funding)
        # A contract that has no funding had its last one in 1970.
        if funding_timestamp is not None and parse_timestamp_us(funding_timestamp) > 0:
            ticker.update_funding_timestamp(funding_timestamp)
        if "timestamp_e6" in message or "timestampE6" in message:
            ticker.update_timestamp(_timestamp_from_either(message))
        else:
            ticker.update_timestamp(timestamp_from_text(info.get("updated_at", UNSET)))
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)


# Each field in all its spellings, the first of which counts, and what it is to be divided by; None: as it is.
_FIELDS = (
    (PendingTicker.update_funding_rate, (("funding_rate_e6", 1e6), ("fundingRateE6", 1e6))),
    (PendingTicker.update_predicted_funding_rate, (("predicted_funding_rate_e6", 1e6), ("predictedFundingRateE6", 1e6))),
    (PendingTicker.update_index_price, (("index_price", 1), ("indexPrice", 1), ("index_price_e4", 1e4), ("indexPriceE4", 1e4))),
    (PendingTicker.update_mark_price, (("mark_price", 1), ("markPrice", 1), ("mark_price_e4", 1e4), ("markPriceE4", 1e4))),
    (PendingTicker.update_open_interest, (("open_interest", None), ("openInterestE8", 1e8), ("open_interest_e8", 1e8))),
    (PendingTicker.update_last_price, (("last_price", 1), ("lastPrice", 1), ("last_price_e4", 1e4), ("lastPriceE4", 1e4))),
)


class BybitLiquidationMapper(BybitMapper):
    """Fetched by the recorder at first (`generated`), several at a time; sent one by one later."""

    channels = ("liquidation",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        is_fetched = bool(message.get("generated"))
        for order in message["data"] if is_fetched else (message["data"],):
            quantity = order.get("qty", UNSET)
            yield Liquidation(
                order.get("symbol", UNSET),
                self.exchange,
                text_of(order.get("id", UNSET)) if is_fetched else UNSET,
                to_number(order.get("price", UNSET)),
                verbatim(quantity) if is_fetched else to_number(quantity),
                _liquidation_side(order.get("side")),
                timestamp_from_ms(order.get("time", UNSET)),
                local_timestamp,
            )


class BybitSpotMapper(Mapper):
    """What these mappers share: the topic alone; an answer to a subscription has no data."""

    def accepts(self, message: Json) -> bool:
        return message.get("topic") in self.channels and "data" in message


class BybitSpotTradeMapper(BybitSpotMapper):
    channels = ("trade",)

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        trade = message["data"]
        return [
            Trade(
                message["params"].get("symbol", UNSET),
                self.exchange,
                trade.get("v", UNSET),
                to_number(trade.get("p", UNSET)),
                to_number(trade.get("q", UNSET)),
                "buy" if trade.get("m") is True else "sell",
                timestamp_from_ms(trade.get("t", UNSET)),
                local_timestamp,
            )
        ]


class BybitSpotBookChangeMapper(BybitSpotMapper):
    """The whole book each time."""

    channels = ("depth",)

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        data = message["data"]
        return [
            BookChange(
                message["params"].get("symbol", UNSET),
                self.exchange,
                True,
                levels(data["b"]),
                levels(data["a"]),
                timestamp_from_ms(data.get("t", UNSET)),
                local_timestamp,
            )
        ]


class BybitSpotBookTickerMapper(BybitSpotMapper):
    channels = ("bookTicker",)

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        data = message["data"]
        return [
            BookTicker(
                symbol=message["params"].get("symbol", UNSET),
                exchange=self.exchange,
                ask_amount=number_if_there(data, "askQty"),
                ask_price=number_if_there(data, "askPrice"),
                bid_price=number_if_there(data, "bidPrice"),
                bid_amount=number_if_there(data, "bidQty"),
                timestamp=timestamp_from_ms(data.get("time", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


_V5_SINCE = "2023-04-05T00:00:00.000Z"
_V5_SINCE_US = parse_timestamp_us(_V5_SINCE)
# Digits are looked at from their first one on only: a client may send a million of them.
_INTERVAL = re.compile(r"(?<!\d)\d+ms\.")


def read_subscription(message: Json, date_us: int, *, channels: Collection[str]) -> list[Filter] | None:
    """`{"op": "subscribe", "args": ["orderbook.50.BTCUSDT", "instrument_info.100ms.BTCUSD|ETHUSD", "trade.*"]}`."""
    if message.get("op") != "subscribe":
        return None
    filters = []
    for topic in message.get("args", ()):
        channel = max((known for known in channels if f"{topic}.".startswith(f"{known}.")), key=len, default=None)
        if channel is not None:  # candles were not recorded
            symbols = _INTERVAL.sub("", topic.removeprefix(channel).removeprefix("."), count=1)
            filters.append(_to_filter(channel, symbols, "|"))
    return filters


def read_spot_subscription(message: Json, date_us: int, *, channels: Collection[str]) -> list[Filter] | None:
    """Until v5 `{"topic": "trade", "event": "sub", "symbol": "BTCUSDT", "params": {...}}`, where params may hold the symbol."""
    if date_us >= _V5_SINCE_US:
        return read_subscription(message, date_us, channels=channels)
    if message.get("event") != "sub":
        return None
    symbols = message.get("symbol") or message.get("params", {}).get("symbol", "")
    return [_to_filter(message["topic"], symbols, ",")] if message.get("topic") in channels else []


def _to_filter(channel: str, symbols: str, separator: str) -> Filter:
    return Filter(channel, symbols.split(separator) if symbols not in ("", "*") else UNSET)


class BybitFeed(Feed):
    """Answers `{"success": true, "op": "subscribe"}`; a book begins with its snapshot, and its updates are counted by `u`."""

    # Topics of one connection may have 21,000 characters.
    max_subscriptions = 500
    subscribe_interval_s = 0.05

    @classmethod
    def split(cls, exchange: str, filters: Sequence[Filter]) -> list[Sequence[Filter]]:
        """Contracts that settle in a stable coin, and those that settle in the coin itself."""
        if exchange != "bybit":
            return [filters]
        return [some for some in (_only(filters, linear=True), _only(filters, linear=False)) if some] or [filters]

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        if self.exchange != "bybit":
            return Handshake(f"/v5/public/{self.exchange.removeprefix('bybit-').removesuffix('s')}")
        return Handshake(f"/v5/public/{'linear' if _only(self.filters, linear=True) else 'inverse'}")

    def subscribe(self, now_us: int) -> list[str]:
        topics = dict.fromkeys(
            # Trades of options are by coin.
            f"{item.channel}.{symbol.partition('-')[0] if self._by_coin(item) else symbol}"
            for item in self.filters
            for symbol in self.symbols(item)
        )
        return [to_frame({"op": "subscribe", "args": some}) for some in in_batches(list(topics), 10)]

    def _by_coin(self, item: Filter) -> bool:
        return self.exchange == "bybit-options" and item.channel == "publicTrade"

    def ping(self, now_us: int) -> str:
        return to_frame({"op": "ping"})

    def classify(self, message: Json) -> Heard:
        topic = message.get("topic")
        if topic is not None:
            if not topic.startswith("orderbook."):
                return FrameKind.DATA
            number = message["data"]["u"]
            return BookStep(topic, message["type"] == "snapshot", number, number - 1)
        if message.get("op") == "pong" or message.get("ret_msg") == "pong":
            return FrameKind.HEARTBEAT
        return FrameKind.ERROR if message.get("success") is False else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        details = message.get("ret_msg") or "a subscription was refused"
        return FeedError(kind_of_error(details), details)


def _only(filters: Sequence[Filter], *, linear: bool) -> list[Filter]:
    """The filters with those of their symbols that settle in a stable coin, or with the others."""
    kept = [
        Filter(item.channel, [symbol for symbol in item.symbols if _is_linear(symbol) is linear])
        for item in filters
        if item.symbols is not UNSET
    ]
    return [item for item in kept if item.symbols]


def _is_linear(symbol: str) -> bool:
    return symbol.endswith(("USDT", "PERP")) or "-" in symbol


_LIVE = LiveApi(BybitFeed, "wss://stream.bybit.com")
_DOCS = "https://bybit-exchange.github.io/docs/v5/ws/connect"
_CHANNELS = (
    "trade",
    "instrument_info",
    "orderBookL2_25",
    "orderBook_200",
    "insurance",
    "liquidation",
    "long_short_ratio",
    "publicTrade",
    "orderbook.1",
    "orderbook.50",
    "orderbook.500",
    "orderbook.1000",
    "tickers",
    "allLiquidation",
)
_SPOT_CHANNELS = (
    "trade",
    "bookTicker",
    "depth",
    "publicTrade",
    "orderbook.1",
    "orderbook.50",
    "orderbook.200",
    "tickers",
    "lt",
)
_OPTION_CHANNELS = ("publicTrade", "orderbook.25", "orderbook.100", "tickers")

EXCHANGES = (
    Exchange(
        "bybit",
        _DOCS,
        _CHANNELS,
        {
            "trade": (Version(BybitTradeMapper, _V5_SINCE), Version(BybitV5TradeMapper)),
            "book_change": (Version(BybitBookChangeMapper, _V5_SINCE), Version(BybitV5BookChangeMapper)),
            "derivative_ticker": (Version(BybitDerivativeTickerMapper, _V5_SINCE), Version(BybitV5DerivativeTickerMapper)),
            "liquidation": (
                Version(BybitLiquidationMapper, _V5_SINCE),
                Version(BybitV5LiquidationMapper, "2025-02-26T00:00:00.000Z"),
                Version(BybitV5AllLiquidationsMapper),
            ),
            "book_ticker": (Version(BybitV5BookTickerMapper),),
        },
        partial(read_subscription, channels=_CHANNELS),
        live=_LIVE,
    ),
    Exchange(
        "bybit-spot",
        _DOCS,
        _SPOT_CHANNELS,
        {
            "trade": (Version(BybitSpotTradeMapper, _V5_SINCE), Version(BybitV5TradeMapper)),
            "book_change": (Version(BybitSpotBookChangeMapper, _V5_SINCE), Version(BybitV5BookChangeMapper)),
            "book_ticker": (Version(BybitSpotBookTickerMapper, _V5_SINCE), Version(BybitV5BookTickerMapper)),
        },
        partial(read_spot_subscription, channels=_SPOT_CHANNELS),
        live=_LIVE,
    ),
    Exchange(
        "bybit-options",
        _DOCS,
        _OPTION_CHANNELS,
        {
            "trade": (Version(BybitV5TradeMapper),),
            "book_change": (Version(BybitV5OptionBookChangeMapper),),
            "option_summary": (Version(BybitV5OptionSummaryMapper),),
        },
        partial(read_subscription, channels=_OPTION_CHANNELS),
        live=_LIVE,
    ),
)

ABOUT = {
    "bybit": About("50 levels a side; 25 before 2023-04-05", "Prices of contracts were scaled integers before v5."),
    "bybit-spot": About("50 levels a side since 2023-04-05", "Topics had no symbol before v5."),
    "bybit-options": About("25 levels a side", "A ticker has quotes, volatilities and greeks."),
}
