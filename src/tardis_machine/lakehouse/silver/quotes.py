"""silver.quotes: the best bid and ask of the reconstructed book."""

from __future__ import annotations

from .columns import SilverTable, decimal, integer, text, timestamp

QUOTES = SilverTable(
    "quotes",
    cases=("quote",),
    columns={
        "event_ts": timestamp("event_ts"),
        "name": text("name"),
        "interval_ms": integer("interval_ms", "interval_str"),
        "bid_price": decimal("bid_price_str"),
        "bid_amount": decimal("bid_qty_str"),
        "ask_price": decimal("ask_price_str"),
        "ask_amount": decimal("ask_qty_str"),
    },
)
