"""The format `tardis-events`: what a bus holds, a row a record, with the envelope of its event; or the messages in it, typed.

Executors read the bus themselves, through the readers of the lake's sources; Kafka and files too, which the lake's jobs leave to Spark.

Invariant: no record is passed over. One that can't be read is a row with its bytes and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ..errors import MissingExtraError, OptionsError
from ..lakehouse.decoding import REASON
from ..lakehouse.envelope import ENVELOPE, decode_envelopes
from ..lakehouse.silver import SILVER_TABLES
from ..lakehouse.silver.columns import SilverTable
from ..lakehouse.sources import records
from ..lakehouse.sources.options import SourceOptions
from ..lakehouse.sources.partitions import PartitionReader
from ..lakehouse.sources.spark_readers import BusReader, BusStreamReader, ToRows
from ..settings import Settings, from_format_options
from ..settings.buses import required_options
from ..settings.option import one_of
from ..settings.sources import as_format_option
from .columns import check_columns, to_spark

__all__ = ["EventsDataSource", "to_events", "to_messages"]

_SOURCES = "tardis_machine.lakehouse.sources"
_READERS = {
    "files": ("files_reader", "FilesReader", "FilesOptions", "file"),
    "kafka": ("kafka_reader", "KafkaReader", "KafkaBusOptions", "kafka"),
    "redis": ("redis", "RedisReader", "RedisOptions", "redis"),
    "nats": ("nats", "NatsReader", "NatsOptions", "nats"),
    "kinesis": ("kinesis", "KinesisReader", "KinesisOptions", "kinesis"),
}
"""By what `from` may be: the module, the reader and its options in it, and the bus in settings."""

_EVENTS = pa.schema([*ENVELOPE, pa.field(REASON, pa.string()), *records.SCHEMA])
_FRONT = {"type": pa.string(), "exchange": pa.string(), "symbol": pa.string(), "local_ts": ENVELOPE.field("local_ts").type}
_BACK = {name: ENVELOPE.field(name).type for name in ("origin", "session", "sequence", "event_id")}


class ReadBus(NamedTuple):
    """A bus, and how it is read."""

    kind: type[PartitionReader[Any]]
    options: SourceOptions


def find_bus(settings: Settings) -> ReadBus:
    """The bus that the options of the format name; SettingsError where they lack what it needs."""
    if settings.from_ is None:
        raise OptionsError(f"from: expected the bus to read, one of {', '.join(_READERS)}; it is not given", "from")
    module, reader, options, bus = _READERS[settings.from_]
    if bus not in settings.buses:
        needed = " and ".join(one_of(tuple(as_format_option(option) for option in either)) for either in required_options(bus))
        raise OptionsError(f"from: {settings.from_} needs {needed}", "from")
    try:
        found = import_module(f"{_SOURCES}.{module}")
    except ImportError:
        raise MissingExtraError(f"Reading {settings.from_}", "aws" if bus == "kinesis" else bus) from None
    return ReadBus(getattr(found, reader), getattr(found, options).from_settings(settings, bus))


def to_tables(data_types: Sequence[str]) -> tuple[SilverTable, ...]:
    """The typed tables that these kinds of message stand in."""
    known = {case: table for table in SILVER_TABLES for case in table.cases}
    for name in data_types:
        if name not in known:
            raise OptionsError(f"dataTypes: expected some of {', '.join(known)}, got {name!r}", "dataTypes")
    return tuple({known[name].name: known[name] for name in data_types}.values())


def columns_of(tables: Sequence[SilverTable]) -> pa.Schema:
    """What rows have: records with their envelopes, or the columns of the tables."""
    if not tables:
        return _EVENTS
    own = {name: column.arrow for table in tables for name, column in table.columns.items()}
    return pa.schema({**_FRONT, **own, **_BACK, REASON: pa.string()})


def to_events(names: Sequence[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Records as rows, of some columns of `_EVENTS`."""
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True)) | _envelopes(batch)
        yield to_spark(_shaped(columns, _EVENTS, names, len(batch)), names)


def to_messages(
    cases: frozenset[str], tables: Sequence[SilverTable], names: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The messages of some cases in records, in their order; what can't be read is a row with the reason."""
    schema = columns_of(tables)
    for batch in batches:
        envelopes = _envelopes(batch)
        case, values = envelopes["payload_case"].cast(pa.string()), batch.column("value")
        parts, places = [], []
        for table in (None, *tables):
            wanted = pa.array([*cases.intersection(table.cases)]) if table is not None else None
            mask = pc.is_in(case, wanted) if wanted is not None else pc.is_valid(envelopes[REASON])
            place = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
            if not len(place):
                continue
            columns = {name: column.take(pa.array(place)) for name, column in envelopes.items()}
            columns["type"] = columns["payload_case"]
            if table is not None:
                rows = table.decode(values.take(pa.array(place)))
                columns |= {field.name: pc.struct_field(rows, index) for index, field in enumerate(rows.type)}
            parts.append(_shaped(columns, schema, names, len(place)))
            places.append(place)
        if parts:
            order = np.argsort(np.concatenate(places), kind="stable")
            (whole,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
            yield to_spark(whole.take(pa.array(order)), names)


def _envelopes(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    found = decode_envelopes(batch.column("value"))
    return {field.name: pc.struct_field(found, index) for index, field in enumerate(found.type)}


def _shaped(columns: Mapping[str, pa.Array], schema: pa.Schema, names: Sequence[str], rows: int) -> pa.RecordBatch:
    """Some columns of a schema; null where there is none."""
    wanted = pa.schema([schema.field(name) for name in names])
    arrays = [columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows, field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


class EventsDataSource(DataSource):
    """What Spark knows as `tardis-events`."""

    @classmethod
    def name(cls) -> str:
        """As users write it."""
        return "tardis-events"

    @cached_property
    def settings(self) -> Settings:
        """What the options say."""
        return from_format_options("tardis-events", dict(self.options))

    @cached_property
    def tables(self) -> tuple[SilverTable, ...]:
        """The typed tables that were asked for."""
        return to_tables(self.settings.data_types or ())

    def schema(self) -> StructType:
        """Of records, or of the kinds of message that are asked for."""
        return from_arrow_schema(columns_of(self.tables))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of all that there is, in the columns of `schema`."""
        bus = find_bus(self.settings)
        return BusReader(bus.kind, bus.options, self._rows_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """From the oldest record on, a batch after the other."""
        bus = find_bus(self.settings)
        rows = max(self.settings.lake_batch_bytes // records.ROW_BYTES, 1)
        return BusStreamReader(bus.kind, bus.options, rows, self._rows_of(schema))

    def _rows_of(self, schema: StructType) -> ToRows:
        names = check_columns(schema, columns_of(self.tables))
        if not self.tables:
            return partial(to_events, names)
        return partial(_to_messages_of, tuple(self.settings.data_types), names)


def _to_messages_of(
    data_types: Sequence[str], names: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    # Tables hold functions, which are not sent to executors.
    return to_messages(frozenset(data_types), to_tables(data_types), names, batches)
