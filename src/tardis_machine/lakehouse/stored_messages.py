"""Messages out of a lake, for exports: what bronze holds of one symbol and type, each once, as it was published. Without Spark.

Silver says which events count, as it has each of them once; bronze says what was in them. Of several recorders that heard one market,
whose books can't be put together, one is followed: history's, where it is there, else the one that heard most of that day.

Invariant: messages come in the order in which they were received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..bronze.decoding import decode
from ..errors import LakeError
from ..messages import Message, to_timestamp
from .gold.windows import HOUR_US, to_instant
from .lake import Lake
from .silver import SILVER_TABLES
from .tables import EVENTS, Table

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = ["stored_messages"]

_BATCH = 1_000


def stored_messages(lake: Lake, exchange: str, symbol: str, case: str, start_us: int, end_us: int) -> Iterator[Sequence[Message]]:
    """The messages of a payload case that were received in [start, end), in batches."""
    (silver,) = (each.table for each in SILVER_TABLES if case in each.cases)
    events, counted = _open(lake, EVENTS), _open(lake, silver)
    if events is None or counted is None:
        return
    own = (pc.field("exchange") == exchange) & (pc.field("symbol") == symbol)
    recorder = _recorder(counted, own, start_us, end_us)
    for hour_us in range(start_us - start_us % HOUR_US, end_us, HOUR_US):
        span = own & _between(max(hour_us, start_us), min(hour_us + HOUR_US, end_us)) & _of(recorder)
        ids = counted.to_table(columns=["event_id"], filter=span).column("event_id")
        if not len(ids):
            continue
        rows = events.to_table(
            columns=["local_ts", "sequence", "event_id", "value"], filter=span & (pc.field("payload_case") == case)
        )
        rows = rows.filter(pc.is_in(rows.column("event_id"), value_set=pc.unique(ids)))
        rows = rows.sort_by([("local_ts", "ascending"), ("sequence", "ascending")])
        yield from _decoded(rows, symbol)


def _open(lake: Lake, table: Table) -> ds.Dataset | None:
    path = lake.path(table)
    return None if lake.storage.read_table(path) is None else lake.storage.open_log(path).to_pyarrow_dataset()


def _between(start_us: int, end_us: int) -> pc.Expression:
    start, end = to_instant(start_us), to_instant(end_us)
    days = (pc.field("date") >= start.date()) & (pc.field("date") <= end.date())
    return days & (pc.field("local_ts") >= start) & (pc.field("local_ts") < end)


def _recorder(silver: ds.Dataset, own: pc.Expression, start_us: int, end_us: int) -> str | None:
    """The live session to follow; None: history."""
    found = silver.to_table(columns=["origin", "session"], filter=own & _between(start_us, end_us))
    counts = Counter(zip(*(found.column(name).to_pylist() for name in ("origin", "session")), strict=True))
    if not counts or any(origin != "realtime" for origin, _ in counts):
        return None
    (_, session), _ = max(counts.items(), key=lambda item: (item[1], str(item[0])))
    return str(session)


def _of(recorder: str | None) -> pc.Expression:
    return pc.field("origin") != "realtime" if recorder is None else pc.field("session") == recorder


def _decoded(rows: pa.Table, symbol: str) -> Iterator[Sequence[Message]]:
    seen: set[bytes] = set()
    batch: list[Message] = []
    for event_id, value, local_ts in zip(*(rows.column(name) for name in ("event_id", "value", "local_ts")), strict=True):
        identity = event_id.as_py()
        if identity in seen:
            continue
        seen.add(identity)
        try:
            batch.append(decode(value.as_py()))
        except ValueError:
            at = to_timestamp(local_ts.value)
            raise LakeError(
                f"the lake has a message of {symbol} at {at} in parts, which can't be exported; export this day from history instead"
            ) from None
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
