"""BitMEX. https://www.bitmex.com/app/wsAPI

A message names its table and what happened to it: `{"table": "trade", "action": "insert", "data": [...]}`. Order-book updates and
deletes carry a level's id but not its price, so the book mapper remembers prices by id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, BookTicker, DerivativeTicker, Liquidation, Side, Trade
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, in_batches, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import nonzero_number, timestamp_from_text, verbatim
from ._remembered import bound_levels
from ._ticker import TickerMapper

_EXACT = 2**53  # sizes are almost always integers that a double holds


class BitmexTradeMapper(Mapper):
    channels = ("trade",)

    def accepts(self, message: Json) -> bool:
        return message.get("table") == "trade" and message.get("action") == "insert"

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        return [
            Trade(
                trade.get("symbol", UNSET),
                self.exchange,
                trade.get("trdMatchID", UNSET),
                verbatim(trade.get("price", UNSET)),
                verbatim(trade.get("size", UNSET)),
                _side(trade.get("side")) if "side" in trade else "unknown",
                timestamp_from_text(trade.get("timestamp", UNSET)),
                local_timestamp,
            )
            for trade in message["data"]
        ]


def _side(side: str | None) -> Side:
    return "buy" if side == "Buy" else "sell"


class BitmexBookChangeMapper(Mapper):
    channels = ("orderBookL2",)

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # Price of each level by its id: only partials and inserts tell it.
        self._prices: dict[int | None, float] = {}

    def accepts(self, message: Json) -> bool:
        return message.get("table") == "orderBookL2"

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        action, levels = message.get("action"), message["data"]
        if action != "partial":
            return self._change(levels[0].get("symbol"), levels, action, local_timestamp)
        # Only a partial may hold several symbols; an empty one still says that the book is empty.
        if not levels and "symbol" in message.get("filter", ()):
            return [BookChange(message["filter"]["symbol"], self.exchange, True, [], [], local_timestamp, local_timestamp)]
        by_symbol: dict[str, list[Json]] = {}
        for level in levels:
            by_symbol.setdefault(level.get("symbol"), []).append(level)
        return [
            change
            for symbol, its_levels in by_symbol.items()
            for change in self._change(symbol, its_levels, action, local_timestamp)
        ]

    def _change(self, symbol: str, levels: Sequence[Json], action: str, local_timestamp: str) -> Sequence[BookChange]:
        prices = self._prices
        bids: list[BookLevel] = []
        asks: list[BookLevel] = []
        latest: str | None = None
        for level in levels:
            timestamp = level.get("timestamp")
            if latest is None or (timestamp is not None and timestamp > latest):
                latest = timestamp
            level_id = level.get("id")
            if "price" in level:
                prices[level_id] = price = verbatim(level["price"])
            else:
                price = prices.get(level_id, UNSET)
                if price is UNSET:
                    continue  # an update that came before the partial
            size = level.get("size")
            if type(size) is not int or size >= _EXACT:
                size = verbatim(size) or 0
            (bids if level.get("side") == "Buy" else asks).append(BookLevel(price, size))
            if action == "delete":
                del prices[level_id]
        if action != "update":
            bound_levels(prices)
        if not (bids or asks or action == "partial"):
            return ()
        at = local_timestamp if latest is None else timestamp_from_text(latest)
        return (BookChange(symbol, self.exchange, action == "partial", bids, asks, at, local_timestamp),)


class BitmexDerivativeTickerMapper(TickerMapper):
    channels = ("instrument",)

    def accepts(self, message: Json) -> bool:
        return message.get("table") == "instrument"

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        for instrument in message["data"]:
            symbol = instrument.get("symbol")
            # Updates only make sense after their partial, and settled or unlisted instruments have no market.
            if not (message.get("action") == "partial" or symbol in self.tickers):
                continue
            if instrument.get("state", "Open") not in ("Open", "Closed"):
                continue
            ticker = self.tickers[symbol]
            ticker.update_funding_rate(verbatim(instrument.get("fundingRate")))
            ticker.update_predicted_funding_rate(verbatim(instrument.get("indicativeFundingRate")))
            if instrument.get("fundingTimestamp"):
                ticker.update_funding_timestamp(timestamp_from_text(instrument["fundingTimestamp"]))
            ticker.update_index_price(verbatim(instrument.get("indicativeSettlePrice")))
            ticker.update_mark_price(verbatim(instrument.get("markPrice")))
            ticker.update_open_interest(verbatim(instrument.get("openInterest")))
            ticker.update_last_price(verbatim(instrument.get("lastPrice")))
            if "timestamp" in instrument:
                ticker.update_timestamp(timestamp_from_text(instrument["timestamp"]))
            if ticker.has_changed:
                yield ticker.to_message(local_timestamp)


class BitmexLiquidationMapper(Mapper):
    channels = ("liquidation",)

    def accepts(self, message: Json) -> bool:
        return message.get("table") == "liquidation" and message.get("action") == "insert"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        for liquidation in message["data"]:
            yield Liquidation(
                liquidation.get("symbol", UNSET),
                self.exchange,
                liquidation.get("orderID", UNSET),
                verbatim(liquidation.get("price", UNSET)),
                verbatim(liquidation.get("leavesQty", UNSET)),
                _side(liquidation.get("side")),
                local_timestamp,
                local_timestamp,
            )


class BitmexBookTickerMapper(Mapper):
    channels = ("quote",)

    def accepts(self, message: Json) -> bool:
        return message.get("table") == "quote" and message.get("action") == "insert"

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        for quote in message["data"]:
            yield BookTicker(
                symbol=quote.get("symbol", UNSET),
                exchange=self.exchange,
                ask_amount=nonzero_number(quote.get("askSize")),
                ask_price=nonzero_number(quote.get("askPrice")),
                bid_price=nonzero_number(quote.get("bidPrice")),
                bid_amount=nonzero_number(quote.get("bidSize")),
                timestamp=timestamp_from_text(quote.get("timestamp", UNSET)),
                local_timestamp=local_timestamp,
            )


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"op": "subscribe", "args": ["trade:XBTUSD", "instrument"]}`; one argument may stand without its list."""
    if message.get("op") != "subscribe":
        return None
    args = message.get("args", ())
    filters = []
    for arg in [args] if isinstance(args, str) else args:
        channel, _, symbol = arg.partition(":")
        filters.append(Filter(channel, [symbol]) if symbol else Filter(channel))
    return filters


