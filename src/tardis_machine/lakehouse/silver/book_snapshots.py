"""silver.book_snapshots: the top of the reconstructed book at an interval, plain or grouped by price.

One that was too large for the bus came in parts: rows with some of its levels each, `part` of `part_count` parts of the event
`whole_event_id`, which are null otherwise. `whole_books` takes one that is there whole and in parts once.

Levels are null in both fields where the book has fewer than `depth`.
"""

from __future__ import annotations

from .columns import PART, SilverTable, decimal, integer, levels, text, timestamp

BOOK_SNAPSHOTS = SilverTable(
    "book_snapshots",
    cases=("book_snapshot", "grouped_book_snapshot"),
    columns={
        "event_ts": timestamp("event_ts"),
        "name": text("name"),
        "depth": integer("depth"),
        "interval_ms": integer("interval_ms", "interval_str"),
        "grouping": decimal("grouping", "grouping_str"),
        "bids": levels("bids", computed=True),
        "asks": levels("asks", computed=True),
        **PART,
    },
)
