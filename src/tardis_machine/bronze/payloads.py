"""A normalized message to the bytes of its payload.

Invariant: `decoding.to_message` reverses it without loss. What a payload can't say, namely which fields were null and which
timestamps print in milliseconds, is returned beside it for the envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from .wire import decimal, decimals, delimited, heads, tag, to_instant, varint

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
    "TRADE_SIDES",
    "Payload",
    "encode_book_levels",
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


class _Side(NamedTuple):
    """One side of a book."""

    tag: bytes
    heads: Sequence[Sequence[bytes]]
    """What stands before a level's price (its tag and length, and the level's own), by the lengths of price and amount."""


class _Book(NamedTuple):
    """Both sides of a book."""

    bids: _Side
    asks: _Side


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


_SHORT_NUMBERS = range(32)
_LEVEL_AMOUNT_HEADS = heads(2)


def _side(number: int) -> _Side:
    level_heads = [
        [tag(number) + varint(price + amount + 4) + tag(1) + varint(price) for amount in _SHORT_NUMBERS]
        for price in _SHORT_NUMBERS
    ]
    return _Side(tag(number), level_heads)


def _book(bids: int, asks: int) -> _Book:
    return _Book(_side(bids), _side(asks))


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
            _append_book(parts, field, message, nulls)
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


def _append_book(parts: list[bytes], book: _Book, message: BookChange | BookSnapshot, nulls: list[str]) -> None:
    """All numbers at once, which takes half the time; a book with something odd in it goes level by level."""
    numbers: list[Any] = []
    encoded: list[bytes] = []
    amount_heads = _LEVEL_AMOUNT_HEADS
    try:
        for level in message.bids:
            numbers.append(level.price)
            numbers.append(level.amount)
        for level in message.asks:
            numbers.append(level.price)
            numbers.append(level.amount)
        texts = iter(decimals(numbers))
        for side, levels in ((book.bids, message.bids), (book.asks, message.asks)):
            level_heads = side.heads
            for _, price, amount in zip(levels, texts, texts, strict=False):
                length = len(amount)
                encoded += (level_heads[len(price)][length], price, amount_heads[length], amount)
    except (AttributeError, TypeError, IndexError):
        encoded.clear()
        for name, side, levels in (("bids", book.bids, message.bids), ("asks", book.asks, message.asks)):
            for index, level in enumerate(levels):
                encoded += (side.tag, delimited(_encode_odd_level(level, f"{name}.{index}", nulls)))
    parts += encoded


_LEVEL = _plan(BookLevel, _number("price", 1), _number("amount", 2))


def _encode_odd_level(level: BookLevel | None, path: str, nulls: list[str]) -> bytes:
    """A level that may be null, or of which something is absent, null or very long."""
    if level is None:
        nulls.append(path)
        return b""
    parts: list[bytes] = []
    _append(parts, _LEVEL, level, nulls, f"{path}.")
    return b"".join(parts)


def _encoder_of(plan: _Plan) -> Callable[[Any], Payload]:
    def encode(message: Any) -> Payload:
        parts: list[bytes] = []
        nulls: list[str] = []
        milliseconds = _append(parts, plan, message, nulls)
        return b"".join(parts), milliseconds, nulls

    return encode


_encode_any_trade = _encoder_of(
    _plan(
        Trade,
        _string("id", 1, _id),
        _number("price", 2),
        _number("amount", 3),
        _enum("side", 4, SIDES),
        _time("timestamp", 10),
        _given("id", 20, _has_number_id),
    )
)
_ID_HEADS, _PRICE_HEADS, _AMOUNT_HEADS = map(heads, (1, 2, 3))
TRADE_SIDES = {name: tag(4, is_varint=True) + varint(value) + tag(10) for name, value in SIDES.items()}
"""From a trade's side to the start of its timestamp."""


def _encode_trade(trade: Trade) -> Payload:
    """The most frequent message, written out; one with something odd takes the way of all others, to the same bytes."""
    try:
        trade_id = trade.id.encode()  # type: ignore[union-attr]
        price, amount = decimals((trade.price, trade.amount))
        timestamp, _, in_milliseconds = to_instant(trade.timestamp)  # type: ignore[arg-type]
        body = b"".join(
            (
                _ID_HEADS[len(trade_id)],
                trade_id,
                _PRICE_HEADS[len(price)],
                price,
                _AMOUNT_HEADS[len(amount)],
                amount,
                TRADE_SIDES[trade.side],
                timestamp,
            )
        )
    except (AttributeError, TypeError, LookupError):
        return _encode_any_trade(trade)
    return body, TIMESTAMP_BIT if in_milliseconds else 0, ()


_BOOK_CHANGE_COMMON = (_time("timestamp", 10), _integer("is_snapshot", 20, _flag))
_BOOK_CHANGE_SIDES = _book(21, 22)
_encode_any_book_change = _encoder_of(_plan(BookChange, *_BOOK_CHANGE_COMMON, _BOOK_CHANGE_SIDES))
_SNAPSHOT_FLAGS = {value: tag(20, is_varint=True) + _flag(value) for value in (False, True)}
_BOOK_CHANGE_TIME = tag(10)
_BOOK_CHANGE_OF_LEVEL = _plan(BookChange, *_BOOK_CHANGE_COMMON)
_LEVEL_IN_BOOK_CHANGE = _plan(BookLevel, _number("price", 3), _number("amount", 4))


def _encode_book_change(change: BookChange) -> Payload:
    """The next most frequent message, in the same way; most have one level."""
    nulls: list[str] = []
    try:
        timestamp, _, in_milliseconds = to_instant(change.timestamp)  # type: ignore[arg-type]
        bids, asks = change.bids, change.asks
        if len(bids) + len(asks) == 1:
            level, side = (bids[0], _BOOK_CHANGE_SIDES.bids) if bids else (asks[0], _BOOK_CHANGE_SIDES.asks)
            price, amount = decimals((level.price, level.amount))
            length = len(amount)
            parts: Sequence[bytes] = (
                _BOOK_CHANGE_TIME,
                timestamp,
                _SNAPSHOT_FLAGS[change.is_snapshot],
                side.heads[len(price)][length],
                price,
                _LEVEL_AMOUNT_HEADS[length],
                amount,
            )
        else:
            parts = [_BOOK_CHANGE_TIME, timestamp, _SNAPSHOT_FLAGS[change.is_snapshot]]
            _append_book(parts, _BOOK_CHANGE_SIDES, change, nulls)
    except (AttributeError, TypeError, LookupError):
        return _encode_any_book_change(change)
    return b"".join(parts), TIMESTAMP_BIT if in_milliseconds else 0, nulls


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
    "trade": _encode_trade,
    "book_change": _encode_book_change,
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
