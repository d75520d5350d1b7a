"""What one run of the demo does: its requests to five exchanges, of history or live, its bus and its folder.

Invariant: a plan is made from the settings alone, before anything is started.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...messages import to_timestamp
from ...settings import Settings
from ...settings.buses import bus_options
from ...settings.option import one_of

__all__ = ["DemoPlan", "plan_demo"]

SYMBOLS = {
    "bitmex": "XBTUSD",
    "binance": "btcusdt",
    "coinbase": "BTC-USD",
    "deribit": "BTC-PERPETUAL",
    "okex": "BTC-USDT",
}
"""Bitcoin everywhere, so that prices can be compared."""
DERIVATIVES = ("bitmex", "deribit")
# The first day of a month: real history of it is free.
FROM_US = 1_580_515_200_000_000  # 2020-02-01
SOURCES = {"file": "files", "kafka": "kafka", "redis": "redis", "nats": "nats", "kinesis": "kinesis", "sqs": "sqs"}
"""What the lake calls each bus."""


@dataclass(frozen=True)
class DemoPlan:
    """One run of the demo."""

    folder: Path
    requests: list[dict[str, Any]]
    live: bool
    real: bool
    span_s: float
    activity: float
    seed: int
    bus: str
    bus_options: dict[str, Any]

    @property
    def source(self) -> str:
        """The bus, as the lake calls it."""
        return SOURCES[self.bus]

    @property
    def bar(self) -> str:
        """The interval of bars that fits the span."""
        return "10s" if self.span_s < 300 else "1m"

    @property
    def span(self) -> str:
        """The span as it is printed."""
        return f"{self.span_s:.0f} s" if self.span_s < 60 else f"{self.span_s / 60:.0f} min"


def plan_demo(settings: Settings) -> DemoPlan:
    """The plan for these settings; UsageError where they contradict each other."""
    live, real = settings.demo_live, settings.demo_real
    if live and real:
        raise UsageError("--demo-live and --demo-real can't be combined; choose one")
    if len(settings.buses) > 1 or not set(settings.buses) <= SOURCES.keys():
        raise UsageError(f"the demo publishes to one bus ({one_of(tuple(SOURCES))}), but {' and '.join(settings.buses)} are on")
    folder = Path(settings.demo_dir).absolute()
    span_s = settings.demo_span or (60.0 if live else 300.0 if real else 3600.0)
    if not live:
        span_s = ceil(span_s / 60) * 60.0
    bus = settings.buses[0] if settings.buses else "file"
    return DemoPlan(
        folder=folder,
        requests=[_to_request(exchange, symbol, None if live else span_s) for exchange, symbol in SYMBOLS.items()],
        live=live,
        real=real,
        span_s=span_s,
        activity=(settings.demo_activity or (100 if live else 10)) / 100,
        seed=settings.demo_seed,
        bus=bus,
        bus_options=_given_options(settings, bus) or {"dir": folder / "events"},
    )


def _to_request(exchange: str, symbol: str, span_s: float | None) -> dict[str, Any]:
    """A request for the first minutes of a day, or a live one where there is no span."""
    request: dict[str, Any] = {
        "exchange": exchange,
        "symbols": [symbol],
        "dataTypes": ["trade", "book_change", *(["derivative_ticker"] if exchange in DERIVATIVES else [])],
        "withDisconnectMessages": True,
    }
    if span_s is not None:
        request |= {"from": to_timestamp(FROM_US), "to": to_timestamp(FROM_US + int(span_s * 1e6))}
    return request


def _given_options(settings: Settings, bus: str) -> dict[str, Any]:
    """The options of a bus that were given, without its prefix."""
    if bus not in settings.buses:
        return {}
    return {
        option.name.removeprefix(f"{bus}-"): settings[option.attribute]
        for option in bus_options(bus)
        if settings.source(option.attribute) != "default"
    }
