"""silver.trade_bars: bars as the machine published them; `gold.bars` are those that the lake makes of trades itself."""

from __future__ import annotations

from .columns import SilverTable, computed, decimal, enum, integer, text, timestamp

TRADE_BARS = SilverTable(
    "trade_bars",
    cases=("trade_bar",),
    columns={
        "event_ts": timestamp("bar_ts"),
        "name": text("name"),
        "kind": enum("TradeBar.kind"),
        # Milliseconds, trades or volume, by kind.
        "interval": decimal("interval", "interval_str"),
        "open": decimal("open_str"),
        "high": decimal("high_str"),
        "low": decimal("low_str"),
        "close": decimal("close_str"),
        "volume": computed("volume_str"),
        "buy_volume": computed("buy_volume_str"),
        "sell_volume": computed("sell_volume_str"),
        "trades": integer("trade_count"),
        "vwap": computed("vwap_str"),
        "open_ts": timestamp("event_ts"),
        "close_ts": timestamp("end_ts"),
    },
)
