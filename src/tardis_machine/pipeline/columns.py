"""Messages as Arrow columns: a type for each field of each kind of message, under the names that the lake's silver tables have.

Prices and amounts are doubles, as they are in messages, or exact decimals, as they are in the lake. A batch may hold messages of several
kinds in their order: its columns are those of all kinds that were asked for, null where a kind has no such field.

Invariant: a column holds what the message says, or null where it says nothing. What its type can't hold is a ValueError that names the
column, never rounded; only numbers that the machine computed itself are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..bronze.payload_case import payload_case_of
from ..bronze.wire import decimal
from ..computed.book_snapshot import BookSnapshots
from ..computed.data_types import parse_data_types
from ..messages import UNSET, Message, parse_timestamp_us

__all__ = ["COLUMNS", "DECIMAL", "kind_of", "kinds_of", "schema_of", "to_batch", "to_decimals", "to_rounded_decimals"]

DECIMAL = pa.decimal128(38, 18)
"""Prices and amounts where they are exact."""
_DIGITS = 20  # before the point
INSTANT = pa.timestamp("us", "UTC")
_WIDE = pa.decimal256(76, 55)  # for every double below 1e20 that is not too small to matter

_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999

Values = Sequence[Any]


class MessageColumn(NamedTuple):
    """A typed column, and how it is read from messages of one kind."""

    type: Callable[[bool], pa.DataType]
    """Where numbers are exact, and where they are not."""
    read: Callable[[Values, bool], pa.Array]


def _column(kind: pa.DataType, read: Callable[[Values], pa.Array]) -> MessageColumn:
    return MessageColumn(lambda _: kind, lambda messages, _: read(messages))


def _of(attribute: str) -> Callable[[Values], list[Any]]:
    get = attrgetter(attribute)
    return lambda messages: [None if value is UNSET else value for value in map(get, messages)]


def _text(attribute: str) -> MessageColumn:
    get = _of(attribute)
    return _column(pa.string(), lambda messages: pa.array(get(messages), pa.string()))


def _id(attribute: str) -> MessageColumn:
    # Some exchanges number their trades.
    get = _of(attribute)

    def read(messages: Values) -> pa.Array:
        values = get(messages)
        return pa.array([value if value is None or isinstance(value, str) else _digits(value) for value in values], pa.string())

    return _column(pa.string(), read)


def _digits(value: Any) -> str | None:
    if type(value) is int:
        return str(value)
    digits = repr(value)
    if "e" not in digits and "n" not in digits:
        return digits
    text = decimal(value)
    return None if text is None else text.decode()


def _integer(attribute: str) -> MessageColumn:
    get = _of(attribute)
    return _column(pa.int64(), lambda messages: pa.array(get(messages), pa.int64()))


def _boolean(attribute: str) -> MessageColumn:
    get = _of(attribute)
    return _column(pa.bool_(), lambda messages: pa.array(get(messages), pa.bool_()))


def _texts(attribute: str) -> MessageColumn:
    get = _of(attribute)
    return _column(pa.list_(pa.string()), lambda messages: pa.array(get(messages), pa.list_(pa.string())))


def _instant(attribute: str) -> MessageColumn:
    get = _of(attribute)
    return _column(INSTANT, lambda messages: to_instants(get(messages)))


def to_instants(texts: Values) -> pa.Array:
    """Timestamps of messages; ValueError for one that is not in the years 1 to 9999 that tables can hold."""
    try:
        instants = pa.array(texts, pa.string()).cast(INSTANT)
    except pa.ArrowInvalid:
        # A year that Arrow does not read.
        instants = pa.array([None if text is None else parse_timestamp_us(text) for text in texts], pa.int64()).cast(INSTANT)
    bounds = pc.min_max(instants.cast(pa.int64()))
    earliest, latest = bounds["min"].as_py(), bounds["max"].as_py()
    if earliest is not None and (earliest < _FIRST_US or latest > _LAST_US):
        raise ValueError("it is not within the years 1 to 9999")
    return instants


def _double(attribute: str) -> MessageColumn:
    """A rate, a volatility or a greek: a double in any case."""
    get = _of(attribute)
    return _column(pa.float64(), lambda messages: _doubles(get(messages)))


def _number(attribute: str, *, is_computed: bool = False) -> MessageColumn:
    """A price or an amount."""
    get = _of(attribute)
    return MessageColumn(_number_type, lambda messages, exact: _numbers(get(messages), exact, is_computed))


def _number_type(exact: bool) -> pa.DataType:
    return DECIMAL if exact else pa.float64()


def _numbers(values: Values, exact: bool, is_computed: bool) -> pa.Array:
    return _decimals(values, is_computed) if exact else _doubles(values)


def _doubles(values: Values) -> pa.Array:
    try:
        doubles = pa.array(values, pa.float64())
    except pa.ArrowInvalid:
        # An integer that is no double: the nearest one.
        doubles = pa.array([None if value is None else float(value) for value in values], pa.float64())
    # What is not finite prints as null.
    return pc.if_else(pc.is_finite(doubles), doubles, pa.scalar(None, pa.float64()))


def _decimals(values: Values, is_computed: bool) -> pa.Array:
    texts = pa.array([None if value is None else _digits(value) for value in values], pa.string())
    return to_rounded_decimals(texts) if is_computed else to_decimals(texts)


def to_decimals(texts: pa.Array) -> pa.Array:
    """Plain decimal text to decimals; ValueError where one has too many digits, before or after the point."""
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is not None and longest > _DIGITS:
        # Arrow's cast overflows unseen.
        whole = pc.utf8_ltrim(pc.replace_substring_regex(texts, r"\..*", ""), "-")
        if pc.max(pc.binary_length(whole)).as_py() > _DIGITS:
            raise ValueError(f"a number has more than {_DIGITS} digits before the point")
    return texts.cast(DECIMAL)


def to_rounded_decimals(texts: pa.Array) -> pa.Array:
    """The same for what was computed with doubles: digits past the 18th are noise of an addition."""
    try:
        return to_decimals(texts)
    except pa.ArrowInvalid:
        return pc.round(texts.cast(_WIDE), 18).cast(DECIMAL)


def _levels(side: str, *, is_computed: bool = False) -> MessageColumn:
    """Price levels in the message's order, best first."""
    get = attrgetter(side)

    def kind(exact: bool) -> pa.DataType:
        return pa.list_(pa.struct({"price": _number_type(exact), "amount": _number_type(exact)}))

    def read(messages: Values, exact: bool) -> pa.Array:
        sides = list(map(get, messages))
        levels = [level for levels in sides for level in levels]
        columns = [_numbers(_of_levels(levels, name), exact, is_computed) for name in ("price", "amount")]
        offsets = np.cumsum([0, *map(len, sides)], dtype=np.int32)
        fields = list(kind(exact).value_type)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(columns, fields=fields), type=kind(exact))

    return MessageColumn(kind, read)


