"""The normalized messages, and their JSON form, byte for byte as the reference prints it.

Invariant: a message holds exactly what is printed. Timestamps are ISO-8601 text in UTC with three or six fraction digits (text comes
in and goes out; `timestamp_us` gives the instant where one is needed), numbers are what `js_number` returns, `None` prints as null,
and `UNSET` is absent. `gc=False`: messages never form cycles, and the collector need not look at millions of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

__all__ = [
    "UNSET",
    "BookChange",
    "BookLevel",
    "BookSnapshot",
    "BookTicker",
    "DerivativeTicker",
    "Disconnect",
    "ErrorCode",
    "ErrorMessage",
    "Liquidation",
    "Message",
    "OptionSummary",
    "Trade",
    "TradeBar",
    "from_json",
    "is_calendar_second",
    "js_number",
    "parse_timestamp_us",
    "to_json",
    "to_json_lines",
    "to_timestamp",
]

Side = Literal["buy", "sell", "unknown"]
ErrorCode = Literal["WS_CONNECT", "WS_SEND", "SOURCE_AUTH", "SOURCE_RATE_LIMIT"]
Timestamp = str | None
"""The exchange's time; None where what it sent is no date. The recorder's own time is never missing."""
Absent = UnsetType


class _Message(msgspec.Struct, gc=False, rename="camel", tag_field="type", kw_only=False):
    """What all messages share: the two clocks as integers."""

    @property
    def local_timestamp_us(self) -> int:
        """When the recorder received it, in microseconds since 1970."""
        return parse_timestamp_us(self.local_timestamp)  # type: ignore[attr-defined]

    @property
    def timestamp_us(self) -> int:
        """When the exchange says it happened, in microseconds since 1970."""
        return parse_timestamp_us(self.timestamp)  # type: ignore[attr-defined]


class BookLevel(msgspec.Struct, gc=False):
    """One price level; amount 0 removes it. Both are UNSET where a snapshot is deeper than the book."""

    price: float | Absent
    amount: float | Absent


class Trade(_Message, gc=False, tag="trade"):
    """One execution; `side` is the taker's."""

    symbol: str
    exchange: str
    id: str | Absent
    price: float
    amount: float
    side: Side
    timestamp: Timestamp
    local_timestamp: str


class BookChange(_Message, gc=False, tag="book_change"):
    """Changed levels; `is_snapshot` means: forget the book first."""

    symbol: str
    exchange: str
    is_snapshot: bool
    bids: Sequence[BookLevel]
    asks: Sequence[BookLevel]
    timestamp: Timestamp
    local_timestamp: str


class DerivativeTicker(_Message, gc=False, tag="derivative_ticker"):
    """What is known of a derivative; emitted when a field changes, the others kept from before."""

    symbol: str
    exchange: str
    last_price: float | Absent
    open_interest: float | Absent
    funding_rate: float | Absent
    funding_timestamp: Timestamp | Absent
    predicted_funding_rate: float | Absent
    index_price: float | Absent
    mark_price: float | Absent
    timestamp: Timestamp
    local_timestamp: str


class Liquidation(_Message, gc=False, tag="liquidation"):
    """A forced trade; side buy: a short was liquidated."""

    symbol: str
    exchange: str
    id: str | Absent
    price: float
    amount: float
    side: Side
    timestamp: Timestamp
    local_timestamp: str


class OptionSummary(
    _Message,
    gc=False,
    tag="option_summary",
    rename={
        "option_type": "optionType",
        "strike_price": "strikePrice",
        "expiration_date": "expirationDate",
        "best_bid_price": "bestBidPrice",
        "best_bid_amount": "bestBidAmount",
        "best_bid_iv": "bestBidIV",
        "best_ask_price": "bestAskPrice",
        "best_ask_amount": "bestAskAmount",
        "best_ask_iv": "bestAskIV",
        "last_price": "lastPrice",
        "open_interest": "openInterest",
        "mark_price": "markPrice",
        "mark_iv": "markIV",
        "underlying_price": "underlyingPrice",
        "underlying_index": "underlyingIndex",
        "local_timestamp": "localTimestamp",
    },
):
    """An option's quotes, implied volatilities and greeks."""

    symbol: str
    exchange: str
    option_type: Literal["put", "call"]
    strike_price: float
    expiration_date: Timestamp
    best_bid_price: float | Absent
    best_bid_amount: float | Absent
    best_bid_iv: float | Absent
    best_ask_price: float | Absent
    best_ask_amount: float | Absent
    best_ask_iv: float | Absent
    last_price: float | Absent
    open_interest: float | Absent
    mark_price: float | Absent
    mark_iv: float | Absent
    delta: float | Absent
    gamma: float | Absent
    vega: float | Absent
    theta: float | Absent
    rho: float | Absent
    underlying_price: float | Absent
    underlying_index: str | Absent
    timestamp: Timestamp
    local_timestamp: str


