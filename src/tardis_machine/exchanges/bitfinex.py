"""Bitfinex: spot and derivatives. https://docs.bitfinex.com/docs/ws-general

A message is an array: `[channel id, payload, sequence number, time]`. Which channel and symbol an id is of, the answer to its subscription
says, `{"event": "subscribed", "channel": "trades", "chanId": 89, "pair": "BTCUSD"}`; newer recordings have both appended to each message.
Numbers are numbers, times milliseconds; a negative amount is one that was sold, or an ask.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, DerivativeTicker, Liquidation, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Credentials, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import text_of, timestamp_from_ms, to_number, verbatim
from ._remembered import Remembered
from ._spelling import NO_SYMBOLS
from ._ticker import TickerMapper


class BitfinexMapper(Mapper):
    """What these mappers share: one channel, whose ids are noted as subscriptions are answered."""

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self.channel = self.channels[0]
        # By channel id.
        self._symbols: Remembered[Any, str] = Remembered()

    def accepts(self, message: Json) -> bool:
        if type(message) is list:
            appended = message[-2] if len(message) > 1 else None
            if type(appended) is str:
                return appended == self.channel
            return len(message) > 0 and type(message[0]) is not list and message[0] in self._symbols
        if message.get("event") == "subscribed":
            symbol = self.symbol_of(message)
            if symbol is not None:
                self._symbols[message.get("chanId", UNSET)] = symbol
        return False

    @abstractmethod
    def symbol_of(self, answer: Json) -> str | None:
        """Of a subscription to this channel; None where it is of another."""

    def symbol(self, message: Json) -> str:
        """Of a message that was accepted."""
        last = message[-1]
        return last if type(last) is str else self._symbols[message[0]]


def _pair_of(answer: Json, channel: str) -> str | None:
    pair: str | None = answer.get("pair")
    return pair if answer.get("channel") == channel else None


def _at(row: Sequence[Any], place: int) -> Any:
    return row[place] if place < len(row) else UNSET


def _size(amount: Any) -> float:
    number = to_number(amount)
    return verbatim(-number) if number < 0 else number


class BitfinexTradeMapper(BitfinexMapper):
    channels = ("trades",)

    def symbol_of(self, answer: Json) -> str | None:
        return _pair_of(answer, "trades")

    def map(self, message: Json, local_timestamp: str) -> Sequence[Trade]:
        # Trades come twice, as executed (te) and as booked (tu), after a snapshot of those of the past.
        if _at(message, 1) != "te":
            return ()
        trade = message[2]
        amount = _at(trade, 2)
        return (
            Trade(
                self.symbol(message),
                self.exchange,
                text_of(_at(trade, 0)),
                verbatim(_at(trade, 3)),
                _size(amount),
                "sell" if to_number(amount) < 0 else "buy",
                timestamp_from_ms(_at(trade, 1)),
                local_timestamp,
            ),
        )


class BitfinexBookChangeMapper(BitfinexMapper):
    channels = ("book",)

    def symbol_of(self, answer: Json) -> str | None:
        return _pair_of(answer, "book") if answer.get("prec") == "P0" else None

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        payload = message[1]
        if payload == "hb":
            return ()
        is_snapshot = len(payload) > 0 and type(payload[0]) is list
        bids: list[BookLevel] = []
        asks: list[BookLevel] = []
        for level in payload if is_snapshot else (payload,):
            amount = to_number(_at(level, 2))
            if amount < 0 or amount > 0:
                # A level without orders is gone.
                size = verbatim(abs(amount)) if level[1] != 0 or level[1] is False else 0
                (bids if amount > 0 else asks).append(BookLevel(verbatim(level[0]), size))
        timestamp = timestamp_from_ms(_at(message, 3))
        return (BookChange(self.symbol(message), self.exchange, is_snapshot, bids, asks, timestamp, local_timestamp),)


class BitfinexDerivativeTickerMapper(BitfinexMapper, TickerMapper):
    channels = ("status",)

    def symbol_of(self, answer: Json) -> str | None:
        key = answer.get("key") or ""
        is_derivative = answer.get("channel") == "status" and key.startswith("deriv:")
        return key.replace("deriv:t", "", 1) if is_derivative else None

    def map(self, message: Json, local_timestamp: str) -> list[DerivativeTicker]:
        status = message[1]
        if status == "hb":
            return []
        ticker = self.tickers[self.symbol(message)]
        ticker.update_funding_rate(verbatim(_at(status, 11)))
        if len(status) > 7:
            ticker.update_funding_timestamp(timestamp_from_ms(status[7]))
        ticker.update_predicted_funding_rate(verbatim(_at(status, 8)))
        ticker.update_index_price(verbatim(_at(status, 3)))
        ticker.update_last_price(verbatim(_at(status, 2)))
        ticker.update_mark_price(verbatim(_at(status, 14)))
        ticker.update_open_interest(verbatim(_at(status, 17)))
        ticker.update_timestamp(timestamp_from_ms(_at(message, 3)))
        return [ticker.to_message(local_timestamp)] if ticker.has_changed else []


class BitfinexLiquidationMapper(BitfinexMapper):
    """One channel for all symbols. A liquidation is told when it begins, and again with each order that matches it."""

    channels = ("liquidations",)
    spelling = NO_SYMBOLS

    def symbol_of(self, answer: Json) -> str | None:
        return "global" if answer.get("channel") == "status" and answer.get("key") == "liq:global" else None

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        rows = _at(message, 1)
        if rows is UNSET or rows == "hb" or not rows:
            return
        for row in rows:
            is_match = _at(row, 8)
            if is_match != 0 or is_match is False:
                continue
            yield Liquidation(
                row[4].replace("t", "", 1),
                self.exchange,
                text_of(row[1]),
                verbatim(row[6]),
                _size(row[5]),
                # The amount is that of the position: a short one was bought.
                "buy" if to_number(row[5]) < 0 else "sell",
                timestamp_from_ms(row[2]),
                local_timestamp,
            )


# Longer ones are of funding.
_TICKER_LENGTH = 11


class BitfinexBookTickerMapper(BitfinexMapper):
    channels = ("ticker",)

    def symbol_of(self, answer: Json) -> str | None:
        return _pair_of(answer, "ticker")

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        ticker = message[1]
        if ticker == "hb" or len(ticker) > _TICKER_LENGTH:
            return []
        return [
            BookTicker(
                symbol=self.symbol(message),
                exchange=self.exchange,
                ask_amount=verbatim(_at(ticker, 3)),
                ask_price=verbatim(_at(ticker, 2)),
                bid_price=verbatim(_at(ticker, 0)),
                bid_amount=verbatim(_at(ticker, 1)),
                timestamp=timestamp_from_ms(_at(message, 3)),
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"event": "subscribe", "channel": "trades", "symbol": "tBTCUSD"}`: as in the reference, any event asks for all channels."""
    return [] if "event" in message else None


