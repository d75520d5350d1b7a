"""Bronze events back to the messages they were made from.

Invariant: JSON to Bronze to JSON is the identity, byte for byte; `payloads` is the other direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from ..messages import (
    UNSET,
    BookChange,
    BookLevel,
    BookSnapshot,
    BookTicker,
    DerivativeTicker,
    Disconnect,
    ErrorMessage,
    Liquidation,
    Message,
    OptionSummary,
    Trade,
    TradeBar,
    js_number,
    to_timestamp,
)
from .payloads import BAR_KINDS, CLOSE_BIT, ERROR_CODES, LOCAL_BIT, OPTION_TYPES, SECOND_BIT, SIDES, TIMESTAMP_BIT

__all__ = ["decode", "decode_event", "parse_decimal", "to_message"]


def decode_event(value: bytes) -> NormalizedEvent:
    """The event in a record's value; google.protobuf.message.DecodeError where it is none."""
    return NormalizedEvent.FromString(value)


def decode(value: bytes) -> Message:
    """The message in a record's value."""
    return to_message(decode_event(value))


def to_message(event: NormalizedEvent) -> Message:
    """The message that the event was made from; ValueError where it was not made from a whole one."""
    case = event.WhichOneof("payload")
    build = _BUILDERS.get(case or "")
    if build is None:
        raise ValueError(f"an event of {case} holds no normalized message")
    payload = getattr(event, case)
    for field, what in (("level_count", "one book level"), ("part", f"one part of a {case}")):
        if field in payload.DESCRIPTOR.fields_by_name and payload.HasField(field):
            raise ValueError(f"an event of {what} holds no normalized message")
    return build(_Reader(event, payload))


def parse_decimal(text: str) -> float:
    """A number of an event, in the type that prints as the message's did."""
    if "." in text:
        return js_number(float(text))
    value = int(text)
    # An integer of more than 64 bits can only have been a double.
    return value if -(1 << 63) <= value < 1 << 64 else js_number(float(text))


class _Reader:
    """The fields of one payload by the name that the schema and, where it may be null, the message's JSON give them."""

    def __init__(self, event: NormalizedEvent, payload: Any) -> None:
        self.exchange = event.exchange
        self.payload = payload
        self.nulls = frozenset(event.null_fields)
        self.symbol: Any = event.symbol if event.HasField("symbol") else None if "symbol" in self.nulls else UNSET
        self._milliseconds = event.millisecond_timestamps
        self.local_timestamp = self._timestamp(event.local_ts, LOCAL_BIT)

    def value(self, field: str, json_name: str) -> Any:
        """As it is in the payload: text, a count, a flag."""
        if self.payload.HasField(field):
            return getattr(self.payload, field)
        return None if json_name in self.nulls else UNSET

    def number(self, field: str, json_name: str) -> Any:
        text = self.value(field, json_name)
        return parse_decimal(text) if isinstance(text, str) else text

    def whole(self, field: str, twin: str, json_name: str) -> Any:
        return self.value(field, json_name) if self.payload.HasField(field) else self.number(twin, json_name)

    def name(self, field: str, json_name: str, values: Mapping[str, int]) -> Any:
        """What the message calls an enum's value."""
        number = self.value(field, json_name)
        if not isinstance(number, int):
            return number
        for name, value in values.items():
            if value == number:
                return name
        raise ValueError(
            f"{field} is {number}, which this version does not know; expected {', '.join(map(str, values.values()))}"
        )

    def time(self, field: str, json_name: str, bit: int = TIMESTAMP_BIT) -> Any:
        moment = self.value(field, json_name)
        return self._timestamp(moment, bit) if isinstance(moment, Timestamp) else moment

    def identifier(self, field: str) -> Any:
        return self.number(field, "id") if self.payload.id_is_number else self.value(field, "id")

    def levels(self, side: str) -> Sequence[BookLevel]:
        return [self._level(level, f"{side}.{index}") for index, level in enumerate(getattr(self.payload, side))]

    def top(self, side: str, price_field: str, amount_field: str) -> Sequence[BookLevel]:
        return [BookLevel(self.number(price_field, f"{side}.0.price"), self.number(amount_field, f"{side}.0.amount"))]

    def _level(self, level: Any, path: str) -> Any:
        if path in self.nulls:
            return None
        price, amount = (
            parse_decimal(getattr(level, field)) if level.HasField(field) else None if f"{path}.{name}" in self.nulls else UNSET
            for field, name in (("price_str", "price"), ("qty_str", "amount"))
        )
        return BookLevel(price, amount)  # type: ignore[arg-type]

    def _timestamp(self, moment: Timestamp, bit: int) -> str:
        us = moment.seconds * 1_000_000 + moment.nanos // 1000
        return to_timestamp(us, milliseconds=bool(self._milliseconds & bit))


def _trade(read: _Reader) -> Trade:
    return Trade(
        read.symbol,
        read.exchange,
        read.identifier("trade_id"),
        read.number("price_str", "price"),
        read.number("qty_str", "amount"),
        read.name("side", "side", SIDES),
        read.time("event_ts", "timestamp"),
        read.local_timestamp,
    )


def _book_change(read: _Reader) -> BookChange:
    return BookChange(
        read.symbol,
        read.exchange,
        read.value("is_snapshot", "isSnapshot"),
        read.levels("bids"),
        read.levels("asks"),
        read.time("event_ts", "timestamp"),
        read.local_timestamp,
    )


