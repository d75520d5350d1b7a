"""The API in force since 2021-12-23, at OKCoin since 2023-04-27. https://www.okx.com/docs-v5/en/

A message says what its data is of: `{"arg": {"channel": "trades", "instId": "BTC-USDT"}, "data": [...]}`. All numbers are text,
times are milliseconds as text; a time of 0 is none. An answer to a subscription has an `event`, and no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, cast

from ...messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, OptionSummary, Trade
from .._mapper import Json, Mapper
from .._parsing import levels, nonzero_number, timestamp_from_ms, to_number
from .._remembered import Remembered
from .._spelling import Spelling
from .._ticker import PendingTicker, TickerMapper
from .instrument import family_of, index_of, option_terms, spell_instrument
from .rows import EPOCH, GREEKS, numbers_of

_BEST = {"bid_price": "bidPx", "bid_amount": "bidSz", "ask_price": "askPx", "ask_amount": "askSz"}
_TICKER = {**{f"best_{ours}": theirs for ours, theirs in _BEST.items()}, "last_price": "last"}
_SUMMARY = {"best_bid_iv": "bidVol", "best_ask_iv": "askVol", "mark_iv": "markVol", **GREEKS}


def timestamp_of(data: Json, name: str = "ts") -> str | None:
    """A time of the data; None for what is no date."""
    return timestamp_from_ms(to_number(data.get(name, UNSET)))


class OkexV5Mapper(Mapper):
    """What these mappers share: the argument says which channel a message is of."""

    def accepts(self, message: Json) -> bool:
        arg = message.get("arg")
        return arg is not None and arg.get("channel") in self.channels and "event" not in message


class OkexV5TradeMapper(OkexV5Mapper):
    """One message for all trades of an order at one price."""

    channels = ("trades",)
    # Either may be in a recording; which one is asked for is a matter of the date.
    reads: ClassVar[tuple[str, ...]] = ("trades-all", "trades")
    symbol_field: ClassVar[str] = "instId"

    def accepts(self, message: Json) -> bool:
        arg = message.get("arg")
        return arg is not None and arg.get("channel") in self.reads and "event" not in message

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        symbol_field = self.symbol_field
        return [
            Trade(
                trade.get(symbol_field, UNSET),
                self.exchange,
                trade.get("tradeId", UNSET),
                to_number(trade.get("px", UNSET)),
                to_number(trade.get("sz", UNSET)),
                "buy" if trade.get("side") == "buy" else "sell",
                timestamp_of(trade),
                local_timestamp,
            )
            for trade in message["data"]
        ]


class OkexV5AllTradesMapper(OkexV5TradeMapper):
    """Every trade."""

    channels = ("trades-all",)


class OkexV5BookChangeMapper(OkexV5Mapper):
    """Every change of the book."""

    channels = ("books-l2-tbt",)

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        symbol, action = message["arg"].get("instId", UNSET), message.get("action")
        changes: list[BookChange] = []
        for book in message["data"]:
            bids, asks = levels(book["bids"]), levels(book["asks"])
            timestamp = timestamp_of(book)
            if (bids or asks or action != "update") and timestamp != EPOCH:
                changes.append(BookChange(symbol, self.exchange, action == "snapshot", bids, asks, timestamp, local_timestamp))
        return changes


class OkexV5PublicBookChangeMapper(OkexV5BookChangeMapper):
    """The book ten times a second, which needs no account; live, a better one where the account may hear it."""

    channels = ("books",)
    live_channels: ClassVar[tuple[str, ...]] = ("books", "books50-l2-tbt", "books-l2-tbt")

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        self._reads = self.live_channels if realtime else self.channels

    def accepts(self, message: Json) -> bool:
        arg = message.get("arg")
        return arg is not None and arg.get("channel") in self._reads and "event" not in message


_PRICES: dict[str, tuple[str, Callable[[PendingTicker, Any], None]]] = {
    "tickers": ("last", PendingTicker.update_last_price),
    "mark-price": ("markPx", PendingTicker.update_mark_price),
    "open-interest": ("oi", PendingTicker.update_open_interest),
}


def _spell_index(symbol: str) -> str:
    return index_of(spell_instrument(symbol))


class OkexV5DerivativeTickerMapper(OkexV5Mapper, TickerMapper):
    channels = ("tickers", "open-interest", "mark-price", "index-tickers", "funding-rate")
    spellings: ClassVar = {"index-tickers": Spelling(_spell_index)}

    def index_of(self, instrument: str) -> str:
        """The index that an instrument follows."""
        return index_of(instrument)

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        channel = message["arg"]["channel"]
        if channel == "index-tickers":
            for index in message["data"]:
                price = to_number(index.get("idxPx", UNSET))
                if price > 0:
                    self.index_prices[index.get("instId", UNSET)] = price
            return
        for data in message["data"]:
            symbol = data["instId"]
            ticker = self.tickers[symbol]
            ticker.update_index_price(self.index_prices.get(self.index_of(symbol)))
            if channel == "funding-rate":
                _update_funding(ticker, data)
            else:
                field, update = _PRICES[channel]
                value = to_number(data.get(field, UNSET))
                if value > 0:
                    update(ticker, value)
                    ticker.update_timestamp(timestamp_of(data))
            if ticker.has_changed:
                yield ticker.to_message(local_timestamp)


def _update_funding(ticker: PendingTicker, data: Json) -> None:
    if "fundingRate" in data:
        ticker.update_funding_rate(to_number(data["fundingRate"]))
    if "fundingTime" in data:
        ticker.update_funding_timestamp(timestamp_of(data, "fundingTime"))
    if data.get("nextFundingRate", "") != "":
        ticker.update_predicted_funding_rate(to_number(data["nextFundingRate"]))
    if "ts" in data:
        ticker.update_timestamp(timestamp_of(data))


def _usd_index_of(instrument: str) -> str:
    index = index_of(instrument)
    return f"{index[:-5]}-USD" if index.endswith("-USDC") else index


def _spell_usd_index(symbol: str) -> str:
    return _usd_index_of(spell_instrument(symbol))


class OkexV5UsdIndexTickerMapper(OkexV5DerivativeTickerMapper):
    """Until 2023-04-10 08:40 contracts in USDC followed the index in USD."""

    spellings: ClassVar = {"index-tickers": Spelling(_spell_usd_index)}

    def index_of(self, instrument: str) -> str:
        return _usd_index_of(instrument)


class OkexV5LiquidationMapper(OkexV5Mapper):
    """`liquidations` were fetched by the recorder, `liquidation-orders` are sent, of a whole market, and begin with old ones."""

    channels = ("liquidations", "liquidation-orders")

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # Whether the message was seen that says what happened before the subscription.
        self._has_begun = False

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        arg, data = message["arg"], message["data"]
        if arg["channel"] == "liquidations":
            for liquidation in data:
                yield self._liquidation(arg.get("instId", UNSET), liquidation, local_timestamp)
        elif self._has_begun:
            for order in data:
                for detail in order["details"]:
                    yield self._liquidation(order.get("instId", UNSET), detail, local_timestamp)
        else:
            self._has_begun = True

    def _liquidation(self, symbol: str, data: Json, local_timestamp: str) -> Liquidation:
        return Liquidation(
            symbol,
            self.exchange,
            UNSET,
            to_number(data.get("bkPx", UNSET)),
            to_number(data.get("sz", UNSET)),
            "buy" if data.get("side") == "buy" else "sell",
            timestamp_of(data),
            local_timestamp,
        )


def _spell_family(symbol: str) -> str:
    return family_of(spell_instrument(symbol))


class OkexV5OptionSummaryMapper(OkexV5Mapper):
    """A summary has the greeks; prices are of tickers, marks, open interest and the index before it."""

    channels = ("opt-summary", "index-tickers", "tickers", "open-interest", "mark-price")
    spellings: ClassVar = {
        "opt-summary": Spelling(_spell_family, unique=True),
        "index-tickers": Spelling(_spell_index, unique=True),
    }

    def __init__(self, exchange: str, realtime: bool = False) -> None:
        super().__init__(exchange, realtime)
        # What each channel said last, by instrument or index.
        self._index_prices: Remembered[str, float] = Remembered()
        self._open_interests: Remembered[str, float] = Remembered()
        self._mark_prices: Remembered[str, float] = Remembered()
        self._tickers: Remembered[str, Json] = Remembered()

    def map(self, message: Json, local_timestamp: str) -> Iterator[OptionSummary]:
        channel, data = message["arg"]["channel"], message["data"]
        if channel == "opt-summary":
            for option in data:
                yield self._summary(option, local_timestamp)
        elif channel == "tickers":
            for ticker in data:
                self._tickers[ticker.get("instId", UNSET)] = ticker
        elif channel == "index-tickers":
            _remember(self._index_prices, data, "idxPx")
        elif channel == "open-interest":
            _remember(self._open_interests, data, "oi")
        else:
            _remember(self._mark_prices, data, "markPx")

    def _summary(self, option: Json, local_timestamp: str) -> OptionSummary:
        name, underlying = option["instId"], option.get("uly", UNSET)
        kind, strike, expiration = option_terms(name)
        ticker = self._tickers.get(name, {})
        return OptionSummary(
            symbol=name,
            exchange=self.exchange,
            option_type=kind,
            strike_price=strike,
            expiration_date=expiration,
            **numbers_of(ticker, _TICKER),
            **numbers_of(option, _SUMMARY),
            open_interest=self._open_interests.get(name, UNSET),
            mark_price=self._mark_prices.get(name, UNSET),
            rho=UNSET,
            underlying_price=self._index_prices.get(underlying, UNSET),
            underlying_index=underlying,
            timestamp=timestamp_of(option),
            local_timestamp=local_timestamp,
        )


def _remember(known: dict[str, float], data: Sequence[Json], field: str) -> None:
    for row in data:
        value = nonzero_number(row.get(field))
        if value is not UNSET:
            known[row.get("instId", UNSET)] = value


class OkexV5BookTickerMapper(OkexV5Mapper):
    channels = ("tickers",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        for ticker in message["data"]:
            yield BookTicker(
                symbol=ticker.get("instId", UNSET),
                exchange=self.exchange,
                **numbers_of(ticker, _BEST),
                timestamp=timestamp_of(ticker),
                local_timestamp=local_timestamp,
            )


class OkexV5BestMapper(OkexV5Mapper):
    """Every change of the best bid and ask, as a book of one level."""

    channels = ("bbo-tbt",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[BookTicker]:
        symbol = message["arg"].get("instId", UNSET)
        for book in message.get("data") or ():
            yield to_book_ticker(symbol, self.exchange, book, timestamp_of(book), local_timestamp)


def to_book_ticker(symbol: str, exchange: str, book: Json, timestamp: str | None, local_timestamp: str) -> BookTicker:
    """The best bid and ask of a book; an empty side has none."""
    ask_price = ask_amount = bid_price = bid_amount = cast(Any, UNSET)
    bids, asks = book.get("bids"), book.get("asks")
    if bids and bids[0]:
        bid_price, bid_amount = to_number(bids[0][0]), to_number(bids[0][1])
    if asks and asks[0]:
        ask_price, ask_amount = to_number(asks[0][0]), to_number(asks[0][1])
    return BookTicker(
        symbol=symbol,
        exchange=exchange,
        ask_amount=ask_amount,
        ask_price=ask_price,
        bid_price=bid_price,
        bid_amount=bid_amount,
        timestamp=timestamp,
        local_timestamp=local_timestamp,
    )
