"""Crypto.com Exchange. https://exchange-docs.crypto.com/exchange/v1/rest-ws/index.html

A message holds a result, which names its channel: `{"id": -1, "code": 0, "method": "subscribe", "result": {"channel": "trade",
"instrument_name": "BTCUSD-PERP", "subscription": "trade.BTCUSD-PERP", "data": [{…}]}}`. Numbers were JSON numbers at first and are text
now; trades come newest first. Spot is named `BTC_USDT`, a perpetual `BTCUSD-PERP`, its index `BTCUSD-INDEX`, an option has two dashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, in_batches, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import levels, next_hour, number_unless_null, text_of, timestamp_from_ms, to_number
from ._spelling import Spelling
from ._ticker import TickerMapper

_CHANNELS = ("trade", "book", "ticker", "settlement", "index", "mark", "funding", "estimatedfunding")


class CryptoComTradeMapper(Mapper):
    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        return "result" in message and message["result"].get("channel") == "trade"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        result = message["result"]
        symbol = result.get("instrument_name", UNSET)
        for trade in reversed(result["data"]):
            if trade.get("d") is None:
                raise ValueError("a trade has no d, its id")
            yield Trade(
                symbol,
                self.exchange,
                text_of(trade["d"]),
                to_number(trade.get("p", UNSET)),
                to_number(trade.get("q", UNSET)),
                "buy" if trade.get("s") == "BUY" else "sell",
                timestamp_from_ms(trade.get("t", UNSET)),
                local_timestamp,
            )


class CryptoComBookChangeMapper(Mapper):
    """`book` brings whole books, and `book.update` the changes of them; both are asked for as `book`."""

    channels = ("book",)

    def accepts(self, message: Json) -> bool:
        return "result" in message and message["result"]["channel"].startswith("book")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        result = message["result"]
        rows = result.get("data", ())
        if len(rows) == 0:
            return ()
        row = rows[0]
        is_snapshot = result["channel"] == "book"
        sides = row if is_snapshot else row["update"]
        return (
            BookChange(
                result.get("instrument_name", UNSET),
                self.exchange,
                is_snapshot,
                levels(sides.get("bids") or ()),
                levels(sides.get("asks") or ()),
                timestamp_from_ms(row.get("t", UNSET)),
                local_timestamp,
            ),
        )


def _underlying(symbol: str) -> str:
    return symbol.partition("-")[0]


def _spell_index(symbol: str) -> str:
    return f"{_underlying(symbol.upper())}-INDEX"


class CryptoComDerivativeTickerMapper(TickerMapper):
    """Asks for estimated funding as the reference does, which makes nothing of it either."""

    channels = ("ticker", "index", "mark", "funding", "estimatedfunding")
    spellings: ClassVar = {"index": Spelling(_spell_index, unique=True, every_symbol=())}

    def accepts(self, message: Json) -> bool:
        if "result" not in message:
            return False
        result = message["result"]
        if result.get("channel") not in ("ticker", "index", "mark", "funding") or "instrument_name" not in result:
            return False
        symbol = result["instrument_name"]
        # Neither spot nor options.
        return "_" not in symbol and symbol.count("-") != 2

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        result = message["result"]
        channel, symbol, row = result["channel"], result["instrument_name"], result["data"][0]
        underlying = _underlying(symbol)
        if channel == "index":
            self.index_prices[underlying] = to_number(row.get("v", UNSET))
            return
        ticker = self.tickers[symbol]
        ticker.update_index_price(self.index_prices.get(underlying))
        timestamp = timestamp_from_ms(row.get("t", UNSET))
        if channel == "ticker":
            ticker.update_last_price(number_unless_null(row, "a"))
            ticker.update_open_interest(number_unless_null(row, "oi"))
        elif channel == "mark":
            ticker.update_mark_price(number_unless_null(row, "v"))
        elif row.get("v") is not None:
            ticker.update_funding_rate(to_number(row["v"]))
            ticker.update_funding_timestamp(next_hour(timestamp))
        ticker.update_timestamp(timestamp)
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)


class CryptoComBookTickerMapper(Mapper):
    channels = ("ticker",)

    def accepts(self, message: Json) -> bool:
        return "result" in message and message["result"].get("channel") == "ticker"

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        result = message["result"]
        for row in result["data"]:
            yield BookTicker(
                symbol=result.get("instrument_name", UNSET),
                exchange=self.exchange,
                ask_amount=number_unless_null(row, "ks"),
                ask_price=number_unless_null(row, "k"),
                bid_price=number_unless_null(row, "b"),
                bid_amount=number_unless_null(row, "bs"),
                timestamp=timestamp_from_ms(row.get("t", UNSET)),
                local_timestamp=local_timestamp,
            )


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"method": "subscribe", "params": {"channels": ["trade.BTCUSD-PERP", "book.BTCUSD-PERP.50"]}}`, or symbol before channel."""
    if message.get("method") != "subscribe":
        return None
    filters = []
    for asked in (message.get("params") or {}).get("channels", ()):
        first, _, rest = asked.partition(".")
        second = rest.partition(".")[0]
        # Candles were not recorded.
        if first in _CHANNELS and second:
            filters.append(Filter(first, [second]))
        elif second in _CHANNELS and first:
            filters.append(Filter(second, [first]))
    return filters


