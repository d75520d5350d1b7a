"""silver.trades: one row for each execution."""

from __future__ import annotations

from .columns import SilverTable, decimal, enum, text, timestamp

TRADES = SilverTable(
    "trades",
    cases=("trade",),
    columns={
        "event_ts": timestamp("event_ts"),
        "trade_id": text("trade_id"),
        "price": decimal("price_str"),
        "amount": decimal("qty_str"),
        # The taker's.
        "side": enum("Trade.side", {"unspecified": "unknown"}),
    },
)