def _book_snapshot(read: _Reader) -> BookSnapshot:
    return BookSnapshot(
        read.symbol,
        read.exchange,
        read.value("name", "name"),
        read.value("depth", "depth"),
        read.whole("interval_ms", "interval_str", "interval"),
        read.whole("grouping", "grouping_str", "grouping"),
        read.levels("bids"),
        read.levels("asks"),
        read.time("event_ts", "timestamp"),
        read.local_timestamp,
    )


def _quote(read: _Reader) -> BookSnapshot:
    return BookSnapshot(
        read.symbol,
        read.exchange,
        read.value("name", "name"),
        1,
        read.whole("interval_ms", "interval_str", "interval"),
        UNSET,
        read.top("bids", "bid_price_str", "bid_qty_str"),
        read.top("asks", "ask_price_str", "ask_qty_str"),
        read.time("event_ts", "timestamp"),
        read.local_timestamp,
    )


def _derivative_ticker(read: _Reader) -> DerivativeTicker:
    return DerivativeTicker(
        read.symbol,
        read.exchange,
        read.number("last_price_str", "lastPrice"),
        read.number("open_interest_str", "openInterest"),
        read.number("funding_rate_str", "fundingRate"),
        read.time("funding_ts", "fundingTimestamp", SECOND_BIT),
        read.number("predicted_funding_rate_str", "predictedFundingRate"),
        read.number("index_price_str", "indexPrice"),
        read.number("mark_price_str", "markPrice"),
        read.time("event_ts", "timestamp"),
        read.local_timestamp,
    )


def _liquidation(read: _Reader) -> Liquidation:
    return Liquidation(
        read.symbol,
        read.exchange,
        read.identifier("order_id"),
        read.number("price_str", "price"),
        read.number("qty_str", "amount"),
        read.name("side", "side", SIDES),
        read.time("event_ts", "timestamp"),
        read.local_timestamp,
    )


def _option_summary(read: _Reader) -> OptionSummary:
    return OptionSummary(
        read.symbol,
        read.exchange,
        read.name("option_type", "optionType", OPTION_TYPES),
        read.number("strike_price_str", "strikePrice"),
        read.time("expiration_ts", "expirationDate", SECOND_BIT),
        read.number("best_bid_price_str", "bestBidPrice"),
        read.number("best_bid_qty_str", "bestBidAmount"),
        read.number("best_bid_iv_str", "bestBidIV"),
        read.number("best_ask_price_str", "bestAskPrice"),
        read.number("best_ask_qty_str", "bestAskAmount"),
        read.number("best_ask_iv_str", "bestAskIV"),
        read.number("last_price_str", "lastPrice"),
        read.number("oi_str", "openInterest"),
        read.number("mark_price_str", "markPrice"),
        read.number("iv_str", "markIV"),
        read.number("delta_str", "delta"),
        read.number("gamma_str", "gamma"),
        read.number("vega_str", "vega"),
        read.number("theta_str", "theta"),
        read.number("rho_str", "rho"),
        read.number("underlying_price_str", "underlyingPrice"),
        read.value("underlying_index", "underlyingIndex"),
        read.time("event_ts", "timestamp"),
        read.local_timestamp,
    )


def _book_ticker(read: _Reader) -> BookTicker:
    return BookTicker(
        read.symbol,
        read.exchange,
        read.number("best_ask_qty_str", "askAmount"),
        read.number("best_ask_price_str", "askPrice"),
        read.number("best_bid_price_str", "bidPrice"),
        read.number("best_bid_qty_str", "bidAmount"),
        read.time("event_ts", "timestamp"),
        read.local_timestamp,
    )


def _trade_bar(read: _Reader) -> TradeBar:
    return TradeBar(
        read.symbol,
        read.exchange,
        read.value("name", "name"),
        read.whole("interval", "interval_str", "interval"),
        read.name("kind", "kind", BAR_KINDS),
        read.number("open_str", "open"),
        read.number("high_str", "high"),
        read.number("low_str", "low"),
        read.number("close_str", "close"),
        read.number("volume_str", "volume"),
        read.number("buy_volume_str", "buyVolume"),
        read.number("sell_volume_str", "sellVolume"),
        read.value("trade_count", "trades"),
        read.number("vwap_str", "vwap"),
        read.time("event_ts", "openTimestamp", SECOND_BIT),
        read.time("end_ts", "closeTimestamp", CLOSE_BIT),
        read.time("bar_ts", "timestamp"),
        read.local_timestamp,
    )


def _disconnect(read: _Reader) -> Disconnect:
    symbols: Any = None if "symbols" in read.nulls else UNSET
    if read.payload.symbols_given:
        symbols = list(read.payload.symbols)
    return Disconnect(
        read.exchange,
        read.local_timestamp,
        symbols,
        read.value("reason", "reason"),
        read.value("close_code", "closeCode"),
    )


def _error(read: _Reader) -> ErrorMessage:
    return ErrorMessage(
        read.exchange,
        read.local_timestamp,
        read.value("details", "details"),
        read.value("subsequent_errors", "subsequentErrorsCount"),
        read.name("code", "code", ERROR_CODES),
    )


_BUILDERS: Mapping[str, Callable[[_Reader], Message]] = {
    "trade": _trade,
    "book_change": _book_change,
    "book_snapshot": _book_snapshot,
    "grouped_book_snapshot": _book_snapshot,
    "quote": _quote,
    "derivative_ticker": _derivative_ticker,
    "liquidation": _liquidation,
    "option_summary": _option_summary,
    "book_ticker": _book_ticker,
    "trade_bar": _trade_bar,
    "disconnect": _disconnect,
    "error": _error,
}