def _of_levels(levels: Values, name: str) -> list[Any]:
    """Prices or amounts of levels."""
    try:
        values = list(map(attrgetter(name), levels))
    except AttributeError:
        values = [UNSET]
    # Nearly always all of them have both.
    return [_of_level(level, name) for level in levels] if UNSET in values else values


def _of_level(level: Any, name: str) -> Any:
    # A snapshot that is deeper than its book has levels without either.
    value = None if level is None else getattr(level, name)
    return None if value is UNSET else value


def _top(side: str, name: str) -> MessageColumn:
    """Price or amount of the only level of a quote's side."""
    get = attrgetter(side)

    def read(messages: Values, exact: bool) -> pa.Array:
        return _numbers([_of_level(get(message)[0], name) for message in messages], exact, is_computed=False)

    return MessageColumn(_number_type, read)


_EXECUTION = {"price": _number("price"), "amount": _number("amount"), "side": _text("side")}
_EVENT_TS = {"event_ts": _instant("timestamp")}

COLUMNS: Mapping[str, Mapping[str, MessageColumn]] = {
    "trade": {**_EVENT_TS, "trade_id": _id("id"), **_EXECUTION},
    "book_change": {**_EVENT_TS, "is_snapshot": _boolean("is_snapshot"), "bids": _levels("bids"), "asks": _levels("asks")},
    "book_snapshot": {
        **_EVENT_TS,
        "name": _text("name"),
        "depth": _integer("depth"),
        "interval_ms": _integer("interval"),
        "grouping": _number("grouping"),
        "bids": _levels("bids", is_computed=True),
        "asks": _levels("asks", is_computed=True),
    },
    "quote": {
        **_EVENT_TS,
        "name": _text("name"),
        "interval_ms": _integer("interval"),
        "bid_price": _top("bids", "price"),
        "bid_amount": _top("bids", "amount"),
        "ask_price": _top("asks", "price"),
        "ask_amount": _top("asks", "amount"),
    },
    "derivative_ticker": {
        **_EVENT_TS,
        "last_price": _number("last_price"),
        "open_interest": _number("open_interest"),
        "funding_rate": _double("funding_rate"),
        "funding_ts": _instant("funding_timestamp"),
        "predicted_funding_rate": _double("predicted_funding_rate"),
        "index_price": _number("index_price"),
        "mark_price": _number("mark_price"),
    },
    "liquidation": {**_EVENT_TS, "liquidation_id": _id("id"), **_EXECUTION},
    "option_summary": {
        **_EVENT_TS,
        "option_type": _text("option_type"),
        "strike_price": _number("strike_price"),
        "expiration_ts": _instant("expiration_date"),
        "best_bid_price": _number("best_bid_price"),
        "best_bid_amount": _number("best_bid_amount"),
        "best_bid_iv": _double("best_bid_iv"),
        "best_ask_price": _number("best_ask_price"),
        "best_ask_amount": _number("best_ask_amount"),
        "best_ask_iv": _double("best_ask_iv"),
        "last_price": _number("last_price"),
        "open_interest": _number("open_interest"),
        "mark_price": _number("mark_price"),
        "mark_iv": _double("mark_iv"),
        **{greek: _double(greek) for greek in ("delta", "gamma", "vega", "theta", "rho")},
        "underlying_price": _number("underlying_price"),
        "underlying_index": _text("underlying_index"),
    },
    "book_ticker": {
        **_EVENT_TS,
        **{name: _number(name) for name in ("bid_price", "bid_amount", "ask_price", "ask_amount")},
    },
    "trade_bar": {
        **_EVENT_TS,
        "name": _text("name"),
        "kind": _text("kind"),
        "interval": _number("interval"),
        **{name: _number(name) for name in ("open", "high", "low", "close")},
        **{name: _number(name, is_computed=True) for name in ("volume", "buy_volume", "sell_volume")},
        "trades": _integer("trades"),
        "vwap": _number("vwap", is_computed=True),
        "open_ts": _instant("open_timestamp"),
        "close_ts": _instant("close_timestamp"),
    },
    "error": {
        "details": _text("details"),
        "subsequent_errors": _integer("subsequent_errors_count"),
        "error_code": _text("code"),
    },
    "disconnect": {"reason": _text("reason"), "close_code": _integer("close_code"), "symbols": _texts("symbols")},
}
"""Kind of message to its own columns; all have `type` (the kind), `exchange`, `symbol` and `local_ts` before them."""

