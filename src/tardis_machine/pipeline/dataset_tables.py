"""Rows of datasets as Arrow tables, for the files that are made of them.

Invariant: a number is the one that the row has: prices and amounts are text until it is known what they are to be.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import TYPE_CHECKING

from ..errors import MissingExtraError, TardisMachineError
from .csv_rows import Dataset

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PLACES", "to_table", "with_decimals"]

PLACES = 16
"""Of decimals."""

NUMBERS = frozenset(("price", "amount", "bid_price", "bid_amount", "ask_price", "ask_amount"))


def to_table(dataset: Dataset, parts: Iterable[bytes]) -> pa.Table:
    """The rows of all parts, each of which ends with a row's end."""
    try:
        import pyarrow as pa
        import pyarrow.csv
    except ImportError:
        raise MissingExtraError("export nautilus and export hftbacktest", "export") from None
    names = dataset.columns.split(",")
    types: dict[str, pa.DataType] = {name: pa.string() for name in names}
    types |= {name: pa.int64() for name in names if name.endswith("timestamp")}
    if "is_snapshot" in types:
        types["is_snapshot"] = pa.bool_()
    options = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    read = pyarrow.csv.ReadOptions(column_names=names)
    tables = [pyarrow.csv.read_csv(BytesIO(part), read, convert_options=options) for part in parts if part]
    schema = pa.schema(list(types.items()))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def with_decimals(table: pa.Table) -> pa.Table:
    """With numbers as decimals, rounded to `PLACES` where they have more, as sums of doubles have that exchanges print."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.decimal128(38, PLACES)
    for place, name in enumerate(table.column_names):
        if name in NUMBERS:
            try:
                column = table[name].cast(wanted)
            except pa.ArrowInvalid:
                try:
                    column = pc.round(table[name].cast(pa.decimal256(76, 38)), PLACES).cast(wanted)
                except pa.ArrowInvalid as error:
                    raise TardisMachineError(f"{name}: a number has more digits than a catalog can hold ({error})") from None
            table = table.set_column(place, name, column)
    return table
