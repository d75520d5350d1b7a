"""The tables of a lake: their names, columns and partitioning.

Invariant: plain data; a table is declared once, here or in a module of its own. What lies in a lake is compared with it in `lake`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["EVENTS", "QUARANTINE", "VERSION_PROPERTY", "Table", "all_tables"]

VERSION_PROPERTY = "tardis-machine.version"
"""The property of a Delta table that says which version of its declaration it was written by."""


@dataclass(frozen=True)
class Table:
    """One table of the lake."""

    name: str
    """Layer and name, as SQL writes it: `silver.trades`."""
    columns: Mapping[str, str]
    """Name to Spark type, in order."""
    partition_by: tuple[str, ...] = ("date", "exchange")
    skip_by: tuple[str, ...] | None = None
    """Columns whose range is known of each file, so that queries pass over files; each costs time when rows are written. None: all."""
    version: int = 1
    """Raised when older code could no longer write the table rightly."""

    @property
    def ddl(self) -> str:
        """The columns as SQL declares them."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.columns.items())

    @property
    def properties(self) -> dict[str, str]:
        """What is kept with the table."""
        version = {VERSION_PROPERTY: str(self.version)}
        if self.skip_by is None:
            return version
        if not self.skip_by:
            return {**version, "delta.dataSkippingNumIndexedCols": "0"}
        return {**version, "delta.dataSkippingStatsColumns": ",".join(self.skip_by)}


_RECORD = {
    "value": "BINARY",
    "key": "STRING",
    "headers": "MAP<STRING, STRING>",
    "bus": "STRING",
    "destination": "STRING",
    "position": "STRING",
    "broker_timestamp": "TIMESTAMP",
}
"""A record as its bus had it."""

EVENTS = Table(
    "bronze.events",
    {
        "date": "DATE",
        "exchange": "STRING",
        "symbol": "STRING",
        "payload_case": "STRING",
        "local_ts": "TIMESTAMP",
        "ingest_ts": "TIMESTAMP",
        "origin": "STRING",
        "event_id": "BINARY",
        "session": "STRING",
        "sequence": "BIGINT",
        **_RECORD,
    },
    skip_by=("local_ts",),
)
"""Every record as it came, once, with the columns of its envelope."""

QUARANTINE = Table(
    "bronze.quarantine",
    {
        "stage": "STRING",
        "reason": "STRING",
        **_RECORD,
    },
    partition_by=(),
    skip_by=(),
)
"""What could not be decoded (stage `bronze.events`), or does not fit its silver table (stage: that table)."""


def all_tables() -> tuple[Table, ...]:
    """Every table of a lake, front to back."""
    from .gold import GOLD_TABLES
    from .instruments import INSTRUMENTS
    from .silver import SILVER_TABLES
    from .silver.whole_books import BOOK_PARTS

    return (EVENTS, QUARANTINE, *(silver.table for silver in SILVER_TABLES), BOOK_PARTS, INSTRUMENTS, *GOLD_TABLES)
