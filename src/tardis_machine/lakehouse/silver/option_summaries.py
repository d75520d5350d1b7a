"""silver.option_summaries: an option's quotes, implied volatilities and greeks."""

from __future__ import annotations

from .columns import SilverTable, decimal, double, enum, text, timestamp

OPTION_SUMMARIES = SilverTable(
    "option_summaries",
    cases=("option_summary",),
    columns={
        "event_ts": timestamp("event_ts"),
        "option_type": enum("OptionSummary.option_type"),
        "strike_price": decimal("strike_price_str"),
        "expiration_ts": timestamp("expiration_ts"),
        "best_bid_price": decimal("best_bid_price_str"),
        "best_bid_amount": decimal("best_bid_qty_str"),
        "best_bid_iv": double("best_bid_iv_str"),
        "best_ask_price": decimal("best_ask_price_str"),
        "best_ask_amount": decimal("best_ask_qty_str"),
        "best_ask_iv": double("best_ask_iv_str"),
        "last_price": decimal("last_price_str"),
        "open_interest": decimal("oi_str"),
        "mark_price": decimal("mark_price_str"),
        "mark_iv": double("iv_str"),
        "delta": double("delta_str"),
        "gamma": double("gamma_str"),
        "vega": double("vega_str"),
        "theta": double("theta_str"),
        "rho": double("rho_str"),
        "underlying_price": decimal("underlying_price_str"),
        "underlying_index": text("underlying_index"),
    },
)
