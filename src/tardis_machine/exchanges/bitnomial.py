"""Bitnomial. https://bitnomial.com/docs

A message is flat and names its type: `{"type": "level", "ack_id": "7187577067767395971", "symbol": "BUIH23", "side": "Ask", "price":
18970, "quantity": 5, "timestamp": "2023-01-12T20:03:28.292532617Z"}`. Numbers are JSON numbers, ids text of 19 digits.

A book is a `book`, then a `level` for each that changes. Both come of one subscription, to `book`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, Trade
from ._exchange import About, Exchange, Version
from ._feed import (
    BookGate,
    BookStep,
    Credentials,
    Feed,
    FeedError,
    FrameKind,
    Handshake,
    Heard,
    LiveApi,
    kind_of_error,
    to_frame,
)
from ._mapper import Json, Mapper
from ._parsing import levels_as_sent, text_of, timestamp_from_text, to_number, verbatim
from ._remembered import Remembered

_CHANNELS = ("trade", "level", "book", "block", "status")


def _time(message: Json) -> str | None:
    """With microseconds. What has no time can't be normalized."""
    if message["timestamp"] is None:
        raise ValueError("timestamp is null")
    return timestamp_from_text(message["timestamp"], micros=True)


class BitnomialTradeMapper(Mapper):
    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "trade"

    def map(self, message: Json, local_timestamp: str) -> Sequence[Trade]:
        return (
            Trade(
                message.get("symbol", UNSET),
                self.exchange,
                text_of(message.get("ack_id", UNSET)),
                to_number(message.get("price", UNSET)),
                to_number(message.get("quantity", UNSET)),
                "buy" if message.get("taker_side") == "Bid" else "sell",
                _time(message),
                local_timestamp,
            ),
        )


class BitnomialBookChangeMapper(Mapper):
    channels = ("book", "level")

    def accepts(self, message: Json) -> bool:
        return message.get("type") in ("level", "book")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        is_snapshot = message["type"] == "book"
        bids: list[BookLevel] = []
        asks: list[BookLevel] = []
        if is_snapshot:
            bids, asks = levels_as_sent(message["bids"]), levels_as_sent(message["asks"])
        else:
            level = BookLevel(verbatim(message.get("price", UNSET)), verbatim(message.get("quantity", UNSET)))
            side = message.get("side")
            if side == "Bid":
                bids.append(level)
            elif side == "Ask":
                asks.append(level)
        symbol = message.get("symbol", UNSET)
        return (BookChange(symbol, self.exchange, is_snapshot, bids, asks, _time(message), local_timestamp),)


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"type": "subscribe", "product_codes": ["BUSM24"], "channels": ["book", {"name": "trade", "product_codes": ["BUIH24"]}]}`."""
    if message.get("type") != "subscribe":
        return None
    filters: list[Filter] = []
    for entry in message.get("channels") or ():
        name, symbols = (
            (entry, message.get("product_codes")) if isinstance(entry, str) else (entry.get("name"), entry.get("product_codes"))
        )
        channels = ("book", "level") if name == "book" else (name,)
        filters.extend(Filter(channel, UNSET if symbols is None else symbols) for channel in channels if channel in _CHANNELS)
    return filters


class BitnomialBookGate(BookGate):
    """Holds back what a book's snapshot has already: levels whose `ack_id` is not greater than its own."""

    def __init__(self) -> None:
        super().__init__()
        # The number of each book's snapshot. Levels that one order changed may share theirs.
        self._snapshots: Remembered[str, int] = Remembered()

    def take(self, step: BookStep) -> FrameKind:
        if step.is_snapshot:
            self._snapshots[step.book] = step.number
        elif step.number <= self._snapshots.get(step.book, step.number):
            return FrameKind.EARLY
        return super().take(step)


class BitnomialFeed(Feed):
    """Says `{"type": "error", …}`, and `{"type": "disconnect", "reason": …}` before it hangs up. Ids grow, but not one by one: what is
    missing can't be told by them."""

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self.books = BitnomialBookGate()

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/exchange/ws")

    def subscribe(self, now_us: int) -> list[str]:
        products: dict[str, dict[str, None]] = {}
        for item in self.filters:
            name = "book" if item.channel == "level" else item.channel
            products.setdefault(name, {}).update(dict.fromkeys(self.symbols(item)))
        channels = [{"name": name, "product_codes": list(symbols)} for name, symbols in products.items()]
        return [to_frame({"type": "subscribe", "product_codes": [], "channels": channels})]

    def classify(self, message: Json) -> Heard:
        kind = message.get("type")
        if kind in ("level", "book"):
            return BookStep(message["symbol"], kind == "book", int(message["ack_id"]))
        if kind in ("error", "disconnect"):
            return FrameKind.ERROR
        return FrameKind.DATA if kind in _CHANNELS else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        kind = message["type"]
        details = text_of(message.get("reason") or message.get("message") or f"{kind} without a reason")
        return FeedError(kind_of_error(details), details, is_final=kind == "disconnect")


EXCHANGES = (
    Exchange(
        name="bitnomial",
        docs="https://bitnomial.com/docs",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(BitnomialTradeMapper),),
            "book_change": (Version(BitnomialBookChangeMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(BitnomialFeed, "wss://bitnomial.com"),
    ),
)

ABOUT = {
    "bitnomial": About(
        "what the venue sends: snapshot and changes",
        "A book changes by one level a message; ids have 19 digits.",
    ),
}
