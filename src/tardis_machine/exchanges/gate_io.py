"""Gate: spot and futures. https://www.gate.io/docs/developers/apiv4/ws/en/ and https://www.gate.io/docs/developers/futures/ws/en/

A message names its channel and what happened: `{"time": 1754006460, "time_ms": 1754006460601, "channel": "spot.obu", "event":
"update", "result": {...}}`. Prices are text. Amounts of futures are contracts, numbers at first and text since 2026; below 0 they are
sold. Until 2023-04-29 spot had another API (v3), by methods: `{"method": "depth.update", "params": [true, {...}, "BTC_USDT"]}`.

The book of spot was joined from changes and a snapshot that the recorder fetched; since 2025-08-01 the exchange sends the snapshot
itself. A futures book that is not known yet, and a best price that is not, have a time of 0, and say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, DerivativeTicker, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._joined_book import JoinedBookMapper, JoinRules
from ._mapper import Json, Mapper
from ._parsing import (
    levels,
    number_if_there,
    text_of,
    timestamp_from_ms,
    timestamp_from_seconds,
    timestamp_from_us,
    to_number,
)
from ._remembered import Seen
from ._rows import is_array
from ._ticker import TickerMapper

_V4_SINCE = "2023-04-29T00:00:00.000Z"
_OWN_SNAPSHOT_SINCE = "2025-08-01T00:00:00.000Z"


def _id_of(trade: Json) -> str:
    if trade.get("id") is None:
        raise ValueError("a trade has no id")
    return text_of(trade["id"])


def _whole_seconds(value: Any) -> str | None:
    """A time in seconds, to the millisecond."""
    return timestamp_from_ms(to_number(value) * 1000)


class GateIoV3TradeMapper(Mapper):
    channels = ("trades",)

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # Symbols whose first message, which is of the past, was left out.
        self._begun: Seen[str | None] = Seen()

    def accepts(self, message: Json) -> bool:
        return message.get("method") == "trades.update"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol, trades = [*message["params"], None, None][:2]
        for trade in reversed(trades or ()):  # they come newest first
            if symbol not in self._begun:
                self._begun.add(symbol)
                return
            yield Trade(
                symbol,
                self.exchange,
                _id_of(trade),
                to_number(trade.get("price", UNSET)),
                to_number(trade.get("amount", UNSET)),
                "sell" if trade.get("type") == "sell" else "buy",
                timestamp_from_seconds(trade.get("time", UNSET)),
                local_timestamp,
            )


class GateIoV3BookChangeMapper(Mapper):
    channels = ("depth",)

    def accepts(self, message: Json) -> bool:
        return message.get("method") == "depth.update"

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        is_snapshot, book, symbol = message["params"][:3]
        bids, asks = (levels(book[side]) if is_array(book.get(side)) else [] for side in ("bids", "asks"))
        timestamp = _whole_seconds(book["current"]) if "current" in book else local_timestamp
        return [BookChange(symbol, self.exchange, is_snapshot, bids, asks, timestamp, local_timestamp)]


class GateIoSpotMapper(Mapper):
    """What these mappers share: they tell a channel by its end."""

    events: ClassVar[tuple[str, ...]] = ("update",)

    def accepts(self, message: Json) -> bool:
        return message.get("event") in self.events and message.get("channel", "").endswith(self.channels)


class GateIoTradeMapper(GateIoSpotMapper):
    channels = ("trades",)

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        trade = message["result"]
        return [
            Trade(
                trade.get("currency_pair", UNSET),
                self.exchange,
                _id_of(trade),
                to_number(trade.get("price", UNSET)),
                to_number(trade.get("amount", UNSET)),
                "sell" if trade.get("side") == "sell" else "buy",
                timestamp_from_ms(to_number(trade.get("create_time_ms", UNSET))),
                local_timestamp,
            )
        ]


class GateIoJoinedBookChangeMapper(GateIoSpotMapper, JoinedBookMapper):
    """The snapshot that was fetched has the same channel. What lies between the two may be missing, and is not looked for."""

    channels = ("order_book_update",)
    events = ("update", "snapshot")
    rules = JoinRules(keeps_zero=True, empty_numbers=(-1,), ignores_gaps=True)

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        book = message["result"]
        if message["event"] == "snapshot":
            symbol, number = message.get("symbol", UNSET), book.get("id", UNSET)
            timestamp = timestamp_from_ms(book.get("update", UNSET))
            return self.join_snapshot(symbol, number, book["bids"], book["asks"], timestamp, local_timestamp)
        timestamp = timestamp_from_us(book.get("t", UNSET))
        first, last = book.get("U", UNSET), book.get("u", UNSET)
        return self.join_update(book.get("s", UNSET), first, last, UNSET, book["b"], book["a"], timestamp, local_timestamp)


class GateIoBookChangeMapper(Mapper):
    """A snapshot (`full`), then every change, of `ob.BTC_USDT.400`."""

    channels = ("obu",)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "spot.obu" and message.get("event") == "update"

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        book = message["result"]
        return [
            BookChange(
                _symbol_of(book["s"]),
                self.exchange,
                book.get("full") is True,
                levels(book.get("b") or ()),
                levels(book.get("a") or ()),
                timestamp_from_ms(book.get("t", UNSET)),
                local_timestamp,
            )
        ]


def _symbol_of(stream: str) -> str:
    return stream[3 : stream.rfind(".")]


class GateIoBookTickerMapper(GateIoSpotMapper):
    channels = ("book_ticker",)

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        best = message["result"]
        return [
            BookTicker(
                symbol=best.get("s", UNSET),
                exchange=self.exchange,
                ask_amount=number_if_there(best, "A"),
                ask_price=number_if_there(best, "a"),
                bid_price=number_if_there(best, "b"),
                bid_amount=number_if_there(best, "B"),
                timestamp=timestamp_from_ms(best["t"]) if "t" in best else local_timestamp,
                local_timestamp=local_timestamp,
            )
        ]


class GateIoFuturesMapper(Mapper):
    """What these mappers share."""

    events: ClassVar[tuple[str, ...]] = ("update",)

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._channel = f"futures.{self.channels[0]}"

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == self._channel and message.get("event") in self.events


def _time_of(message: Json) -> str | None:
    """The exchange's time of a message, which had whole seconds at first."""
    return timestamp_from_ms(message["time_ms"]) if "time_ms" in message else _whole_seconds(message.get("time", UNSET))


