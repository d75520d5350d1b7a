"""Deribit. https://docs.deribit.com/#subscriptions

A message names its channel: `{"params": {"channel": "book.BTC-PERPETUAL.raw", "data": {...}}}`. Numbers are numbers, times
milliseconds. One ticker serves futures and options: only options have greeks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..filters import Filter
from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, Liquidation, OptionSummary, Trade
from ._exchange import About, Exchange, Version
from ._feed import (
    BookStep,
    Credentials,
    Feed,
    FeedError,
    FrameKind,
    Handshake,
    Heard,
    LiveApi,
    in_batches,
    kind_of_error,
    to_frame,
)
from ._mapper import Json, Mapper
from ._parsing import levels_as_sent, nonzero_number, timestamp_from_expiration, timestamp_from_ms, to_number, verbatim
from ._spelling import Spelling
from ._ticker import TickerMapper


def spell_instrument(symbol: str) -> str:
    """In upper case, but for the decimal point of a strike, which is a small d: MATIC_USDC-9MAR24-1d02-C."""
    parts = symbol.split("-")
    if symbol.endswith(("-C", "-P")) and len(parts) > 2 and "D" in parts[2].upper():
        parts[2] = parts[2].replace("D", "d", 1)
        return "-".join(parts)
    return symbol.upper()


class DeribitMapper(Mapper):
    """What all of Deribit's mappers share: channels by the start of their name, and how symbols are spelled."""

    spelling = Spelling(spell_instrument)

    def accepts(self, message: Json) -> bool:
        # All but a few have both, and looking for them first takes twice as long.
        try:
            return bool(message["params"]["channel"].startswith(self.channels))
        except (KeyError, TypeError, AttributeError):
            return False


class DeribitTradeMapper(DeribitMapper):
    channels = ("trades",)

    def map(self, message: Json, local_timestamp: str) -> list[Trade]:
        return [
            Trade(
                trade["instrument_name"].upper(),
                self.exchange,
                trade.get("trade_id", UNSET),
                verbatim(trade.get("price", UNSET)),
                verbatim(trade.get("amount", UNSET)),
                trade.get("direction", UNSET),
                timestamp_from_ms(trade.get("timestamp", UNSET)),
                local_timestamp,
            )
            for trade in message["params"]["data"]
        ]


class DeribitBookChangeMapper(DeribitMapper):
    channels = ("book",)

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        book = message["params"]["data"]
        # Older snapshots have no type; they follow no change.
        is_snapshot = book.get("type") == "snapshot" or book.get("prev_change_id", 0) == 0
        return (
            BookChange(
                book["instrument_name"].upper(),
                self.exchange,
                is_snapshot,
                levels_as_sent(book["bids"], 1, "delete"),
                levels_as_sent(book["asks"], 1, "delete"),
                timestamp_from_ms(book.get("timestamp", UNSET)),
                local_timestamp,
            ),
        )


class DeribitDerivativeTickerMapper(DeribitMapper, TickerMapper):
    channels = ("ticker",)

    def accepts(self, message: Json) -> bool:
        if not super().accepts(message):
            return False
        data = message["params"]["data"]
        return "greeks" not in data or data.get("combo_state") == "active"

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        data = message["params"]["data"]
        ticker = self.tickers[data["instrument_name"]]
        ticker.update_funding_rate(verbatim(data.get("current_funding")))
        ticker.update_index_price(verbatim(data.get("index_price")))
        ticker.update_mark_price(verbatim(data.get("mark_price")))
        ticker.update_open_interest(verbatim(data.get("open_interest")))
        ticker.update_last_price(verbatim(data.get("last_price")))
        ticker.update_timestamp(timestamp_from_ms(data.get("timestamp", UNSET)))
        if ticker.has_changed:
            yield ticker.to_message(local_timestamp)