# Every message has a time, and a number: 32768 and 65536.
_CONFIGURATION = {"event": "conf", "flags": 98304}
# It is about to restart, or was in maintenance and asks to subscribe anew.
_RECONNECT = (20051, 20061)


class BitfinexFeed(Feed):
    """The answers to subscriptions are data, as mappers need them. Sequence numbers count the arrays of a connection, heartbeats too."""

    max_subscriptions = 25

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self._has_begun = False

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/ws/2")

    def subscribe(self, now_us: int) -> list[str]:
        asked = [
            {"event": "subscribe"} | _subscription(item.channel, symbol)
            for item in self.filters
            for symbol in ([""] if item.channel == "liquidations" else dict.fromkeys(self.symbols(item)))
        ]
        return [to_frame(_CONFIGURATION), *map(to_frame, asked)]

    def classify(self, message: Json) -> Heard:
        if type(message) is not list:
            event = message.get("event")
            if event == "subscribed":
                return FrameKind.DATA
            return FrameKind.ERROR if event == "error" or message.get("code") in _RECONNECT else FrameKind.ANSWER
        number = message[-2]
        step = BookStep("sequence", not self._has_begun, number, number - 1)
        self._has_begun = True
        if message[1] != "hb":
            return step
        return FrameKind.HEARTBEAT if self.books.take(step) is FrameKind.DATA else FrameKind.GAP

    def error(self, message: Json) -> FeedError:
        details = f"{message.get('code', '')} {message.get('msg', '')}".strip()
        return FeedError(kind_of_error(details), details, is_final=message.get("code") in _RECONNECT)


def _subscription(channel: str, symbol: str) -> dict[str, Any]:
    if channel == "liquidations":
        return {"channel": "status", "key": "liq:global"}
    if channel == "status":
        return {"channel": channel, "key": f"deriv:t{symbol}"}
    if channel == "book":
        return {"channel": channel, "len": 100, "prec": "P0", "freq": "F0", "symbol": f"t{symbol}"}
    return {"channel": channel, "symbol": f"t{symbol}"}


_DOCS = "https://docs.bitfinex.com/docs/ws-general"
_LIVE = LiveApi(BitfinexFeed, "wss://api-pub.bitfinex.com")

EXCHANGES = (
    Exchange(
        name="bitfinex",
        docs=_DOCS,
        channels=("trades", "book", "raw_book", "ticker"),
        mappers={
            "trade": (Version(BitfinexTradeMapper),),
            "book_change": (Version(BitfinexBookChangeMapper),),
            "book_ticker": (Version(BitfinexBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=_LIVE,
        subscribes_to_all=True,
    ),
    Exchange(
        name="bitfinex-derivatives",
        docs=_DOCS,
        channels=("trades", "book", "raw_book", "status", "liquidations", "ticker"),
        mappers={
            "trade": (Version(BitfinexTradeMapper),),
            "book_change": (Version(BitfinexBookChangeMapper),),
            "derivative_ticker": (Version(BitfinexDerivativeTickerMapper),),
            "liquidation": (Version(BitfinexLiquidationMapper),),
            "book_ticker": (Version(BitfinexBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=_LIVE,
        subscribes_to_all=True,
    ),
)

ABOUT = {
    "bitfinex": About("100 levels a side", "Messages are arrays whose channel and symbol the answer to a subscription tells."),
    "bitfinex-derivatives": About(
        "100 levels a side", "As bitfinex; liquidations come for all symbols, and their side is turned round."
    ),
}
