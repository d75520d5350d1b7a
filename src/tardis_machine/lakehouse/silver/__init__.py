"""Bronze to silver: ten typed tables, each declared in a file of its own.

Invariant: every payload case of the schema belongs to exactly one table.
"""

from __future__ import annotations

from .book_changes import BOOK_CHANGES
from .book_snapshots import BOOK_SNAPSHOTS
from .book_tickers import BOOK_TICKERS
from .columns import SilverTable
from .control_events import CONTROL_EVENTS
from .derivative_tickers import DERIVATIVE_TICKERS
from .liquidations import LIQUIDATIONS
from .option_summaries import OPTION_SUMMARIES
from .quotes import QUOTES
from .trade_bars import TRADE_BARS
from .trades import TRADES

__all__ = ["SILVER_TABLES", "SilverTable"]

SILVER_TABLES: tuple[SilverTable, ...] = (
    TRADES,
    BOOK_CHANGES,
    BOOK_SNAPSHOTS,
    QUOTES,
    DERIVATIVE_TICKERS,
    LIQUIDATIONS,
    OPTION_SUMMARIES,
    BOOK_TICKERS,
    TRADE_BARS,
    CONTROL_EVENTS,
)
