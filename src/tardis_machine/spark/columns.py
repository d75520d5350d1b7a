"""Which columns of a format a query has, and how Spark takes them.

Spark does not tell a format that is written in Python what a query needs; who names columns (`spark.read.schema(…)`) has those alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ..errors import OptionsError

__all__ = ["check_columns", "to_spark"]


def check_columns(schema: StructType, columns: pa.Schema) -> tuple[str, ...]:
    """The columns that are wanted; OptionsError for one that there is not, or of another type."""
    known = {field.name: field.dataType for field in from_arrow_schema(columns)}
    for field in schema:
        if field.name not in known:
            raise OptionsError(f"schema: there is no column {field.name!r}; there are {', '.join(known)}", "schema")
        if field.dataType != known[field.name]:
            expected, got = known[field.name].simpleString(), field.dataType.simpleString()
            raise OptionsError(f"schema: {field.name} is of type {expected}, got {got}", "schema")
    return tuple(schema.fieldNames())


def to_spark(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Some columns, as Spark takes them."""
    target = to_arrow_schema(from_arrow_schema(pa.schema([batch.schema.field(name) for name in names])), timezone="UTC")
    return pa.RecordBatch.from_arrays([batch.column(name).cast(target.field(name).type) for name in names], schema=target)
