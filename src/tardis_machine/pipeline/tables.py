"""Messages as tables for who imports the package: Arrow batches as `/replay-normalized` sends them, and data frames.

Invariant: a row is a message, in the messages' order; columns are those of `columns`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from ..errors import MissingExtraError
from ..messages import Message
from .library import parse_replay, replay_normalized

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

__all__ = ["replay_arrow", "to_pandas", "to_polars", "to_table"]


async def replay_arrow(*requests: dict[str, Any], **options: Any) -> AsyncGenerator[pa.RecordBatch, None]:
    """What `replay_normalized` replays, as Arrow record batches; takes the same. All have one schema.

    async for batch in replay_arrow(exchange="bitmex", symbols=["XBTUSD"], from_="2020-02-01", to="2020-02-02", data_types=["trade"]):
        frame = polars.from_arrow(batch)
    """
    from .arrow_stream import ROWS, ArrowStream
    from .request import SinceRequest

    asked = parse_replay(requests, options)
    stream = ArrowStream([each.live if isinstance(each, SinceRequest) else each for each in asked])
    goes_on = any(isinstance(each, SinceRequest) for each in asked)
    waiting: list[Message] = []
    async with aclosing(replay_normalized(*requests, **options)) as batches:
        async for messages in batches:
            waiting += messages
            # What is heard live is not held back.
            if goes_on or len(waiting) >= ROWS:
                yield stream.batch(waiting)
                waiting = []
    if waiting:
        yield stream.batch(waiting)


def to_table(items: Iterable[Message] | Iterable[pa.RecordBatch]) -> pa.Table:
    """Messages, or the batches of `replay_arrow`, as one Arrow table: the columns of all kinds of message that are among them."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtraError("a table", "arrow") from None
    from .arrow_stream import ROWS
    from .columns import COLUMNS, kind_of, schema_of, to_batch

    rows = list(items)
    if rows and isinstance(rows[0], pa.RecordBatch):
        return pa.Table.from_batches(rows)
    messages = cast(list[Message], rows)
    found = set(map(kind_of, messages))
    kinds = [kind for kind in COLUMNS if kind in found]
    batches = [to_batch(messages[start : start + ROWS], kinds) for start in range(0, len(messages), ROWS)]
    return pa.Table.from_batches(batches, schema_of(kinds))


def to_pandas(items: Iterable[Message] | Iterable[pa.RecordBatch]) -> pd.DataFrame:
    """The same as a pandas data frame.

    to_pandas(replay_normalized_sync(exchange="bitmex", symbols=["XBTUSD"], from_="2020-02-01", to="2020-02-02", data_types=["trade"]))
    """
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise MissingExtraError("to_pandas", "pandas") from None
    frame: pd.DataFrame = to_table(items).to_pandas()
    return frame


def to_polars(items: Iterable[Message] | Iterable[pa.RecordBatch]) -> pl.DataFrame:
    """The same as a polars data frame."""
    try:
        import polars
    except ImportError:
        raise MissingExtraError("to_polars", "polars") from None
    return cast("pl.DataFrame", polars.from_arrow(to_table(items)))
