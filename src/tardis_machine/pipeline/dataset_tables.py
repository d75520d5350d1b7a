"""Rows of datasets as Arrow tables, for the files that are made of them.

Invariant: a number is the one that the row has: prices and amounts are decimals of 16 places.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import TYPE_CHECKING

from ..errors import MissingExtraError
from .csv_rows import Dataset

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PLACES", "to_table"]

PLACES = 16
"""Of decimals."""

_TEXTS = frozenset(("exchange", "symbol", "id", "side"))


def to_table(dataset: Dataset, parts: Iterable[bytes]) -> pa.Table:
    """The rows of all parts, each of which ends with a row's end."""
    try:
        import pyarrow as pa
        import pyarrow.csv
    except ImportError:
        raise MissingExtraError("export nautilus and export hftbacktest", "export") from None
    names = dataset.columns.split(",")
    types: dict[str, pa.DataType] = {name: pa.decimal128(38, PLACES) for name in names}
    types |= {name: pa.string() for name in names if name in _TEXTS}
    types |= {name: pa.int64() for name in names if name.endswith("timestamp")}
    if "is_snapshot" in types:
        types["is_snapshot"] = pa.bool_()
    options = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    read = pyarrow.csv.ReadOptions(column_names=names)
    tables = [pyarrow.csv.read_csv(BytesIO(part), read, convert_options=options) for part in parts if part]
    schema = pa.schema(list(types.items()))
    return pa.concat_tables(tables) if tables else schema.empty_table()