class BookTicker(_Message, gc=False, tag="book_ticker"):
    """Best bid and ask as the exchange itself announces them."""

    symbol: str
    exchange: str
    ask_amount: float | Absent
    ask_price: float | Absent
    bid_price: float | Absent
    bid_amount: float | Absent
    timestamp: Timestamp
    local_timestamp: str


class TradeBar(_Message, gc=False, tag="trade_bar"):
    """Trades aggregated by time, count or volume."""

    symbol: str
    exchange: str
    name: str
    interval: float
    kind: Literal["time", "volume", "tick"]
    open: float
    high: float
    low: float
    close: float
    volume: float
    buy_volume: float
    sell_volume: float
    trades: int
    vwap: float
    open_timestamp: Timestamp
    close_timestamp: Timestamp
    timestamp: Timestamp
    local_timestamp: str


class BookSnapshot(_Message, gc=False, tag="book_snapshot"):
    """The top of the reconstructed book; a `quote…` request is one of depth 1 under its own name. Its sides may be any sequences."""

    symbol: str
    exchange: str
    name: str
    depth: int
    interval: int
    grouping: float | Absent
    bids: Sequence[BookLevel]
    asks: Sequence[BookLevel]
    timestamp: Timestamp
    local_timestamp: str


class Disconnect(_Message, gc=False, tag="disconnect"):
    """The connection to the exchange was lost: every book and computed state starts anew."""

    exchange: str
    local_timestamp: str
    symbols: Sequence[str] | Absent = UNSET
    reason: str | Absent = UNSET
    """Why, where a live connection was lost; a recording does not say."""
    close_code: int | Absent = UNSET
    """What the exchange closed the connection with; absent where it was not the exchange that closed it."""

    @property
    def timestamp(self) -> str:
        """A disconnect has one clock, the recorder's."""
        return self.local_timestamp


class ErrorMessage(_Message, gc=False, tag="error"):
    """Something went wrong on a live connection; `subsequent_errors_count` more like it followed."""

    exchange: str
    local_timestamp: str
    details: str
    subsequent_errors_count: int | Absent = UNSET
    code: ErrorCode | Absent = UNSET

    @property
    def timestamp(self) -> str:
        """An error has one clock, the recorder's."""
        return self.local_timestamp


Message = (
    Trade
    | BookChange
    | DerivativeTicker
    | Liquidation
    | OptionSummary
    | BookTicker
    | TradeBar
    | BookSnapshot
    | Disconnect
    | ErrorMessage
)


_EXACT = 2.0**53


class JsNumber(float):
    """A double whose JavaScript form differs from what the encoder would print; arithmetic is that of float."""

    __slots__ = ()
    TEN_TO_21: ClassVar[float] = 1e21

    @property
    def printed(self) -> bytes:
        """Its JSON."""
        return self.to_text().encode()

    def to_text(self) -> str:
        """The text JavaScript prints: plain digits from 1e-6 up to 1e21, an exponent beyond."""
        if abs(self) >= self.TEN_TO_21:
            mantissa, _, exponent = float.__repr__(self).partition("e")
            return f"{mantissa.removesuffix('.0')}e{exponent}"
        # The shortest digits that read back as this double, then zeros: not its exact value.
        return format(Decimal(float.__repr__(self)), "f").removesuffix(".0")


def js_number(value: float) -> float:
    """The value in the type that prints as JavaScript does: 2000 not 2000.0, 0.0000085 not 8.5e-6, 1e+21, and -0 as 0."""
    if value.is_integer():
        return int(value) if -_EXACT < value < _EXACT else JsNumber(value)
    if -1e-5 < value < 1e-5 and not -1e-6 < value < 1e-6:
        return JsNumber(value)
    return value


def _encode_special(value: Any) -> msgspec.Raw:
    # A number, or the levels of a snapshot, that know their JSON.
    printed = getattr(value, "printed", None)
    if printed is not None:
        return msgspec.Raw(printed)
    raise TypeError(f"a message can't hold a {type(value).__name__}")


# Ticks share their second with many others: the calendar is consulted once a second of data, not once a message. Whoever reads
# millions of times a minute looks here first, before it calls a function below.
SECONDS_OF: dict[str, int] = {}
"""Seconds since 1970 of `2019-06-01T00:00:28`, for seconds seen before."""
SECOND_TEXTS: dict[int, str] = {}
"""The opposite."""
MILLISECOND_TEXTS = [f".{millisecond:03d}Z" for millisecond in range(1000)]
"""What follows the second in a timestamp of three digits."""
_THREE_DIGITS = [f"{number:03d}" for number in range(1000)]
MILLISECONDS = frozenset(MILLISECOND_TEXTS)
_CACHE_LIMIT = 10_000