# A channel that there is not, such as the index of a spot pair.
_NO_SUCH_CHANNEL = 40003


class CryptoComFeed(Feed):
    """Answers `{"id": 1, "method": "subscribe", "code": 0, …}`, where another code is a complaint. Sends heartbeats, and hangs up if
    one is not answered. Each update of a book names the one before it (`pu`)."""

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/exchange/v1/market")

    def subscribe(self, now_us: int) -> list[str]:
        channels = [
            f"{item.channel}.{symbol}{'.50' if item.channel == 'book' else ''}"
            for item in self.filters
            for symbol in dict.fromkeys(self.symbols(item))
        ]
        return [
            to_frame(
                {
                    "id": number,
                    "method": "subscribe",
                    "nonce": now_us // 1000,
                    "params": {"channels": some, "book_subscription_type": "SNAPSHOT_AND_UPDATE"},
                }
            )
            for number, some in enumerate(in_batches(channels, 100), start=1)
        ]

    def classify(self, message: Json) -> Heard:
        if message.get("method") == "public/heartbeat":
            return FrameKind.HEARTBEAT
        if message.get("code", 0) not in (0, _NO_SUCH_CHANNEL):
            return FrameKind.ERROR
        result = message.get("result")
        if result is None:
            return FrameKind.ANSWER
        if not result["channel"].startswith("book") or not result["data"]:
            return FrameKind.DATA
        row = result["data"][0]
        return BookStep(result["instrument_name"], result["channel"] == "book", row.get("u", 0), row.get("pu"))

    def error(self, message: Json) -> FeedError:
        details = f"{message.get('code', '')} {message.get('message', '')}".strip()
        return FeedError(kind_of_error(details), details)

    def reply(self, message: Json, now_us: int) -> list[str]:
        if message.get("method") != "public/heartbeat":
            return []
        return [to_frame({"id": message.get("id"), "method": "public/respond-heartbeat"})]


EXCHANGES = (
    Exchange(
        name="crypto-com",
        docs="https://exchange-docs.crypto.com/exchange/v1/rest-ws/index.html",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(CryptoComTradeMapper),),
            "book_change": (Version(CryptoComBookChangeMapper),),
            "derivative_ticker": (Version(CryptoComDerivativeTickerMapper),),
            "book_ticker": (Version(CryptoComBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(CryptoComFeed, "wss://stream.crypto.com"),
    ),
)

ABOUT = {
    "crypto-com": About("50 levels a side", "Ids of trades have more digits than a double holds: all are kept."),
}
