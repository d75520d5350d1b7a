"""silver.book_tickers: best bid and ask as the exchange itself announces them."""

from __future__ import annotations

from .columns import SilverTable, decimal, timestamp

BOOK_TICKERS = SilverTable(
    "book_tickers",
    cases=("book_ticker",),
    columns={
        "event_ts": timestamp("event_ts"),
        "bid_price": decimal("best_bid_price_str"),
        "bid_amount": decimal("best_bid_qty_str"),
        "ask_price": decimal("best_ask_price_str"),
        "ask_amount": decimal("best_ask_qty_str"),
    },
)
