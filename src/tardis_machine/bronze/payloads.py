"""A normalized message to the bytes of its payload.

Invariant: `decoding.to_message` reverses it without loss. What a payload can't say, namely which fields were null and which
timestamps print in milliseconds, is returned beside it for the envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from ..errors import NormalizeError
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
    OptionSummary,
    Trade,
    TradeBar,
)
from .wire import decimal, delimited, tag, to_instant, varint

__all__ = [
    "BAR_KINDS",
    "CLOSE_BIT",
    "ERROR_CODES",
    "LOCAL_BIT",
    "OPTION_TYPES",
    "PAYLOAD_ENCODERS",
    "SECOND_BIT",
    "SIDES",
    "TIMESTAMP_BIT",
    "Payload",
    "encode_book_levels",
    "encode_levels",
]

LOCAL_BIT, TIMESTAMP_BIT, SECOND_BIT, CLOSE_BIT = 1, 2, 4, 8
"""The bits of `millisecond_timestamps`."""

SIDES = {"unknown": 0, "buy": 1, "sell": 2}
BAR_KINDS = {"tick": 1, "time": 2, "volume": 3}
OPTION_TYPES = {"put": 1, "call": 2}
ERROR_CODES = {"WS_CONNECT": 1, "WS_SEND": 2, "SOURCE_AUTH": 3, "SOURCE_RATE_LIMIT": 4}
_UPSERT, _DELETE = 1, 2

Payload: TypeAlias = tuple[bytes, int, Sequence[str]]
"""The payload's bytes, the bits of its timestamps that print with three fraction digits, and the names of its null fields."""


class _Field(NamedTuple):
    """One field of a payload: where its value stands in the message, and how it is written."""

    name: str
    """What `null_fields` calls it where the value is null: None, or a number that is none."""
    read: Callable[[Any], Any]
    """UNSET: the field is left out."""
    tag: bytes
    encode: Callable[[Any], bytes | None]
    """None: the value is null after all."""


class _Time(NamedTuple):
    """A timestamp, with its bit in `millisecond_timestamps`."""

    name: str
    read: Callable[[Any], Any]
    tag: bytes
    bit: int


class _Book(NamedTuple):
    """Both sides of a book, each level a message of its own."""

    bids: bytes
    """The tag of a bid."""
    asks: bytes


_Plan: TypeAlias = Sequence[_Field | _Time | _Book]
"""The fields of a payload in the order of their numbers."""


def _decimal(value: float) -> bytes | None:
    text = decimal(value)
    return None if text is None else delimited(text)


def _text(value: str) -> bytes:
    return delimited(value.encode())