class DeribitLiquidationMapper(DeribitMapper):
    """Liquidations are trades that say which side was liquidated."""

    channels = ("trades",)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Liquidation]:
        for trade in message["params"]["data"]:
            if "liquidation" not in trade:
                continue
            direction = trade.get("direction", UNSET)
            if trade["liquidation"] != "T":  # the maker's side
                direction = "sell" if direction == "buy" else "buy"
            yield Liquidation(
                trade["instrument_name"].upper(),
                self.exchange,
                trade.get("trade_id", UNSET),
                verbatim(trade.get("price", UNSET)),
                verbatim(trade.get("amount", UNSET)),
                direction,
                timestamp_from_ms(trade.get("timestamp", UNSET)),
                local_timestamp,
            )


class DeribitOptionSummaryMapper(DeribitMapper):
    channels = ("ticker",)

    def accepts(self, message: Json) -> bool:
        return super().accepts(message) and message["params"]["data"]["instrument_name"].endswith(("-P", "-C"))

    def map(self, message: Json, local_timestamp: str) -> Iterator[OptionSummary]:
        option = message["params"]["data"]
        name = option["instrument_name"]
        _, expiration, strike, kind, *_ = name.split("-")
        greeks = option["greeks"]
        yield OptionSummary(
            symbol=name.upper(),
            exchange=self.exchange,
            option_type="put" if kind == "P" else "call",
            strike_price=to_number(strike.replace("d", ".", 1)),
            expiration_date=timestamp_from_expiration(expiration),
            best_bid_price=nonzero_number(option.get("best_bid_price")),
            best_bid_amount=nonzero_number(option.get("best_bid_amount")),
            best_bid_iv=nonzero_number(option.get("bid_iv")),
            best_ask_price=nonzero_number(option.get("best_ask_price")),
            best_ask_amount=nonzero_number(option.get("best_ask_amount")),
            best_ask_iv=nonzero_number(option.get("ask_iv")),
            last_price=nonzero_number(option.get("last_price")),
            open_interest=verbatim(option.get("open_interest", UNSET)),
            mark_price=verbatim(option.get("mark_price", UNSET)),
            mark_iv=verbatim(option.get("mark_iv", UNSET)),
            delta=verbatim(greeks.get("delta", UNSET)),
            gamma=verbatim(greeks.get("gamma", UNSET)),
            vega=verbatim(greeks.get("vega", UNSET)),
            theta=verbatim(greeks.get("theta", UNSET)),
            rho=verbatim(greeks.get("rho", UNSET)),
            underlying_price=verbatim(option.get("underlying_price", UNSET)),
            underlying_index=option.get("underlying_index", UNSET),
            timestamp=timestamp_from_ms(option.get("timestamp", UNSET)),
            local_timestamp=local_timestamp,
        )


class DeribitBookTickerMapper(DeribitMapper):
    channels = ("ticker",)

    def map(self, message: Json, local_timestamp: str) -> list[BookTicker]:
        data = message["params"]["data"]
        return [
            BookTicker(
                symbol=data["instrument_name"].upper(),
                exchange=self.exchange,
                ask_amount=nonzero_number(data.get("best_ask_amount")),
                ask_price=nonzero_number(data.get("best_ask_price")),
                bid_price=nonzero_number(data.get("best_bid_price")),
                bid_amount=nonzero_number(data.get("best_bid_amount")),
                timestamp=timestamp_from_ms(data.get("timestamp", UNSET)),
                local_timestamp=local_timestamp,
            )
        ]


