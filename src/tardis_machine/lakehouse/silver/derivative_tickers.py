"""silver.derivative_tickers: what is known of a derivative, whenever something of it changes."""

from __future__ import annotations

from .columns import SilverTable, decimal, double, timestamp

DERIVATIVE_TICKERS = SilverTable(
    "derivative_tickers",
    cases=("derivative_ticker",),
    columns={
        "event_ts": timestamp("event_ts"),
        "last_price": decimal("last_price_str"),
        "open_interest": decimal("open_interest_str"),
        "funding_rate": double("funding_rate_str"),
        "funding_ts": timestamp("funding_ts"),
        "predicted_funding_rate": double("predicted_funding_rate_str"),
        "index_price": decimal("index_price_str"),
        "mark_price": decimal("mark_price_str"),
    },
)