_FRONT = {
    "type": _text("type"),
    "exchange": _text("exchange"),
    # Errors and disconnects are of no symbol.
    "symbol": _column(pa.string(), lambda messages: pa.array([getattr(item, "symbol", None) for item in messages], pa.string())),
    "local_ts": _instant("local_timestamp"),
}
_GROUPED = "grouped_book_snapshot"


def kind_of(message: Message) -> str:
    """Which columns a message has."""
    case = payload_case_of(message)
    return "book_snapshot" if case == _GROUPED else case


def kinds_of(data_types: Sequence[str], *, with_disconnects: bool = False, with_errors: bool = False) -> list[str]:
    """The kinds of message that a request for these data types brings; OptionsError for a name that is none."""
    wanted = parse_data_types(data_types)
    found = {name for name in wanted.normalizers if name in data_types}
    for item in wanted.computables:
        is_quote = isinstance(item, BookSnapshots) and item.name.startswith("quote")
        found.add("quote" if is_quote else str(item.RESULT.__struct_config__.tag))
    found |= {kind for kind, is_asked in (("disconnect", with_disconnects), ("error", with_errors)) if is_asked}
    return [kind for kind in COLUMNS if kind in found]


def schema_of(kinds: Iterable[str], *, exact: bool = False) -> pa.Schema:
    """The columns of batches that hold messages of these kinds."""
    columns = dict(_FRONT)
    for kind in kinds:
        columns |= COLUMNS[kind]
    return pa.schema({name: column.type(exact) for name, column in columns.items()})


def to_batch(
    messages: Sequence[Message], kinds: Sequence[str], *, exact: bool = False, names: Collection[str] | None = None
) -> pa.RecordBatch:
    """Messages of these kinds in their order; others are passed over. `names`: the only columns that are made."""
    schema = schema_of(kinds, exact=exact)
    if names is not None:
        schema = pa.schema([field for field in schema if field.name in names])
    found: dict[str, list[int]] = {kind: [] for kind in kinds}
    place = 0
    # Messages come in runs of one kind.
    for kind, run in groupby(map(kind_of, messages)):
        start, place = place, place + sum(1 for _ in run)
        if kind in found:
            found[kind] += range(start, place)
    parts = [
        _batch_of(kind, [messages[place] for place in places], schema, exact=exact) for kind, places in found.items() if places
    ]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pa.RecordBatch.from_pylist([], schema)
    order = np.argsort(np.concatenate([places for places in found.values() if places]), kind="stable")
    (batch,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return batch.take(pa.array(order))


def _batch_of(kind: str, messages: Sequence[Any], schema: pa.Schema, *, exact: bool) -> pa.RecordBatch:
    count = len(messages)
    arrays = []
    for field in schema:
        column = _FRONT.get(field.name) or COLUMNS[kind].get(field.name)
        try:
            if field.name == "type":
                arrays.append(pa.repeat(pa.scalar(kind, pa.string()), count))
            else:
                arrays.append(pa.nulls(count, field.type) if column is None else column.read(messages, exact))
        except OverflowError:
            raise ValueError(f"{field.name} of a {kind} does not fit its column: it is no int64") from None
        except ValueError as error:
            raise ValueError(f"{field.name} of a {kind} does not fit its column: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
