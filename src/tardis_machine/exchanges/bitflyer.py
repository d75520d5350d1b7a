"""bitFlyer Lightning. https://lightning.bitflyer.com/docs?lang=en#realtime-api

A message is a call that names channel and symbol in one: `{"jsonrpc": "2.0", "method": "channelMessage", "params": {"channel":
"lightning_executions_FX_BTC_JPY", "message": [{"id": 1246449270, "side": "BUY", "price": 1046399.0, "size": 0.01, …}]}}`. Numbers are
JSON numbers, and symbols have underscores of their own. Times are text of seven fraction digits; books have none.

A book has its snapshots and its changes in two channels. Nothing numbers them: a change before the first snapshot is of no use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, Side, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Credentials, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import text_of, timestamp_from_text, verbatim
from ._remembered import Seen

_TRADES = "lightning_executions"
_SNAPSHOTS = "lightning_board_snapshot"
_CHANGES = "lightning_board"  # all names of snapshots begin with it, so those are looked for first
_TICKERS = "lightning_ticker"
_CHANNELS = (_TRADES, _SNAPSHOTS, _CHANGES, _TICKERS)


@lru_cache(maxsize=4096)
def _symbol(channel: str, name: str) -> str:
    return channel.replace(f"{name}_", "", 1)


def _time(row: Json, name: str) -> str | None:
    """With microseconds. What has no time can't be normalized."""
    text = row[name]
    if text is None:
        raise ValueError(f"{name} is null")
    return timestamp_from_text(text, micros=True)


class BitflyerTradeMapper(Mapper):
    channels = (_TRADES,)

    def accepts(self, message: Json) -> bool:
        return bool(message["params"]["channel"].startswith(_TRADES))

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        params = message["params"]
        symbol = _symbol(params["channel"], _TRADES)
        for execution in params["message"]:
            yield Trade(
                symbol,
                self.exchange,
                text_of(execution.get("id", UNSET)),
                verbatim(execution.get("price", UNSET)),
                verbatim(execution.get("size", UNSET)),
                _side(execution.get("side")),
                _time(execution, "exec_date"),
                local_timestamp,
            )


def _side(side: Json) -> Side:
    """An auction has none."""
    return "buy" if side == "BUY" else "sell" if side == "SELL" else "unknown"


class BitflyerBookChangeMapper(Mapper):
    channels = (_SNAPSHOTS, _CHANGES)

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # Symbols whose snapshot came.
        self._begun: Seen[str] = Seen()

    def accepts(self, message: Json) -> bool:
        return bool(message["params"]["channel"].startswith(_CHANGES))

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        params = message["params"]
        channel = params["channel"]
        is_snapshot = channel.startswith("lightning_board_snapshot_")
        symbol = _symbol(channel, _SNAPSHOTS if is_snapshot else _CHANGES)
        if is_snapshot:
            self._begun.add(symbol)
        elif symbol not in self._begun:
            return ()
        book = params["message"]
        bids, asks = _levels(book["bids"]), _levels(book["asks"])
        return (BookChange(symbol, self.exchange, is_snapshot, bids, asks, local_timestamp, local_timestamp),)


def _levels(rows: Sequence[Json]) -> list[BookLevel]:
    return [BookLevel(verbatim(row.get("price", UNSET)), verbatim(row.get("size", UNSET))) for row in rows]


class BitflyerBookTickerMapper(Mapper):
    channels = (_TICKERS,)

    def accepts(self, message: Json) -> bool:
        return bool(message["params"]["channel"].startswith(_TICKERS))

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        params = message["params"]
        ticker = params["message"]
        return [
            BookTicker(
                symbol=_symbol(params["channel"], _TICKERS),
                exchange=self.exchange,
                ask_amount=verbatim(ticker.get("best_ask_size", UNSET)),
                ask_price=verbatim(ticker.get("best_ask", UNSET)),
                bid_price=verbatim(ticker.get("best_bid", UNSET)),
                bid_amount=verbatim(ticker.get("best_bid_size", UNSET)),
                timestamp=_time(ticker, "timestamp"),
                local_timestamp=local_timestamp,
            )
        ]


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"jsonrpc": "2.0", "method": "subscribe", "params": {"channel": "lightning_board_FX_BTC_JPY"}}`."""
    if message.get("method") != "subscribe":
        return None
    asked = text_of((message.get("params") or {}).get("channel"))
    for channel in _CHANNELS:
        if asked.startswith(channel):
            return [Filter(channel, [asked[len(channel) + 1 :]])]
    return []  # orders of accounts were not recorded


class BitflyerFeed(Feed):
    """Answers nothing to calls without an `id`; what is no `channelMessage` is an error.

    The venue sends a book's snapshot again and again. The first is what changes build on. The second is not delivered, as it may be older
    than changes that came before it, and its channel is left.
    """

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        # Channels of snapshots that were asked for, and those that brought one.
        self._asked: set[str] = set()
        self._begun: Seen[str] = Seen()

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/json-rpc")

    def subscribe(self, now_us: int) -> list[str]:
        channels = [f"{item.channel}_{symbol}" for item in self.filters for symbol in dict.fromkeys(self.symbols(item))]
        self._asked.update(channel for channel in channels if channel.startswith(_SNAPSHOTS))
        return [_call("subscribe", channel) for channel in channels]

    def classify(self, message: Json) -> Heard:
        if message.get("method") != "channelMessage":
            return FrameKind.ERROR
        channel = message["params"]["channel"]
        if not channel.startswith(_CHANGES):
            return FrameKind.DATA
        if channel.startswith(_SNAPSHOTS):
            if channel in self._begun:
                return FrameKind.ANSWER
            self._begun.add(channel)
            return BookStep(channel, is_snapshot=True)
        book = f"{_SNAPSHOTS}_{_symbol(channel, _CHANGES)}"
        # Changes whose snapshot nobody asked for wait for none.
        return BookStep(book, is_snapshot=False) if book in self._asked else FrameKind.DATA

    def reply(self, message: Json, now_us: int) -> list[str]:
        channel = message["params"]["channel"]
        return [_call("unsubscribe", channel)] if channel in self._begun else []

    def error(self, message: Json) -> FeedError:
        """`{"jsonrpc": "2.0", "error": {"code": -32602, "message": "Invalid params", "data": "…"}}`."""
        error = message.get("error")
        if isinstance(error, dict):
            error = " ".join(text_of(error[name]) for name in ("code", "message", "data") if error.get(name))
        details = text_of(error or "an error without details")
        return FeedError(kind_of_error(details), details)


def _call(method: str, channel: str) -> str:
    return to_frame({"method": method, "params": {"channel": channel}})


EXCHANGES = (
    Exchange(
        name="bitflyer",
        docs="https://lightning.bitflyer.com/docs?lang=en#realtime-api",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(BitflyerTradeMapper),),
            "book_change": (Version(BitflyerBookChangeMapper),),
            "book_ticker": (Version(BitflyerBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(BitflyerFeed, "wss://ws.lightstream.bitflyer.com"),
    ),
)

ABOUT = {
    "bitflyer": About(
        "what the venue sends: snapshot and changes", "Books have no time and nothing that numbers them; an auction has no side."
    ),
}
