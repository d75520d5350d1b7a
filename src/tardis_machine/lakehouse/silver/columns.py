"""What silver columns are made of: each reads one field of a payload into a typed Arrow column.

Invariant: a column holds exactly what the message said, or null where it said nothing. What its type can't hold is refused with a
ValueError that names the column, never rounded; only `computed` decimals are, as those are sums that the machine itself made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from ...pipeline.columns import DECIMAL, to_decimals, to_rounded_decimals
from ..decoding import REASON, check_instants, decode_each, decode_fields, enum_names, name_enum
from ..tables import Table
from .venue_identity import VENUE_COLUMNS

__all__ = [
    "PART",
    "Column",
    "Payload",
    "SilverTable",
    "boolean",
    "computed",
    "decimal",
    "double",
    "enum",
    "integer",
    "levels",
    "text",
    "timestamp",
    "to_levels",
    "to_offsets",
]

_DECIMAL_DDL = "DECIMAL(38, 18)"
_LEVELS = pa.list_(pa.struct({"price": DECIMAL, "amount": DECIMAL}))
_LEVELS_DDL = f"ARRAY<STRUCT<price: {_DECIMAL_DDL}, amount: {_DECIMAL_DDL}>>"


class Payload:
    """The payloads of a batch: the fields of whichever case each event has."""

    def __init__(self, payloads: pa.RecordBatch) -> None:
        self._cases = dict(zip(payloads.schema.names, payloads.columns, strict=True))
        self.count = payloads.num_rows

    def field(self, name: str) -> pa.Array:
        """A field, from the cases that have it."""
        found = [pc.struct_field(case, name) for case in self._cases.values() if case.type.get_field_index(name) >= 0]
        return found[0] if len(found) == 1 else pc.coalesce(*found)

    def case_names(self) -> pa.Array:
        """Which case each event has."""
        names = pa.nulls(self.count, pa.string())
        for name, case in self._cases.items():
            names = pc.if_else(pc.is_valid(case), name, names)
        return names


@dataclass(frozen=True)
class Column:
    """A typed column: its Spark and Arrow types, and how it is read from payloads."""

    ddl: str
    arrow: pa.DataType
    read: Callable[[Payload], pa.Array]


def text(field: str) -> Column:
    """Text as it is."""
    return Column("STRING", pa.string(), lambda payload: payload.field(field))


def boolean(field: str) -> Column:
    """True, false, or not said."""
    return Column("BOOLEAN", pa.bool_(), lambda payload: payload.field(field))


def decimal(*fields: str) -> Column:
    """A price or an amount, exact; of several fields the one that is set."""
    return Column(_DECIMAL_DDL, DECIMAL, lambda payload: _first_set(payload, fields, DECIMAL))


def computed(field: str) -> Column:
    """A number that was computed with doubles, rounded to the table's 18 fraction digits."""
    return Column(_DECIMAL_DDL, DECIMAL, lambda payload: to_rounded_decimals(payload.field(field)))


def double(field: str) -> Column:
    """A rate, a volatility or a greek: a double in the message, and a double here."""
    return Column("DOUBLE", pa.float64(), lambda payload: payload.field(field).cast(pa.float64()))


def integer(*fields: str) -> Column:
    """A whole number; of several fields the one that is set."""
    return Column("BIGINT", pa.int64(), lambda payload: _first_set(payload, fields, pa.int64()))


def timestamp(field: str) -> Column:
    """An instant."""
    return Column("TIMESTAMP", pa.timestamp("us", "UTC"), lambda payload: check_instants(payload.field(field), field))


def enum(path: str, renamed: Mapping[str, str] | None = None) -> Column:
    """The name of an enum's value, in lower case: `Trade.side`."""
    names = tuple((renamed or {}).get(name, name) for name in enum_names(path))
    field = path.partition(".")[2]
    return Column("STRING", pa.string(), lambda payload: name_enum(payload.field(field), names, field))


def levels(field: str, *, computed: bool = False) -> Column:
    """Price levels in the message's order, best first; those of a grouped book are computed."""
    convert = to_rounded_decimals if computed else to_decimals
    return Column(_LEVELS_DDL, _LEVELS, lambda payload: to_levels(payload.field(field), convert))


def to_levels(lists: pa.ListArray, convert: Callable[[pa.Array], pa.Array]) -> pa.ListArray:
    """Levels of decimal text to levels of decimals."""
    # `flatten` gives the items that the offsets mean: a sliced or masked list array holds others too.
    items = lists.flatten()
    columns = [convert(pc.struct_field(items, "price_str")), convert(pc.struct_field(items, "qty_str"))]
    struct = pa.StructArray.from_arrays(columns, fields=list(_LEVELS.value_type))
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return pa.ListArray.from_arrays(to_offsets(lengths), struct, type=_LEVELS, mask=lists.is_null() if lists.null_count else None)


def to_offsets(lengths: pa.Array) -> pa.Array:
    """Where each list of these lengths begins, and where the last one ends."""
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])


def _first_set(payload: Payload, fields: tuple[str, ...], kind: pa.DataType) -> pa.Array:
    converted = [_cast(array, kind) for array in map(payload.field, fields)]
    return converted[0] if len(converted) == 1 else pc.coalesce(*converted)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return to_decimals(array) if kind == DECIMAL and pa.types.is_string(array.type) else array.cast(kind)


def _of_part(field: str, ddl: str, kind: pa.DataType) -> Column:
    return Column(ddl, kind, lambda payload: pc.struct_field(payload.field("part"), field).cast(kind))


PART: Mapping[str, Column] = {
    "part": _of_part("index", "BIGINT", pa.int64()),
    "part_count": _of_part("count", "BIGINT", pa.int64()),
    "whole_event_id": _of_part("whole_event_id", "BINARY", pa.binary()),
}
"""Which part of a book that was too large for the bus a row is; null: it is whole."""


@dataclass(frozen=True)
class SilverTable:
    """One typed table: the payload cases that it takes and the columns that it makes of them."""

    name: str
    cases: tuple[str, ...]
    columns: Mapping[str, Column]

    @cached_property
    def table(self) -> Table:
        """Its declaration in the lake: what every event has, around what this kind has."""
        front = {"date": "DATE", "exchange": "STRING", "symbol": "STRING", "local_ts": "TIMESTAMP"}
        back = {"origin": "STRING", "session": "STRING", "sequence": "BIGINT", "event_id": "BINARY"}
        own = {name: column.ddl for name, column in self.columns.items()}
        # What is compared by what its venue says of it is looked for by the venue's time.
        skip_by = ("local_ts", "event_ts") if self.name in VENUE_COLUMNS else ("local_ts",)
        return Table(f"silver.{self.name}", {**front, **own, **back}, skip_by=skip_by)

    @property
    def ddl(self) -> str:
        """What `decode` returns, as Spark declares it."""
        return ", ".join([*(f"`{name}` {column.ddl}" for name, column in self.columns.items()), f"{REASON} STRING"])

    def decode(self, values: pa.Array) -> pa.Array:
        """One row for each event, with the reason where it does not fit."""
        return decode_each(values, self.to_rows, self._fields)

    @cached_property
    def _fields(self) -> pa.StructType:
        return pa.struct([pa.field(name, column.arrow) for name, column in self.columns.items()])

    def to_rows(self, values: pa.Array) -> pa.StructArray:
        """One row for each event; raises ValueError when any of them does not fit."""
        payload = Payload(decode_fields(values, self.cases))
        arrays = []
        for name, column in self.columns.items():
            try:
                arrays.append(column.read(payload).cast(column.arrow))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return pa.StructArray.from_arrays(arrays, fields=list(self._fields))
