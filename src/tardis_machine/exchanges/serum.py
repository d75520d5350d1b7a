"""Serum, and Mango and Star Atlas beside it, exchanges on Solana whose data servers went away in 2022: history alone.
https://github.com/tardis-dev/serum-vial

All three had servers of one kind. A message says its type and its market: `{"type": "trade", "market": "SOL/USDC", "timestamp":
"2021-11-01T00:00:00.050Z", "slot": 104500000, "version": 3, "id": "9684|185", "side": "buy", "price": "203.5", …}`. Numbers are
text, sides the taker's. A book's snapshot answers the subscription; changes do not wait for it.

Serum spells markets in upper case. Those of Star Atlas are addresses, in both cases: these and Mango's are asked for as typed.
Symbols come out in upper case, of all three.
"""

from __future__ import annotations

from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, Trade
from ._exchange import About, Exchange, Version
from ._mapper import Json, Mapper
from ._parsing import levels, nonzero_number, timestamp_from_text, to_number
from ._spelling import AS_TYPED

_CHANNELS = ("recent_trades", "trade", "quote", "l2snapshot", "l2update", "l3snapshot", "open", "fill", "change", "done")
# What each channel of a subscription is recorded as.
_RECORDED = {
    "trades": ("recent_trades", "trade"),
    "level1": ("quote",),
    "level2": ("l2snapshot", "l2update"),
    "level3": ("l3snapshot", "open", "fill", "change", "done"),
}


class SerumTradeMapper(Mapper):
    """Trades of the past (`recent_trades`), which answer the subscription, are not read."""

    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "trade"

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        return [
            Trade(
                message["market"].upper(),
                self.exchange,
                message.get("id", UNSET),
                to_number(message.get("price", UNSET)),
                to_number(message.get("size", UNSET)),
                message.get("side", UNSET),
                # The event's own time, where it is told.
                timestamp_from_text(message.get("eventTimestamp", message.get("timestamp", UNSET))),
                local_timestamp,
            )
        ]


class SerumBookChangeMapper(Mapper):
    channels = ("l2snapshot", "l2update")

    def accepts(self, message: Json) -> bool:
        return message.get("type") in ("l2update", "l2snapshot")

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        return [
            BookChange(
                message["market"].upper(),
                self.exchange,
                message["type"] == "l2snapshot",
                levels(message["bids"]),
                levels(message["asks"]),
                timestamp_from_text(message.get("timestamp", UNSET)),
                local_timestamp,
            )
        ]


class SerumBookTickerMapper(Mapper):
    channels = ("quote",)

    def accepts(self, message: Json) -> bool:
        return message.get("type") == "quote"

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        bid_price, bid_amount = _best(message.get("bestBid"))
        ask_price, ask_amount = _best(message.get("bestAsk"))
        return [
            BookTicker(
                symbol=message["market"].upper(),
                exchange=self.exchange,
                ask_amount=ask_amount,
                ask_price=ask_price,
                bid_price=bid_price,
                bid_amount=bid_amount,
                timestamp=timestamp_from_text(message.get("timestamp", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


def _best(level: Any) -> list[Any]:
    """Price and amount of the best level of a side, which may be empty."""
    return [nonzero_number(value) for value in [*(level or ()), UNSET, UNSET][:2]]


class SerumTradeMapperAsTyped(SerumTradeMapper):
    spelling = AS_TYPED


class SerumBookChangeMapperAsTyped(SerumBookChangeMapper):
    spelling = AS_TYPED


class SerumBookTickerMapperAsTyped(SerumBookTickerMapper):
    spelling = AS_TYPED


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"op": "subscribe", "channel": "level2", "markets": ["SOL/USDC"]}`."""
    if message.get("op") != "subscribe":
        return None
    return [Filter(channel, message.get("markets", UNSET)) for channel in _RECORDED.get(message.get("channel"), ())]


def _exchange(name: str, mappers: tuple[type[Mapper], type[Mapper], type[Mapper]]) -> Exchange:
    trade, book_change, book_ticker = mappers
    return Exchange(
        name=name,
        docs="https://github.com/tardis-dev/serum-vial",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(trade),),
            "book_change": (Version(book_change),),
            "book_ticker": (Version(book_ticker),),
        },
        subscriptions=read_subscription,
    )


_UPPER_CASE = (SerumTradeMapper, SerumBookChangeMapper, SerumBookTickerMapper)
_AS_TYPED = (SerumTradeMapperAsTyped, SerumBookChangeMapperAsTyped, SerumBookTickerMapperAsTyped)

EXCHANGES = (_exchange("serum", _UPPER_CASE), _exchange("mango", _AS_TYPED), _exchange("star-atlas", _AS_TYPED))

ABOUT = {
    "serum": About("what the venue sends: snapshot and changes", "Solana; its data server went away.", closed="2022"),
    "mango": About(
        "what the venue sends: snapshot and changes",
        "As serum; symbols are asked for as typed.",
        closed="2022-10-14",
    ),
    "star-atlas": About(
        "what the venue sends: snapshot and changes",
        "As serum; symbols are addresses on Solana, in both cases.",
        closed="2022-09-05",
    ),
}