def _flag(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _id(value: str | float) -> bytes | None:
    return _text(value) if isinstance(value, str) else _decimal(value)


def _number(attribute: str, number: int) -> _Field:
    return _Field(attribute, attrgetter(attribute), tag(number), _decimal)


def _string(attribute: str, number: int, encode: Callable[[Any], bytes | None] = _text) -> _Field:
    return _Field(attribute, attrgetter(attribute), tag(number), encode)


def _integer(attribute: str, number: int, encode: Callable[[Any], bytes] = varint) -> _Field:
    return _Field(attribute, attrgetter(attribute), tag(number, is_varint=True), encode)


def _time(attribute: str, number: int, bit: int = TIMESTAMP_BIT) -> _Time:
    return _Time(attribute, attrgetter(attribute), tag(number), bit)


def _enum(attribute: str, number: int, values: Mapping[str, int]) -> _Field:
    encoded = {name: varint(value) for name, value in values.items()}

    def encode(value: str) -> bytes:
        try:
            return encoded[value]
        except KeyError:
            raise NormalizeError(f"{attribute} is {value!r}; expected {', '.join(values)}") from None

    return _integer(attribute, number, encode)


def _has_number_id(message: Trade | Liquidation) -> bool:
    return isinstance(message.id, int | float)


def _given(name: str, number: int, is_given: Callable[[Any], bool]) -> _Field:
    """A flag that the message itself does not have: true, or left out."""
    return _Field(name, lambda message: is_given(message) or UNSET, tag(number, is_varint=True), _flag)


def _fits(value: Any, bits: int) -> bool:
    return type(value) is int and 0 <= value < 1 << bits


def _whole(attribute: str, number: int, bits: int) -> _Field:
    """An integer field, left out where it can't hold the number: then its decimal twin does."""

    def read(message: Any) -> Any:
        value = getattr(message, attribute)
        return value if value is None or _fits(value, bits) else UNSET

    return _Field(attribute, read, tag(number, is_varint=True), varint)


def _twin(attribute: str, number: int, bits: int) -> _Field:
    def read(message: Any) -> Any:
        value = getattr(message, attribute)
        return UNSET if value is None or _fits(value, bits) else value

    return _Field(attribute, read, tag(number), _decimal)


def _time_interval(bar: TradeBar) -> Any:
    return bar.interval if bar.kind == "time" and _fits(bar.interval, 32) else UNSET


def _symbols(number: int) -> _Field:
    key = tag(number)

    def read(message: Disconnect) -> Any:
        # An empty list has no bytes, not even a tag.
        return UNSET if _names_symbols(message) and not message.symbols else message.symbols

    def encode(symbols: Sequence[str]) -> bytes:
        return key.join(map(_text, symbols))

    return _Field("symbols", read, key, encode)


def _names_symbols(message: Disconnect) -> bool:
    return message.symbols is not UNSET and message.symbols is not None


def _book(bids: int, asks: int) -> _Book:
    return _Book(tag(bids), tag(asks))


def _top(side: str, attribute: str, number: int) -> _Field:
    """Price or amount of the only level of a quote's side."""

    def read(quote: BookSnapshot) -> Any:
        return getattr(getattr(quote, side)[0], attribute)

    return _Field(f"{side}.0.{attribute}", read, tag(number), _decimal)


def _plan(message_type: type[msgspec.Struct], *fields: _Field | _Time | _Book) -> _Plan:
    """The fields, named as the message's JSON names them."""
    names = dict(zip(message_type.__struct_fields__, message_type.__struct_encode_fields__, strict=True))
    return tuple(
        field if isinstance(field, _Book) else field._replace(name=names.get(field.name, field.name)) for field in fields
    )


def _append(parts: list[bytes], plan: _Plan, message: Any, nulls: list[str], path: str = "") -> int:
    """Appends the fields' bytes and the names of null ones; returns the bits of timestamps in milliseconds."""
    milliseconds = 0
    for field in plan:
        if isinstance(field, _Book):
            parts += (
                encode_levels(field.bids, message.bids, "bids", nulls),
                encode_levels(field.asks, message.asks, "asks", nulls),
            )
            continue
        value = field.read(message)
        if value is UNSET:
            continue
        encoded: bytes | None = None
        if value is None:
            pass
        elif isinstance(field, _Field):
            encoded = field.encode(value)
        else:
            encoded, _, in_milliseconds = to_instant(value)
            if in_milliseconds:
                milliseconds |= field.bit
        if encoded is None:
            nulls.append(path + field.name)
        else:
            parts += (field.tag, encoded)
    return milliseconds


_LEVEL = _plan(BookLevel, _number("price", 1), _number("amount", 2))


def encode_levels(key: bytes, levels: Sequence[BookLevel | None], side: str, nulls: list[str]) -> bytes:
    """The levels of one side of a book, each after its tag; appends the names of those that are null, or of what is null in them."""
    parts: list[bytes] = []
    for index, level in enumerate(levels):
        fields: list[bytes] = []
        if level is None:
            nulls.append(f"{side}.{index}")
        else:
            _append(fields, _LEVEL, level, nulls, f"{side}.{index}.")
        parts += (key, delimited(b"".join(fields)))
    return b"".join(parts)


def _encoder_of(plan: _Plan) -> Callable[[Any], Payload]:
    def encode(message: Any) -> Payload:
        parts: list[bytes] = []
        nulls: list[str] = []
        milliseconds = _append(parts, plan, message, nulls)
        return b"".join(parts), milliseconds, nulls

    return encode


_BOOK_CHANGE = (_time("timestamp", 10), _integer("is_snapshot", 20, _flag))
_BOOK_CHANGE_OF_LEVEL = _plan(BookChange, *_BOOK_CHANGE)
_LEVEL_IN_BOOK_CHANGE = _plan(BookLevel, _number("price", 3), _number("amount", 4))


def encode_book_levels(change: BookChange) -> Sequence[Payload]:
    """One payload for each level, bids first; one without a level for a change that has none."""
    common: list[bytes] = []
    common_nulls: list[str] = []
    milliseconds = _append(common, _BOOK_CHANGE_OF_LEVEL, change, common_nulls)
    common += (tag(23, is_varint=True), varint(len(change.bids) + len(change.asks)))
    tail = b"".join(common)
    payloads: list[Payload] = []
    for name, side, levels in (("bids", "buy", change.bids), ("asks", "sell", change.asks)):
        for index, level in enumerate(levels):
            parts = [b"\x08", varint(SIDES[side])]
            nulls = list(common_nulls)
            if level is None:
                nulls.append(f"{name}.{index}")
            else:
                if isinstance(level.amount, int | float):
                    parts += (b"\x10", varint(_UPSERT if level.amount else _DELETE))
                _append(parts, _LEVEL_IN_BOOK_CHANGE, level, nulls, f"{name}.{index}.")
            parts += (b"\x28", varint(index), tail)
            payloads.append((b"".join(parts), milliseconds, nulls))
    return payloads or ((tail, milliseconds, common_nulls),)


_SNAPSHOT = _plan(
    BookSnapshot,
    _integer("depth", 1),
    _book(2, 3),
    _time("timestamp", 10),
    _whole("grouping", 11, 32),
    _whole("interval", 12, 32),
    _string("name", 20),
    _twin("interval", 21, 32),
    _twin("grouping", 22, 32),
)

PAYLOAD_ENCODERS: Mapping[str, Callable[[Any], Payload]] = {
    "trade": _encoder_of(
        _plan(
            Trade,
            _string("id", 1, _id),
            _number("price", 2),
            _number("amount", 3),
            _enum("side", 4, SIDES),
            _time("timestamp", 10),
            _given("id", 20, _has_number_id),
        )
    ),
    "book_change": _encoder_of(_plan(BookChange, *_BOOK_CHANGE, _book(21, 22))),
    "book_snapshot": _encoder_of(_SNAPSHOT),
    "grouped_book_snapshot": _encoder_of(_SNAPSHOT),
    "quote": _encoder_of(
        _plan(
            BookSnapshot,
            _top("bids", "price", 1),
            _top("bids", "amount", 2),
            _top("asks", "price", 3),
            _top("asks", "amount", 4),
            _time("timestamp", 10),
            _string("name", 20),
            _whole("interval", 21, 32),
            _twin("interval", 22, 32),
        )
    ),
    "derivative_ticker": _encoder_of(
        _plan(
            DerivativeTicker,
            _number("mark_price", 1),
            _number("index_price", 2),
            _number("funding_rate", 3),
            _time("timestamp", 10),
            _number("last_price", 20),
            _number("open_interest", 21),
            _time("funding_timestamp", 22, SECOND_BIT),
            _number("predicted_funding_rate", 23),
        )
    ),
    "liquidation": _encoder_of(
        _plan(
            Liquidation,
            _enum("side", 1, SIDES),
            _number("price", 2),
            _number("amount", 3),
            _string("id", 4, _id),
            _time("timestamp", 10),
            _given("id", 20, _has_number_id),
        )
    ),
    "option_summary": _encoder_of(
        _plan(
            OptionSummary,
            _number("mark_iv", 1),
            _number("delta", 2),
            _number("gamma", 3),
            _number("theta", 4),
            _number("vega", 5),
            _number("open_interest", 6),
            _time("timestamp", 10),
            _enum("option_type", 20, OPTION_TYPES),
            _number("strike_price", 21),
            _time("expiration_date", 22, SECOND_BIT),
            _number("best_bid_price", 23),
            _number("best_bid_amount", 24),
            _number("best_bid_iv", 25),
            _number("best_ask_price", 26),
            _number("best_ask_amount", 27),
            _number("best_ask_iv", 28),
            _number("last_price", 29),
            _number("mark_price", 30),
            _number("rho", 31),
            _number("underlying_price", 32),
            _string("underlying_index", 33),
        )
    ),
    "book_ticker": _encoder_of(
        _plan(
            BookTicker,
            _number("bid_price", 1),
            _number("bid_amount", 2),
            _number("ask_price", 3),
            _number("ask_amount", 4),
            _time("timestamp", 10),
        )
    ),
    "trade_bar": _encoder_of(
        _plan(
            TradeBar,
            _enum("kind", 1, BAR_KINDS),
            _whole("interval", 2, 64),
            _Field("interval", _time_interval, tag(3, is_varint=True), varint),
            _number("open", 4),
            _number("high", 5),
            _number("low", 6),
            _number("close", 7),
            _number("volume", 8),
            _integer("trades", 9),
            _time("open_timestamp", 10, SECOND_BIT),
            _time("close_timestamp", 11, CLOSE_BIT),
            _string("name", 20),
            _number("buy_volume", 21),
            _number("sell_volume", 22),
            _number("vwap", 23),
            _time("timestamp", 24),
            _twin("interval", 25, 64),
        )
    ),
    "error": _encoder_of(
        _plan(ErrorMessage, _string("details", 1), _integer("subsequent_errors_count", 2), _enum("code", 3, ERROR_CODES))
    ),
    "disconnect": _encoder_of(
        _plan(
            Disconnect,
            _string("reason", 1),
            _integer("close_code", 2),
            _symbols(20),
            _given("symbols", 21, _names_symbols),
        )
    ),
}
"""By payload case."""

# Where it was compiled, levels are written there, but for odd ones, which are left to the function above.
with suppress(ImportError):
    from .payloads_compiled import *  # noqa: F403
