"""The format `tardis`: history as rows, by symbol and day over executors, with a typed column for each field of a message.

Columns and types are those of the lake's silver tables. As recordings begin anew with each day, so do mappers and what is computed:
a partition is a symbol's day, as a unit of `lake backfill` is, and depends on no other.

Invariant: a partition brings the same rows whenever, and wherever, it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ..errors import LakeError, TardisMachineError
from ..history.client import HistoryClient
from ..lakehouse.backfill import split_days, without_collector
from ..messages import Disconnect, Message, to_timestamp
from ..pipeline.columns import kinds_of, schema_of, to_batch
from ..pipeline.fetching import fetch_lines
from ..pipeline.replay import NormalizedReplay
from ..pipeline.request import NormalizedRequest, parse_normalized_request
from ..settings import Settings, from_format_options
from .columns import check_columns, to_spark

if TYPE_CHECKING:
    from .streaming import LivePlan

__all__ = ["HistoryDataSource", "HistoryPart", "HistoryPlan", "plan_parts", "read_part"]

_ROWS_IN_BATCH = 20_000


@dataclass(frozen=True)
class HistoryPlan:
    """What is asked for, where it is fetched, and as which columns it comes."""

    request: NormalizedRequest
    api_url: str
    cache_dir: str | None
    """On each executor; None: the default of the machine."""
    kinds: tuple[str, ...]
    """Of messages that rows are made of."""
    exact: bool

    @classmethod
    def from_settings(cls, settings: Settings) -> HistoryPlan:
        """What the options of the format say; OptionsError that names the one that is wrong."""
        request = parse_normalized_request(
            {
                "exchange": settings.exchange,
                "symbols": list(settings.symbols) if settings.symbols else None,
                "from": settings.from_,
                "to": settings.to,
                "dataTypes": list(settings.data_types or ()),
                "withDisconnectMessages": settings.with_disconnects,
                "apiKey": settings.api_key,
            }
        )
        cache_dir = None if settings.source("cache_dir") == "default" else str(settings.cache_dir)
        kinds = kinds_of(request.data_types, with_disconnects=request.with_disconnect_messages)
        return cls(request, settings.api_url, cache_dir, tuple(kinds), settings.numbers == "decimal")

    @cached_property
    def columns(self) -> pa.Schema:
        """All that there are."""
        return schema_of(self.kinds, exact=self.exact)


@dataclass
class HistoryPart(InputPartition):
    """A symbol's day."""

    plan: HistoryPlan

    def __repr__(self) -> str:
        """Without the key."""
        request = self.plan.request
        return f"{request.exchange} {','.join(request.symbols or ['all symbols'])} from {to_timestamp(request.from_us)}"


def plan_parts(plan: HistoryPlan) -> list[HistoryPart]:
    """The partitions of a request, by day and then by symbol."""
    asked = plan.request.symbols
    # A symbol that is named twice has its rows once.
    groups: list[list[str] | None] = [None] if asked is None else [[symbol] for symbol in dict.fromkeys(asked)]
    return [
        HistoryPart(replace(plan, request=msgspec.structs.replace(plan.request, from_us=start, to_us=end, symbols=group)))
        for start, end in split_days(plan.request.from_us, plan.request.to_us)
        for group in groups
    ]


class HistoryDataSource(DataSource):
    """What Spark knows as `tardis`."""

    @classmethod
    def name(cls) -> str:
        """As users write it."""
        return "tardis"

    @cached_property
    def settings(self) -> Settings:
        """What the options say."""
        return from_format_options("tardis", dict(self.options))

    @cached_property
    def plan(self) -> HistoryPlan:
        """The history that is asked for."""
        return HistoryPlan.from_settings(self.settings)

    @property
    def is_history(self) -> bool:
        """Whether a span of time is asked for; what has none is live."""
        return self.settings.from_ is not None or self.settings.to is not None

    @cached_property
    def live(self) -> LivePlan:
        """What is to be listened to."""
        from .streaming import LivePlan

        return LivePlan.from_settings(self.settings)

    def schema(self) -> StructType:
        """Of the kinds of message that are asked for."""
        return from_arrow_schema((self.plan if self.is_history else self.live).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of the columns of `schema`, which may be some of all: others are not made."""
        return HistoryReader(self.plan, check_columns(schema, self.plan.columns))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Of history where `from` is given, else live."""
        from .streaming import HistoryStreamReader, LiveStreamReader

        if self.is_history:
            return HistoryStreamReader(self.plan, check_columns(schema, self.plan.columns))
        return LiveStreamReader(self.live, check_columns(schema, self.live.columns))


class HistoryReader(DataSourceReader):
    """Plans on the driver, reads on executors.

    It takes no filters: Spark keeps those of one scan of a table for its others, so of a frame that a query filters twice one part
    would lack its rows.
    """

    def __init__(self, plan: HistoryPlan, names: tuple[str, ...]) -> None:
        self._plan, self._names = plan, names

    def partitions(self) -> Sequence[InputPartition]:
        """A symbol's day each."""
        return plan_parts(self._plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, in the order in which they were received."""
        return read_part(partition, self._names)  # type: ignore[arg-type]


def read_part(part: HistoryPart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """What an executor does with a partition."""
    with asyncio.Runner() as runner, without_collector():
        # Not the runner's own `run`: for its signal handler it prints what the call before it returned.
        wait = runner.get_loop().run_until_complete
        stream = _gather(part.plan)
        try:
            while (messages := wait(anext(stream, None))) is not None:
                yield to_spark(to_batch(messages, part.plan.kinds, exact=part.plan.exact, names=names), names)
        except (TardisMachineError, ValueError) as error:
            raise LakeError(f"{part}: {error}") from None
        finally:
            wait(stream.aclose())


def _told_apart(messages: list[Message], request: NormalizedRequest) -> list[Message]:
    """Messages whose disconnects say of which symbol they are: the partition of each symbol has one of its own."""
    if request.symbols is None or not request.with_disconnect_messages:
        return messages
    return [
        msgspec.structs.replace(message, symbols=request.symbols) if isinstance(message, Disconnect) else message
        for message in messages
    ]


async def _gather(plan: HistoryPlan) -> AsyncGenerator[list[Message], None]:
    replay = NormalizedReplay(plan.request)
    gathered: list[Message] = []
    async with (
        HistoryClient(plan.api_url, plan.request.api_key, plan.cache_dir) as client,
        aclosing(fetch_lines(client, plan.request, replay.periods())) as source,
    ):
        async for period, lines in source:
            gathered += _told_apart(replay.feed(period, lines), plan.request)
            if len(gathered) >= _ROWS_IN_BATCH:
                yield gathered
                gathered = []
    if gathered:
        yield gathered
