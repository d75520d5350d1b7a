"""Crypto Facilities, today Kraken Futures. https://docs.kraken.com/api/docs/guides/futures-websockets

A message is flat and names its feed: `{"feed": "book", "product_id": "PI_XBTUSD", "side": "sell", "seq": 7, "price": 8500.5, "qty": 100,
"timestamp": 1567296042122}`. Numbers are JSON numbers, times milliseconds. What has an `event` is an answer, even if it names a feed.

A book is a `book_snapshot`, then one message for each level that changes. Both, and the trades of the past (`trade_snapshot`), come of
one subscription, to `book` or `trade`. A liquidation is a trade that says so. The ticker tells funding twice: in money for a contract,
which was read until 2022-09-29, and relative to the price.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, DerivativeTicker, Liquidation, Timestamp, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Credentials, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import text_of, timestamp_from_ms, to_number, verbatim
from ._remembered import Seen
from ._ticker import TickerMapper

_CHANNELS = ("trade", "trade_snapshot", "book", "book_snapshot", "ticker", "heartbeat")
_RELATIVE_FUNDING_SINCE = "2022-09-29T00:00:00.000Z"


class CryptofacilitiesTradeMapper(Mapper):
    channels = ("trade",)
    message_type: ClassVar[type[Trade] | type[Liquidation]] = Trade

    def accepts(self, message: Json) -> bool:
        return message.get("feed") == "trade" and "event" not in message

    def map(self, message: Json, local_timestamp: str) -> Sequence[Trade | Liquidation]:
        return [
            self.message_type(
                message.get("product_id", UNSET),
                self.exchange,
                message.get("uid", UNSET),
                verbatim(message.get("price", UNSET)),
                verbatim(message.get("qty", UNSET)),
                message.get("side", UNSET),
                timestamp_from_ms(message.get("time", UNSET)),
                local_timestamp,
            )
        ]


class CryptofacilitiesLiquidationMapper(CryptofacilitiesTradeMapper):
    message_type = Liquidation

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "liquidation" and super().accepts(message)


class CryptofacilitiesBookChangeMapper(Mapper):
    channels = ("book", "book_snapshot")

    def accepts(self, message: Json) -> bool:
        return message.get("feed") in ("book", "book_snapshot") and "event" not in message

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        is_snapshot = message["feed"] == "book_snapshot"
        if is_snapshot:
            bids, asks = [_level(row) for row in message["bids"]], [_level(row) for row in message["asks"]]
        elif message.get("side") == "sell":
            bids, asks = [], [_level(message)]
        else:
            bids, asks = [_level(message)], []
        timestamp: Timestamp = timestamp_from_ms(message["timestamp"]) if "timestamp" in message else local_timestamp
        return [BookChange(message.get("product_id", UNSET), self.exchange, is_snapshot, bids, asks, timestamp, local_timestamp)]


def _level(row: Json) -> BookLevel:
    amount = verbatim(row.get("qty", UNSET))
    return BookLevel(verbatim(row.get("price", UNSET)), 0 if to_number(amount) < 0 else amount)


class CryptofacilitiesTickerMapper(Mapper):
    """What mappers of the ticker share."""

    channels = ("ticker",)

    def accepts(self, message: Json) -> bool:
        return message.get("feed") == "ticker" and "event" not in message


class CryptofacilitiesDerivativeTickerMapper(CryptofacilitiesTickerMapper, TickerMapper):
    funding_field: ClassVar[str] = "funding_rate"

    def map(self, message: Json, local_timestamp: str) -> list[DerivativeTicker]:
        funding_time = message.get("next_funding_rate_time", UNSET)
        if funding_time == 0:  # its market has not opened yet
            return []
        ticker = self.tickers[message.get("product_id", UNSET)]
        ticker.update_funding_rate(verbatim(message.get(self.funding_field)))
        ticker.update_predicted_funding_rate(verbatim(message.get(f"{self.funding_field}_prediction")))
        if funding_time is not UNSET:  # futures have none
            ticker.update_funding_timestamp(timestamp_from_ms(funding_time))
        ticker.update_index_price(verbatim(message.get("index")))
        ticker.update_mark_price(verbatim(message.get("markPrice")))
        ticker.update_open_interest(verbatim(message.get("openInterest")))
        ticker.update_last_price(verbatim(message.get("last")))
        ticker.update_timestamp(timestamp_from_ms(message.get("time", UNSET)))
        return [ticker.to_message(local_timestamp)] if ticker.has_changed else []


class CryptofacilitiesRelativeDerivativeTickerMapper(CryptofacilitiesDerivativeTickerMapper):
    funding_field = "relative_funding_rate"


class CryptofacilitiesBookTickerMapper(CryptofacilitiesTickerMapper):
    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        return [
            BookTicker(
                symbol=message.get("product_id", UNSET),
                exchange=self.exchange,
                ask_amount=verbatim(message.get("ask_size", UNSET)),
                ask_price=verbatim(message.get("ask", UNSET)),
                bid_price=verbatim(message.get("bid", UNSET)),
                bid_amount=verbatim(message.get("bid_size", UNSET)),
                timestamp=timestamp_from_ms(message.get("time", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"event": "subscribe", "feed": "trade", "product_ids": ["PI_XBTUSD"]}`; a heartbeat has no products."""
    if message.get("event") != "subscribe":
        return None
    channel, symbols = message.get("feed"), message.get("product_ids")
    if channel not in _CHANNELS:
        return []  # the short ticker and accounts were not recorded
    return [Filter(channel) if symbols is None else Filter(channel, symbols)]


