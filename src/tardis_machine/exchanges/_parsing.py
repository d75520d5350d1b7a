"""Numbers and times of all exchanges, read as JavaScript reads them and returned as messages hold them.

Invariant: whatever an exchange sends, these functions return what the reference would print, and do not raise; but for `verbatim`,
which passes on no text, list or object as a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson

from ..brief import brief
from ..dates import parse_instant_us
from ..messages import (
    MILLISECOND_TEXTS,
    MILLISECONDS,
    SECOND_TEXTS,
    SECONDS_OF,
    UNSET,
    BookLevel,
    is_calendar_second,
    js_number,
    parse_timestamp_us,
    to_json,
    to_timestamp,
)

__all__ = [
    "expiration_on",
    "level_rows",
    "levels",
    "levels_as_sent",
    "levels_by_side",
    "next_hour",
    "nonzero_number",
    "number_if_there",
    "number_unless_null",
    "optional_number",
    "text_of",
    "timestamp_from_expiration",
    "timestamp_from_ms",
    "timestamp_from_seconds",
    "timestamp_from_text",
    "timestamp_from_us",
    "to_number",
    "verbatim",
]

_parse_json = orjson.loads
_EXACT = 2**53
_LEAST_EXACT = -_EXACT


def to_number(value: Any) -> float:
    """`Number(value)`: text in any form JavaScript takes; "" and null are 0; what is absent or no number is NaN (prints null)."""
    if type(value) is str:
        try:
            number = _parse_json(value)
        except ValueError:
            return _parse_number_text(value)
    else:
        number = value
    if type(number) is float:
        # Most have a fraction, and print as they are.
        return number if number > 1e-5 and not number.is_integer() else js_number(number)
    if type(number) is int and -_EXACT < number < _EXACT:
        return number
    return _settled(number, value)


def _settled(number: Any, value: Any) -> float:
    """The number that was parsed from a value, in the form that prints as in JavaScript."""
    if type(number) is float:
        return js_number(number)
    if type(number) is int and -_EXACT < number < _EXACT:
        return number
    return _parse_number_text(value) if type(value) is str else _convert(value)


_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_PREFIXED = re.compile(r"0(?:[xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")
_INFINITY = {"Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
_SPACES = "\t\n\v\f\r \xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000\ufeff"


def _parse_number_text(text: str) -> float:
    text = text.strip(_SPACES)
    if not text:
        return 0
    if _DECIMAL.fullmatch(text):
        return js_number(float(text))
    if _PREFIXED.fullmatch(text):
        return _rounded(int(text, 0))
    return _INFINITY.get(text, math.nan)


def _convert(value: Any) -> float:
    """The rare kinds: null, true, integers that no double holds, arrays (which JavaScript joins to text), objects."""
    if value is None:
        return 0
    if isinstance(value, int):
        return _rounded(int(value))
    if isinstance(value, float):
        return js_number(value)
    if isinstance(value, list):
        if not value or value == [None]:
            return 0
        return to_number(value[0]) if len(value) == 1 and type(value[0]) is not bool else math.nan
    return math.nan


def _rounded(value: int) -> float:
    try:
        return js_number(float(value))
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def verbatim(value: Any) -> Any:
    """A JSON number that is passed on; only its type may change, so that it prints as in JavaScript. Null and absent are passed on too.

    Text is read where it holds a number. What is none raises a TypeError: the reference passes that on, and no client could read it.
    """
    kind = type(value)
    if kind is int:
        return value if _LEAST_EXACT < value < _EXACT else _rounded(value)
    if kind is float:
        return js_number(value)
    if value is None or value is UNSET:
        return value
    number = to_number(value) if kind is str and value.strip(_SPACES) else math.nan
    if not math.isfinite(number):
        raise TypeError(f"{brief(value)} is no number")
    return number


def optional_number(value: Any) -> Any:
    """A number that may be missing: UNSET for what is absent, null, empty or not finite; 0 is a value."""
    if value is None or value is UNSET or value == "":
        return UNSET
    number = to_number(value)
    return number if type(number) is int or math.isfinite(number) else UNSET


def nonzero_number(value: Any) -> Any:
    """Like `optional_number`, for exchanges that write 0 where they have no value."""
    number = optional_number(value)
    return UNSET if number == 0 else number


def number_if_there(row: Mapping[str, Any], name: str) -> Any:
    """`to_number` of a field, null included; UNSET where it is absent."""
    return to_number(row[name]) if name in row else UNSET


def number_unless_null(row: Mapping[str, Any], name: str) -> Any:
    """`to_number` of a field, empty text included; UNSET where it is absent or null."""
    value = row.get(name)
    return UNSET if value is None else to_number(value)


def levels(pairs: Iterable[Sequence[Any]]) -> list[BookLevel]:
    """`[[price, amount, …], …]`, of text or numbers, as book levels."""
    found: list[BookLevel] = []
    append, known = found.append, _PRICES.get
    for pair in pairs:
        text, amount = pair[0], pair[1]
        price = known(text) if type(text) is str else to_number(text)
        if price is None:
            price = _remember_price(text)
        # As `to_number` does, without a call for each number: this is where most of a book's time goes.
        if type(amount) is str:
            try:
                amount = _parse_json(amount)
            except ValueError:
                amount = to_number(amount)
        if type(amount) is not float or amount <= 1e-5 or amount.is_integer():
            amount = _settled(amount, pair[1])
        append(BookLevel(price, amount))
    return found


def levels_as_sent(rows: Iterable[Sequence[Any]], first: int = 0, removed_by: str | None = None) -> list[BookLevel]:
    """`levels` of numbers that are passed on as they are; the price is in column `first`.

    A row that begins with `removed_by` removes its level.
    """
    return [
        BookLevel(verbatim(row[first]), 0 if removed_by is not None and row[0] == removed_by else verbatim(row[first + 1]))
        for row in rows
    ]


def levels_by_side(
    rows: Iterable[Sequence[Any]], buy: str = "buy", sell: str = "sell"
) -> tuple[list[BookLevel], list[BookLevel]]:
    """`[[side, price, amount, …], …]` as bids and asks; a row of neither side is no level."""
    bids: list[BookLevel] = []
    asks: list[BookLevel] = []
    for row in rows:
        side = row[0]
        if side == buy:
            bids.append(BookLevel(to_number(row[1]), to_number(row[2])))
        elif side == sell:
            asks.append(BookLevel(to_number(row[1]), to_number(row[2])))
    return bids, asks


# A book's changes come back to the same few prices: nearly all were read before. Amounts hardly ever were.
_PRICES: dict[str, float] = {}
_PRICES_LIMIT = 50_000


def _remember_price(text: str) -> float:
    if len(_PRICES) >= _PRICES_LIMIT:
        _PRICES.clear()
    price = _PRICES[text] = to_number(text)
    return price


def level_rows(rows: Iterable[Mapping[str, Any]], price: str = "price", amount: str = "size") -> list[BookLevel]:
    """`[{price: …, size: …}, …]` as book levels; `price` and `amount` say how the exchange names them."""
    return [BookLevel(to_number(row.get(price, UNSET)), to_number(row.get(amount, UNSET))) for row in rows]


_LAST_MS = 8_640_000_000_000_000  # as far from 1970 as a JavaScript date goes, both ways
_END_US = _LAST_MS * 1000 + 1000


def timestamp_from_ms(value: Any) -> str | None:
    """`new Date(value)` of milliseconds: the fraction is dropped; None (printed as null) for what is no date."""
    if type(value) is int:
        text = SECOND_TEXTS.get(value // 1000)
        if text is not None:
            return text + MILLISECOND_TEXTS[value % 1000]
    else:
        if type(value) is str:
            return timestamp_from_text(value)
        number = value if type(value) is float else _convert(value)
        if not math.isfinite(number):
            return None
        value = int(number)
    if -_LAST_MS <= value <= _LAST_MS:
        return to_timestamp(value * 1000, milliseconds=True)
    return None


def timestamp_from_us(value: Any) -> str | None:
    """A time in microseconds; numbers up to 1e15 can't be that, and are taken as milliseconds."""
    if type(value) is int and value <= 1_000_000_000_000_000:
        return timestamp_from_ms(value)
    if type(value) is not int or value >= _EXACT:
        number = to_number(value)
        if not math.isfinite(number):
            return None
        # Divided as doubles are, which shows past 2**53: some exchanges send nanoseconds.
        value = int(number / 1000) * 1000 + int(number % 1000) if number > 1e15 else int(number)
    if value <= 1_000_000_000_000_000:
        return timestamp_from_ms(value)
    return to_timestamp(value) if value < _END_US else None