class BitmexFeed(Feed):
    """Answers `{"subscribe": …, "success": true}` or `{"status": 400, "error": …}`; a table begins with its `partial`."""

    needs_symbols = False

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/realtime")

    def subscribe(self, now_us: int) -> list[str]:
        args = [
            arg
            for item in self.filters
            for arg in ([f"{item.channel}:{symbol}" for symbol in item.symbols] if item.symbols else [item.channel])
        ]
        return [to_frame({"op": "subscribe", "args": some}) for some in in_batches(args, 10)]

    def classify(self, message: Json) -> Heard:
        table = message.get("table")
        if table == "orderBookL2":
            # Changes have no numbers. Only a partial may be of several books.
            return _partials(message) if message["action"] == "partial" else BookStep(message["data"][0]["symbol"], False)
        if table is not None:
            return FrameKind.DATA
        return FrameKind.ERROR if "error" in message or message.get("success") is False else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        details = f"{message.get('status', '')} {message.get('error', 'a subscription was refused')}".strip()
        return FeedError(kind_of_error(details), details)


def _partials(message: Json) -> list[BookStep]:
    symbols = {level["symbol"] for level in message["data"]}
    if "symbol" in message.get("filter", ()):  # the book may be empty
        symbols.add(message["filter"]["symbol"])
    return [BookStep(symbol, is_snapshot=True) for symbol in symbols]


EXCHANGES = (
    Exchange(
        name="bitmex",
        docs="https://www.bitmex.com/app/wsAPI",
        channels=(
            "trade",
            "orderBookL2",
            "liquidation",
            "connected",
            "announcement",
            "chat",
            "publicNotifications",
            "instrument",
            "settlement",
            "funding",
            "insurance",
            "orderBookL2_25",
            "orderBook10",
            "quote",
            "quoteBin1m",
            "quoteBin5m",
            "quoteBin1h",
            "quoteBin1d",
            "tradeBin1m",
            "tradeBin5m",
            "tradeBin1h",
            "tradeBin1d",
        ),
        mappers={
            "trade": (Version(BitmexTradeMapper),),
            "book_change": (Version(BitmexBookChangeMapper),),
            "derivative_ticker": (Version(BitmexDerivativeTickerMapper),),
            "liquidation": (Version(BitmexLiquidationMapper),),
            "book_ticker": (Version(BitmexBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(BitmexFeed, "wss://ws.bitmex.com"),
    ),
)

ABOUT = {
    "bitmex": About("all levels", "Changes of a book carry a level's id and not its price."),
}
