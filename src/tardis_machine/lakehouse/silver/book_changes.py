"""silver.book_changes: one row for each event; amount 0 removes a level, `is_snapshot` means: forget the book first.

A message that was too large for the bus came in parts, each a row with some of its levels: `part` of `part_count` parts of the event
`whole_event_id`, which are null otherwise; of a snapshot only the first part has `is_snapshot`. The same message may be there whole, or
in other parts, from another bus: `whole_books` takes it once.

Published a message at a time, a row has all levels of the message, and `level` and `level_count` are null. Published a level at a
time, a row has one level in `bids` or in `asks`, its index in `level`, and in `level_count` the number of rows that the message
takes; the book is forgotten before the first of them only.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ...generated.lakehouse.bronze.v1 import normalized_event_pb2 as schema
from ...pipeline.columns import to_decimals
from .columns import PART, Column, Payload, SilverTable, boolean, integer, levels, timestamp, to_levels, to_offsets


def _side(field: str, side: int) -> Column:
    whole = levels(field)

    def read(payload: Payload) -> pa.Array:
        sides = payload.field("side")
        if sides.null_count == len(sides):
            return whole.read(payload)
        is_ours = pc.fill_null(pc.equal(sides, side), fill_value=False)
        prices, amounts = payload.field("price_str"), payload.field("qty_str")
        is_removed = pc.fill_null(pc.equal(payload.field("action"), schema.ACTION_DELETE), fill_value=False)
        single = pa.StructArray.from_arrays([prices, pc.if_else(is_removed, "0", amounts)], names=["price_str", "qty_str"])
        by_level = to_levels(pa.ListArray.from_arrays(to_offsets(is_ours.cast(pa.int32())), single.filter(is_ours)), to_decimals)
        return pc.if_else(pc.is_valid(sides), by_level, whole.read(payload))

    return Column(whole.ddl, whole.arrow, read)


BOOK_CHANGES = SilverTable(
    "book_changes",
    cases=("book_change",),
    columns={
        "event_ts": timestamp("event_ts"),
        "is_snapshot": boolean("is_snapshot"),
        "bids": _side("bids", schema.SIDE_BUY),
        "asks": _side("asks", schema.SIDE_SELL),
        "level": integer("level"),
        "level_count": integer("level_count"),
        **PART,
    },
)