def _unsigned(size: float) -> float:
    return to_number(-size) if size < 0 else size


class GateIoFuturesTradeMapper(GateIoFuturesMapper):
    channels = ("trades",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        for trade in message["result"]:
            size = to_number(trade.get("size", UNSET))
            if "create_time_ms" in trade:
                timestamp = timestamp_from_ms(trade["create_time_ms"])
            else:
                timestamp = _whole_seconds(trade.get("create_time", UNSET))
            yield Trade(
                trade.get("contract", UNSET),
                self.exchange,
                _id_of(trade),
                to_number(trade.get("price", UNSET)),
                _unsigned(size),
                "sell" if size < 0 else "buy",
                timestamp,
                local_timestamp,
            )


class GateIoFuturesBookChangeMapper(GateIoFuturesMapper):
    channels = ("order_book",)
    events = ("all", "update")

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookChange]:
        result = message["result"]
        if message["event"] == "update":
            if result:
                yield self._change(message, result, local_timestamp)
        elif result.get("t") != 0:
            has_time = "time_ms" in message or "t" not in result
            timestamp = _time_of(message) if has_time else timestamp_from_ms(result["t"])
            bids, asks = _levels(result["bids"]), _levels(result["asks"])
            yield BookChange(result.get("contract", UNSET), self.exchange, True, bids, asks, timestamp, local_timestamp)

    def _change(self, message: Json, rows: Sequence[Json], local_timestamp: str) -> BookChange:
        first = rows[0]
        timestamp = timestamp_from_ms(first["t"]) if "t" in first else _whole_seconds(message.get("time", UNSET))
        bids: list[BookLevel] = []
        asks: list[BookLevel] = []
        for row in rows:
            price, size = to_number(row.get("p", UNSET)), to_number(row.get("s", UNSET))
            # What is gone was on either side.
            if size >= 0:
                bids.append(BookLevel(price, size))
            if size <= 0:
                asks.append(BookLevel(price, _unsigned(size)))
        return BookChange(first.get("c", UNSET), self.exchange, False, bids, asks, timestamp, local_timestamp)


