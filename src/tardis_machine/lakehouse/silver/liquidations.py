"""silver.liquidations: one row for each forced trade; side buy: a short was liquidated."""

from __future__ import annotations

from .columns import SilverTable, decimal, enum, text, timestamp

LIQUIDATIONS = SilverTable(
    "liquidations",
    cases=("liquidation",),
    columns={
        "event_ts": timestamp("event_ts"),
        "liquidation_id": text("order_id"),
        "price": decimal("price_str"),
        "amount": decimal("qty_str"),
        "side": enum("Liquidation.side", {"unspecified": "unknown"}),
    },
)