_CHANNELS = (
    "book",
    "deribit_price_index",
    "deribit_price_ranking",
    "deribit_volatility_index",
    "estimated_expiration_price",
    "markprice.options",
    "perpetual",
    "trades",
    "ticker",
    "quote",
    "platform_state",
    "instrument.state.any",
)
_METHODS = ("public/subscribe", "private/subscribe")


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"method": "public/subscribe", "params": {"channels": ["book.ETH-PERPETUAL.100.1.100ms", "platform_state"]}}`."""
    if message.get("method") not in _METHODS:
        return None
    return [_to_filter(name) for name in message.get("params", {}).get("channels", ())]


def _to_filter(name: str) -> Filter:
    """Channel, symbol and, last, an interval: what lies between the ends is the symbol."""
    channel = next((known for known in _CHANNELS if "." in known and name.startswith(known)), name.partition(".")[0])
    symbol, _, interval = name.removeprefix(channel).removeprefix(".").rpartition(".")
    if not symbol:
        symbol = interval
    return Filter(channel, [symbol]) if symbol else Filter(channel)


_WITH_INTERVAL = ("book", "perpetual", "trades", "ticker")
_HEARTBEAT_S = 10
_CREDENTIALS = ("DERIBIT_API_CLIENT_ID", "DERIBIT_API_CLIENT_SECRET")
_ACCOUNT_URL = "wss://www.deribit.com"
_TOO_MANY_REQUESTS = 10028


class DeribitFeed(Feed):
    """JSON-RPC: a call has an id, and its answer the same. Heartbeats are switched on, and then have to be answered. Who has an account
    logs in first, and hears every change at once instead of ten times a second."""

    credential_names = _CREDENTIALS
    max_subscriptions = 500
    subscribe_interval_s = 0.1

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        # Channels asked for, by the id of the call.
        self._asked: dict[int, Sequence[str]] = {}

    @property
    def _logs_in(self) -> bool:
        return all(name in self.credentials for name in _CREDENTIALS)

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/ws/api/v2", _ACCOUNT_URL if self._logs_in else "")

    def subscribe(self, now_us: int) -> list[str]:
        interval, scope = (".raw", "private") if self._logs_in else (".100ms", "public")
        channels = [
            f"{item.channel}.{symbol}{interval if item.channel in _WITH_INTERVAL else ''}"
            for item in self.filters
            for symbol in self.symbols(item)
        ]
        self._asked = dict(enumerate(in_batches(channels, 100), start=3))
        return [
            _call(1, "public/set_heartbeat", {"interval": _HEARTBEAT_S}),
            *([_call(0, "public/auth", self._login())] if self._logs_in else ()),
            *(_call(number, f"{scope}/subscribe", {"channels": some}) for number, some in self._asked.items()),
        ]

    def _login(self) -> dict[str, str]:
        client, secret = (self.credentials[name] for name in _CREDENTIALS)
        return {"grant_type": "client_credentials", "client_id": client, "client_secret": secret}

    def classify(self, message: Json) -> Heard:
        method = message.get("method")
        if method == "subscription":
            params = message["params"]
            channel = params["channel"]
            if not channel.startswith("book."):
                return FrameKind.DATA
            data = params["data"]
            return BookStep(channel, data.get("type") == "snapshot", data["change_id"], data.get("prev_change_id"))
        if method == "heartbeat":
            return FrameKind.HEARTBEAT
        return FrameKind.ERROR if "error" in message or self._refused(message) else FrameKind.ANSWER

    def _refused(self, message: Json) -> list[str]:
        """Channels that an answer leaves out: there are none of that name."""
        accepted = message.get("result")
        if not isinstance(accepted, list):
            return []
        return [channel for channel in self._asked.get(message.get("id"), ()) if channel not in accepted]

    def error(self, message: Json) -> FeedError:
        error = message.get("error")
        if error is None:
            return FeedError("other", f"not subscribed to {', '.join(self._refused(message))}")
        details = f"{error.get('code', '')} {error.get('message', '')} {error.get('data', '')}".strip()
        return FeedError("rate_limit" if error.get("code") == _TOO_MANY_REQUESTS else kind_of_error(details), details)

    def reply(self, message: Json, now_us: int) -> list[str]:
        params = message.get("params")
        return [_call(2, "public/test", {})] if params and params.get("type") == "test_request" else []


def _call(number: int, method: str, params: Json) -> str:
    return to_frame({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


EXCHANGES = (
    Exchange(
        name="deribit",
        docs="https://docs.deribit.com/#subscriptions",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(DeribitTradeMapper),),
            "book_change": (Version(DeribitBookChangeMapper),),
            "derivative_ticker": (Version(DeribitDerivativeTickerMapper),),
            "liquidation": (Version(DeribitLiquidationMapper),),
            "option_summary": (Version(DeribitOptionSummaryMapper),),
            "book_ticker": (Version(DeribitBookTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(DeribitFeed, "wss://streams.deribit.com"),
    ),
)

ABOUT = {
    "deribit": About("all levels", "With an account's credentials live channels are raw, else every 100 ms."),
}