class CryptofacilitiesFeed(Feed):
    """Greets with `{"event": "info", …}`, answers `{"event": "subscribed", …}` or `{"event": "error", "message": …}`.

    The changes of each book are numbered one by one (`seq`). Whether the first of them follows the snapshot's number is nowhere said, so
    that is not checked.
    """

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        # Books that have changed since their snapshot.
        self._counting: Seen[str] = Seen()

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/ws/v1")

    def subscribe(self, now_us: int) -> list[str]:
        products: dict[str, dict[str, None]] = {}
        for item in self.filters:
            # Snapshots come along with their feed.
            products.setdefault(item.channel.removesuffix("_snapshot"), {}).update(dict.fromkeys(self.symbols(item)))
        return [
            to_frame({"event": "subscribe", "feed": feed, "product_ids": list(symbols)}) for feed, symbols in products.items()
        ]

    def classify(self, message: Json) -> Heard:
        if "event" in message:
            return FrameKind.ERROR if message["event"] in ("error", "alert", "subscribed_failed") else FrameKind.ANSWER
        feed = message["feed"]
        if feed == "book":
            return self._change(message["product_id"], message["seq"])
        if feed == "book_snapshot":
            self._counting.discard(message["product_id"])
            return BookStep(message["product_id"], True, message["seq"])
        return FrameKind.HEARTBEAT if feed == "heartbeat" else FrameKind.DATA

    def _change(self, book: str, number: int) -> BookStep:
        if book in self._counting:
            return BookStep(book, False, number, number - 1)
        self._counting.add(book)
        return BookStep(book, False, number)

    def error(self, message: Json) -> FeedError:
        details = text_of(message.get("message") or f"{message['event']} {message.get('feed', '')}".strip())
        return FeedError(kind_of_error(details), details)


EXCHANGES = (
    Exchange(
        name="cryptofacilities",
        docs="https://docs.kraken.com/api/docs/guides/futures-websockets",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(CryptofacilitiesTradeMapper),),
            "book_change": (Version(CryptofacilitiesBookChangeMapper),),
            "derivative_ticker": (
                Version(CryptofacilitiesDerivativeTickerMapper, _RELATIVE_FUNDING_SINCE),
                Version(CryptofacilitiesRelativeDerivativeTickerMapper),
            ),
            "liquidation": (Version(CryptofacilitiesLiquidationMapper),),
            "book_ticker": (Version(CryptofacilitiesBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(CryptofacilitiesFeed, "wss://futures.kraken.com"),
    ),
)

ABOUT = {
    "cryptofacilities": About(
        "all levels", "Kraken Futures; a book changes by one level a message, which are numbered without a hole."
    ),
}