def timestamp_from_seconds(value: Any) -> str | None:
    """A time in seconds with a fraction, as text or number: milliseconds and microseconds are each cut from their own product."""
    seconds = to_number(value)
    milliseconds = seconds * 1000.0
    if not -_LAST_MS <= milliseconds <= _LAST_MS:
        return None
    text: Any = timestamp_from_ms(int(milliseconds))
    # Three more digits, from the table of milliseconds: to format them would double the time.
    return text[:-1] + MILLISECOND_TEXTS[math.floor(seconds * 1e6) % 1000][1:]


def timestamp_from_text(text: Any, micros: bool = False) -> str | None:
    """`new Date(text)`: three fraction digits, or six where `micros` (text of an unusual length has none to take: 000).

    Text in the usual forms is only cut to length: recorded messages hold little else.
    """
    if type(text) is not str:
        return timestamp_from_ms(text)
    length = len(text)
    if text[:19] in SECONDS_OF:
        if not micros:
            if text[19:] in MILLISECONDS:
                return text
        elif length == 27 and text[26] == "Z" and text[19] == "." and text[20:26].isdecimal():
            return text
    elif not micros and text[19:] in MILLISECONDS and is_calendar_second(text):
        return text
    if (
        length > 24
        and text[19] == "."
        and (text[-1] == "Z" or (length == 32 and text[-6:] == "+00:00"))
        and text[20:26].isdecimal()
        and is_calendar_second(text)
    ):
        if not micros:
            return text[:23] + "Z"
        if length == 27:
            return text
        if length in _MICROSECOND_LENGTHS:
            return text[:26] + "Z"
    instant_us = _known_instant_us(text) if length < _DATE_LENGTH else parse_instant_us(text)
    if instant_us is None:
        return None
    if not micros:
        return to_timestamp(instant_us, milliseconds=True)
    digits = text[23:26] if length in _MICROSECOND_LENGTHS else ""
    return to_timestamp(instant_us // 1000 * 1000 + (int(digits) if digits.isdecimal() else 0))


# Times of funding come again with each message for hours.
_known_instant_us = lru_cache(1000)(parse_instant_us)
_DATE_LENGTH = 64
# The fraction ends in …ssssssZ, …sssssssZ, …sssssssssZ or …ssssss+00:00.
_MICROSECOND_LENGTHS = frozenset((27, 28, 30, 32))

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


@lru_cache(10_000)
def timestamp_from_expiration(text: str) -> str | None:
    """`8JUN20`, as options are named: they expire at 08:00 UTC."""
    day, month, year = text[:-5], text[-5:-2], text[-2:]
    if month not in _MONTHS or not (day.isdecimal() and year.isdecimal()) or not 1 <= int(day) <= 31:
        return None
    return expiration_on(2000 + int(year), _MONTHS.index(month) + 1, int(day))


def expiration_on(year: int, month: int, day: int) -> str:
    """08:00 UTC of a day. Months and days that no calendar has go on into the next, as in JavaScript."""
    first = datetime(year + (month - 1) // 12, (month - 1) % 12 + 1, 1, 8, tzinfo=UTC)
    return to_timestamp(int((first + timedelta(days=day - 1)).timestamp()) * 1_000_000, milliseconds=True)


_HOUR_US = 3_600_000_000


def next_hour(timestamp: str | None) -> str | None:
    """The full hour after a time, which is when many exchanges pay funding; None for what is no date."""
    return None if timestamp is None else _hour_after(timestamp.partition(":")[0])


@lru_cache(1000)
def _hour_after(hour: str) -> str:
    return to_timestamp(parse_timestamp_us(f"{hour}:00:00.000Z") + _HOUR_US, milliseconds=True)


def text_of(value: Any) -> str:
    """`String(value)`: an id as text, every digit kept; what is absent reads undefined, as it does in JavaScript."""
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    if value is UNSET:
        return "undefined"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else to_json(js_number(value) if type(value) is float else value).decode()


# Where it was compiled, what is frequent is read there; all else is left to the functions above.
with suppress(ImportError):
    from ._parsing_compiled import *  # noqa: F403
