"""Messages computed from normalized ones: trade bars, snapshots of the order book, quotes.

Invariant: pure and synchronous; what comes out depends only on the messages that came in, in their order.
"""

from __future__ import annotations

from .book_snapshot import BookSnapshots
from .computer import Computer, compute
from .contract import Computable, Computation
from .data_types import DataTypes, parse_data_types
from .order_book import OrderBook
from .trade_bar import TradeBars

__all__ = [
    "BookSnapshots",
    "Computable",
    "Computation",
    "Computer",
    "DataTypes",
    "OrderBook",
    "TradeBars",
    "compute",
    "parse_data_types",
]
