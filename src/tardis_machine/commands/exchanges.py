"""`tardis-machine exchanges`: what is supported, read off the registry.

Invariant: the list is the registry's own; nothing is repeated here.
"""

from __future__ import annotations

import json

from ..settings import Settings

__all__ = ["run"]


def run(settings: Settings) -> int:
    """Prints the exchanges as a table or as JSON."""
    from ..exchanges import EXCHANGES

    exchanges = [
        {
            "exchange": exchange.name,
            "dataTypes": list(exchange.data_types),
            "channels": list(exchange.channels),
            "docs": exchange.docs,
        }
        for exchange in EXCHANGES.values()
    ]
    if settings.format == "json":
        print(json.dumps(exchanges, indent=2))
        return 0
    width = max(len(name) for name in ["exchange", *EXCHANGES])
    print(f"{'exchange':<{width}}  data types")
    for exchange in EXCHANGES.values():
        print(f"{exchange.name:<{width}}  {', '.join(exchange.data_types)}")
    return 0
