"""What every market of Huobi has: trades, books, and the best of books.

Invariant: a mapper reads one channel, and a message says its symbol by the channel alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ...messages import UNSET, BookChange, BookTicker, Trade
from .._joined_book import JoinRules, links
from .._mapper import Json, Mapper
from .._parsing import nonzero_number, text_of, timestamp_from_ms, to_number, verbatim
from .._remembered import Remembered, Seen
from .envelope import MARKET_SPELLING, sides_of, symbol_of, to_levels, to_side

__all__ = [
    "KEPT_CHANGES",
    "MBP_RULES",
    "HuobiBookChangeMapper",
    "HuobiBookTickerMapper",
    "HuobiMbpBookChangeMapper",
    "HuobiTradeMapper",
]


class HuobiTradeMapper(Mapper):
    channels = ("trade",)
    spelling = MARKET_SPELLING

    def accepts(self, message: Json) -> bool:
        return message.get("ch", "").endswith(".trade.detail")

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol = symbol_of(message["ch"])
        for trade in message["tick"]["data"]:
            yield Trade(
                symbol,
                self.exchange,
                text_of(trade["tradeId"] if "tradeId" in trade else trade.get("id", UNSET)),
                verbatim(trade.get("price", UNSET)),
                verbatim(trade.get("amount", UNSET)),
                to_side(trade.get("direction")),
                timestamp_from_ms(trade.get("ts", UNSET)),
                local_timestamp,
            )


class HuobiBookChangeMapper(Mapper):
    """Whole books, or a snapshot and its changes: an `event` says so. Spot had none, and marked changes by an `update` instead."""

    channels = ("depth",)
    spelling = MARKET_SPELLING

    def accepts(self, message: Json) -> bool:
        return ".depth." in message.get("ch", "")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        tick = message["tick"]
        bids, asks = sides_of(tick)
        if not bids and not asks:
            return ()
        is_snapshot = tick["event"] == "snapshot" if "event" in tick else "update" not in message
        timestamp = timestamp_from_ms(message.get("ts", UNSET))
        return (
            BookChange(
                symbol_of(message["ch"]),
                self.exchange,
                is_snapshot,
                to_levels(bids),
                to_levels(asks),
                timestamp,
                local_timestamp,
            ),
        )


KEPT_CHANGES = 20
"""How many changes of a book are kept to be merged into its next snapshot."""
MBP_RULES = JoinRules(overlaps=links, keeps_zero=True, as_sent=True)
"""How changes fit a snapshot."""


class HuobiMbpBookChangeMapper(Mapper):
    """Changes, and the snapshot that was asked for among them: `{"rep": "market.btcusdt.mbp.400", "data": {…}}`.

    No `JoinedBookMapper`: only the last changes are kept, after a snapshot too, and every later snapshot is emitted.
    """

    channels = ("mbp",)
    spelling = MARKET_SPELLING

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # The last changes of each symbol, as messages.
        self._kept: Remembered[str, deque[Json]] = Remembered()
        # Symbols that had a snapshot.
        self._begun: Seen[str] = Seen()

    def accepts(self, message: Json) -> bool:
        return ".mbp." in (message.get("ch") or message.get("rep", ""))

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        if "rep" in message:
            return self._map_snapshot(message, local_timestamp)
        symbol = symbol_of(message["ch"])
        kept = self._kept.get(symbol)
        if kept is None:
            kept = self._kept[symbol] = deque(maxlen=KEPT_CHANGES)
        kept.append(message)
        if symbol not in self._begun:
            return ()
        bids, asks = sides_of(message["tick"])
        if not bids and not asks:
            return ()
        timestamp = timestamp_from_ms(message.get("ts", UNSET))
        return (BookChange(symbol, self.exchange, False, to_levels(bids), to_levels(asks), timestamp, local_timestamp),)

    def _map_snapshot(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        symbol = symbol_of(message["rep"])
        book = message.get("data")
        if book is None:
            return ()
        number = to_number(book.get("seqNum", UNSET))
        changes = [change["tick"] for change in self._kept.get(symbol, ())]
        # A number that is missing orders before nothing: such a change is merged.
        later = [sides_of(tick) for tick in changes if not to_number(tick.get("prevSeqNum", UNSET)) < number]
        bids = to_levels(MBP_RULES.merge(book["bids"], [bids for bids, _ in later]))
        asks = to_levels(MBP_RULES.merge(book["asks"], [asks for _, asks in later]))
        self._begun.add(symbol)
        timestamp = timestamp_from_ms(message.get("ts", UNSET))
        return (BookChange(symbol, self.exchange, True, bids, asks, timestamp, local_timestamp),)


class HuobiBookTickerMapper(Mapper):
    """Spot names prices and sizes, and has a `quoteTime`; elsewhere `bid` and `ask` are levels."""

    channels = ("bbo",)
    spelling = MARKET_SPELLING

    def accepts(self, message: Json) -> bool:
        return message.get("ch", "").endswith(".bbo")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookTicker]:
        tick = message["tick"]
        if "quoteTime" in tick:
            time = tick["quoteTime"]
            if time == 0:
                return ()  # there was no quote yet
            bid, bid_size, ask, ask_size = tick.get("bid"), tick.get("bidSize"), tick.get("ask"), tick.get("askSize")
        else:
            time = tick.get("ts", UNSET)
            bid, bid_size = _level(tick.get("bid"))
            ask, ask_size = _level(tick.get("ask"))
        return (
            BookTicker(
                symbol=symbol_of(message["ch"]),
                exchange=self.exchange,
                ask_amount=nonzero_number(ask_size),
                ask_price=nonzero_number(ask),
                bid_price=nonzero_number(bid),
                bid_amount=nonzero_number(bid_size),
                timestamp=timestamp_from_ms(time),
                local_timestamp=local_timestamp,
            ),
        )


def _level(pair: Any) -> Sequence[Any]:
    """Price and amount; None for what is missing."""
    return [*pair, None, None][:2] if type(pair) is list else (None, None)
