"""`tardis-machine exchanges`: what is supported, read off the registry.

Invariant: the list is the registry's own; nothing is repeated here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..settings import Settings

if TYPE_CHECKING:
    from ..exchanges import Exchange

__all__ = ["run"]


def run(settings: Settings) -> int:
    """Prints the exchanges as a table or as JSON."""
    from ..exchanges import EXCHANGES

    if settings.format == "json":
        print(json.dumps([_to_json(exchange) for exchange in EXCHANGES.values()], indent=2))
        return 0
    rows = [("exchange", "live", "API since", "data types"), *(_to_row(exchange) for exchange in EXCHANGES.values())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _switches(exchange: Exchange) -> dict[str, list[str]]:
    """When a new generation of the exchange's API began, by data type."""
    return {
        kind: [version.until for version in exchange.mappers[kind] if version.until is not None] for kind in exchange.data_types
    }


def _to_row(exchange: Exchange) -> tuple[str, str, str, str]:
    latest = max((date for dates in _switches(exchange).values() for date in dates), default="")
    return exchange.name, "yes" if exchange.live else "no", latest[:10] or "always", ", ".join(exchange.data_types)


def _to_json(exchange: Exchange) -> dict[str, Any]:
    return {
        "exchange": exchange.name,
        "dataTypes": list(exchange.data_types),
        "generations": _switches(exchange),
        "channels": list(exchange.channels),
        "live": exchange.live is not None,
        "file": _file_of(exchange.name),
        "docs": exchange.docs,
    }


def _file_of(name: str) -> str:
    """Where the exchange's family is, from the package's folder on."""
    from ..exchanges import EXCHANGE_MODULES

    place = f"exchanges/{EXCHANGE_MODULES[name]}"
    return f"{place}/" if (Path(__file__).parents[1] / place).is_dir() else f"{place}.py"