def _levels(rows: Sequence[Json]) -> list[BookLevel]:
    return [BookLevel(to_number(row.get("p", UNSET)), _unsigned(to_number(row.get("s", UNSET)))) for row in rows]


class GateIoFuturesDerivativeTickerMapper(GateIoFuturesMapper, TickerMapper):
    channels = ("tickers",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        result = message["result"]
        for row in result if isinstance(result, list) else [result]:
            if "contract" not in row:
                return
            ticker = self.tickers[row["contract"]]
            ticker.update_funding_rate(to_number(row.get("funding_rate", UNSET)))
            ticker.update_predicted_funding_rate(to_number(row.get("funding_rate_indicative", UNSET)))
            ticker.update_index_price(to_number(row.get("index_price", UNSET)))
            ticker.update_mark_price(to_number(row.get("mark_price", UNSET)))
            ticker.update_last_price(to_number(row.get("last", UNSET)))
            ticker.update_open_interest(number_if_there(row, "total_size"))
            ticker.update_timestamp(_time_of(message))
            if ticker.has_changed:
                yield ticker.to_message(local_timestamp)


class GateIoFuturesBookTickerMapper(GateIoFuturesMapper):
    channels = ("book_ticker",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        best = message["result"]
        if best.get("t") == 0:
            return
        yield BookTicker(
            symbol=best.get("s", UNSET),
            exchange=self.exchange,
            ask_amount=_amount(best, "A"),
            ask_price=_price(best, "a"),
            bid_price=_price(best, "b"),
            bid_amount=_amount(best, "B"),
            timestamp=timestamp_from_ms(best["t"]) if "t" in best else local_timestamp,
            local_timestamp=local_timestamp,
        )


def _price(best: Json, name: str) -> Any:
    price = best.get(name, UNSET)
    return UNSET if price == "" else to_number(price)


def _amount(best: Json, name: str) -> Any:
    amount = to_number(best.get(name, UNSET))
    return UNSET if amount == 0 else amount


def read_subscription(message: Json, date_us: int, *, channels: Collection[str]) -> list[Filter] | None:
    """`{"channel": "spot.trades", "event": "subscribe", "payload": ["BTC_USDT"]}`; v3: `{"method": "trades.subscribe", "params": …}`.

    An entry may be an array of a symbol, a depth and an interval, and so may be the whole.
    """
    method = str(message.get("method"))
    if message.get("event") == "subscribe":
        channel, entries = message.get("channel", "").partition(".")[2], message.get("payload")
    elif method.endswith(".subscribe"):
        channel, entries = method.removesuffix(".subscribe"), message.get("params")
    else:
        return None
    if channel not in channels:
        return []  # candles and futures' numbered changes were not recorded
    names = [entry[0] if isinstance(entry, list) else entry for entry in entries or ()]
    symbols = [name for name in names if isinstance(name, str) and "_" in name]
    return [Filter(channel, [_symbol_of(name) for name in symbols] if channel == "obu" else symbols)]


class GateIoFeed(Feed):
    """Answers `{"event": "subscribe", "error": null, "result": {"status": "success"}}`, or with an error in it."""

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/ws/v4/")

    def subscribe(self, now_us: int) -> list[str]:
        return [
            _subscription(f"spot.{item.channel}", [f"ob.{symbol}.400" if item.channel == "obu" else symbol], now_us // 1000)
            for item in self.filters
            for symbol in dict.fromkeys(self.symbols(item))
        ]

    def classify(self, message: Json) -> Heard:
        if message.get("error") is not None:
            return FrameKind.ERROR
        return self.heard(message) if message.get("event") in ("update", "all") else FrameKind.ANSWER

    def heard(self, message: Json) -> Heard:
        """What the data is. Changes of the book are numbered from `U` to `u`, without a hole."""
        if message["channel"] != "spot.obu":
            return FrameKind.DATA
        book = message["result"]
        return BookStep(book["s"], book.get("full") is True, book["u"], book["U"] - 1 if "U" in book else None)

    def error(self, message: Json) -> FeedError:
        error = message["error"]
        details = f"{error.get('code', '')} {error.get('message', '')}".strip() if isinstance(error, dict) else text_of(error)
        return FeedError(kind_of_error(details), details or "an error without details")


class GateIoFuturesFeed(GateIoFeed):
    """What settles in USDT has an address of its own. Changes of the book are not numbered."""

    @classmethod
    def split(cls, exchange: str, filters: Sequence[Filter]) -> list[Sequence[Filter]]:
        return [some for some in (_only(filters, in_usdt=True), _only(filters, in_usdt=False)) if some] or [filters]

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        settled_in = "usdt" if _is_in_usdt(self.symbols(self.filters[0])[0]) else "btc"
        return Handshake(f"/v4/ws/{settled_in}", headers={"X-Gate-Size-Decimal": "1"})

    def subscribe(self, now_us: int) -> list[str]:
        frames = []
        for item in self.filters:
            symbols, channel = list(dict.fromkeys(self.symbols(item))), f"futures.{item.channel}"
            payloads = [[symbol, "20", "0"] for symbol in symbols] if item.channel == "order_book" else [symbols]
            frames += [_subscription(channel, payload, now_us // 1_000_000) for payload in payloads]
        return frames

    def heard(self, message: Json) -> Heard:
        """What the data is."""
        result = message["result"]
        if message["channel"] != "futures.order_book":
            return FrameKind.DATA
        if message["event"] == "update":
            return BookStep(result[0]["c"], is_snapshot=False) if result else FrameKind.DATA
        return BookStep(result["contract"], is_snapshot=True) if result.get("t") != 0 else FrameKind.DATA


def _subscription(channel: str, payload: Sequence[str], time: int) -> str:
    return to_frame({"time": time, "channel": channel, "event": "subscribe", "payload": payload})


def _only(filters: Sequence[Filter], *, in_usdt: bool) -> list[Filter]:
    """The filters with those of their symbols that settle in USDT, or with the others."""
    kept = [
        Filter(item.channel, [symbol for symbol in item.symbols if _is_in_usdt(symbol) is in_usdt])
        for item in filters
        if item.symbols is not UNSET
    ]
    return [item for item in kept if item.symbols]


def _is_in_usdt(symbol: str) -> bool:
    return symbol.endswith("_USDT")


_CHANNELS = ("trades", "depth", "ticker", "book_ticker", "order_book_update", "obu")
_FUTURES_CHANNELS = ("trades", "order_book", "tickers", "book_ticker")

EXCHANGES = (
    Exchange(
        name="gate-io",
        docs="https://www.gate.io/docs/developers/apiv4/ws/en/",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(GateIoV3TradeMapper, _V4_SINCE), Version(GateIoTradeMapper)),
            "book_change": (
                Version(GateIoV3BookChangeMapper, _V4_SINCE),
                Version(GateIoJoinedBookChangeMapper, _OWN_SNAPSHOT_SINCE),
                Version(GateIoBookChangeMapper),
            ),
            "book_ticker": (Version(GateIoBookTickerMapper),),
        },
        subscriptions=partial(read_subscription, channels=_CHANNELS),
        live=LiveApi(GateIoFeed, "wss://api.gateio.ws"),
    ),
    Exchange(
        name="gate-io-futures",
        docs="https://www.gate.io/docs/developers/futures/ws/en/",
        channels=_FUTURES_CHANNELS,
        mappers={
            "trade": (Version(GateIoFuturesTradeMapper),),
            "book_change": (Version(GateIoFuturesBookChangeMapper),),
            "derivative_ticker": (Version(GateIoFuturesDerivativeTickerMapper),),
            "book_ticker": (Version(GateIoFuturesBookTickerMapper),),
        },
        subscriptions=partial(read_subscription, channels=_FUTURES_CHANNELS),
        live=LiveApi(GateIoFuturesFeed, "wss://fx-ws.gateio.ws"),
    ),
)

ABOUT = {
    "gate-io": About(
        "400 levels a side since 2025-08-01; joined from a snapshot over REST before",
        "Spot had another API, by methods, before 2023-04-29.",
    ),
    "gate-io-futures": About("20 levels a side live", "Amounts are contracts, and below 0 sold."),
}