def parse_timestamp_us(text: str) -> int:
    """Microseconds since 1970 of a timestamp in the form messages hold."""
    seconds = SECONDS_OF.get(text[:19])
    if seconds is None:
        if text[0] in "+-" or text.startswith("0000"):
            return _parse_far_timestamp_us(text)
        seconds = _cache_seconds(text)
    if len(text) == 27:
        return seconds * 1_000_000 + int(text[20:26])
    if len(text) == 24:
        return seconds * 1_000_000 + int(text[20:23]) * 1_000
    fraction = text.partition(".")[2][:-1]
    return seconds * 1_000_000 + int(fraction.ljust(6, "0"))


def is_calendar_second(text: str) -> bool:
    """Whether text that has the length of a timestamp begins with a second that exists; one look-up for a second seen before."""
    if text[:19] in SECONDS_OF:
        return True
    try:
        _cache_seconds(text)
    except ValueError:
        return False
    return True


def _cache_seconds(text: str) -> int:
    whole = text[:-1].partition(".")[0]
    # Python takes other separators, and none.
    if len(whole) != 19 or whole[10] != "T" or whole[13] != ":" or whole[16] != ":":
        raise ValueError(f"{text!r} is not a timestamp")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    if len(SECONDS_OF) >= _CACHE_LIMIT:
        SECONDS_OF.clear()
    SECONDS_OF[whole] = seconds
    return seconds


_CYCLE_SECONDS = 146_097 * 86_400  # 400 Gregorian years always have as many days


def _parse_far_timestamp_us(text: str) -> int:
    """A year that datetime does not have but JavaScript does: its like in the 400-year cycle from 2000 stands in."""
    whole, _, fraction = text[:-1].partition(".")
    cycles, year_in_cycle = divmod(int(whole[:-15]), 400)
    moment = datetime.fromisoformat(f"{2000 + year_in_cycle}{whole[-15:]}").replace(tzinfo=UTC)
    seconds = int(moment.timestamp()) + (cycles - 5) * _CYCLE_SECONDS
    return seconds * 1_000_000 + int(fraction.ljust(6, "0"))


def to_timestamp(instant_us: int, *, milliseconds: bool = False) -> str:
    """The text of an instant: six fraction digits, or three where `milliseconds`."""
    seconds, fraction = divmod(instant_us, 1_000_000)
    text = SECOND_TEXTS.get(seconds)
    if text is None:
        text = _cache_text(seconds)
    if milliseconds:
        return text + MILLISECOND_TEXTS[fraction // 1000]
    # From a table, as to format six digits takes twice as long as all the rest.
    return f"{text}.{_THREE_DIGITS[fraction // 1000]}{_THREE_DIGITS[fraction % 1000]}Z"


def _cache_text(seconds: int) -> str:
    cycles = 0
    if not -62_167_219_200 <= seconds < 253_402_300_800:
        cycles, seconds_in_cycle = divmod(seconds, _CYCLE_SECONDS)
        moment = datetime.fromtimestamp(seconds_in_cycle, UTC)
        year = moment.year + cycles * 400
        return f"{'-' if year < 0 else '+'}{abs(year):06d}{moment:-%m-%dT%H:%M:%S}"
    if seconds < -62_135_596_800:  # year 0, which datetime does not have
        return "0000" + _cache_text(seconds + _CYCLE_SECONDS)[4:]
    moment = datetime.fromtimestamp(seconds, UTC)
    text = f"{moment.year:04d}{moment:-%m-%dT%H:%M:%S}"
    if len(SECOND_TEXTS) >= _CACHE_LIMIT:
        SECOND_TEXTS.clear()
    SECOND_TEXTS[seconds] = text
    return text


_encoder = msgspec.json.Encoder(enc_hook=_encode_special)
to_json = _encoder.encode
"""One message as JSON, as the reference prints it."""


def to_json_lines(messages: Iterable[Message]) -> bytes:
    """Messages as newline-delimited JSON, each line ended."""
    return _encoder.encode_lines(messages)


_TYPES: dict[str, type[_Message]] = {str(t.__struct_config__.tag): t for t in _Message.__subclasses__()}


def from_json(data: bytes | str) -> Message:
    """The message that `to_json` printed; fields it does not have are UNSET."""
    fields = msgspec.json.decode(data)
    message_type = _TYPES[fields.pop("type")]
    names = message_type.__struct_encode_fields__
    values = [_value_of(fields.pop(name, UNSET)) for name in names]
    if fields:
        raise ValueError(f"a {message_type.__struct_config__.tag} has no field {', '.join(sorted(fields))}")
    return message_type(*values)  # type: ignore[return-value]


def _value_of(value: Any) -> Any:
    if type(value) is float:
        return js_number(value)
    if type(value) is list:
        return [_level_of(item) if type(item) is dict else item for item in value]
    return value


def _level_of(level: dict[str, Any]) -> BookLevel:
    return BookLevel(_value_of(level.get("price", UNSET)), _value_of(level.get("amount", UNSET)))
