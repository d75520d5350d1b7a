"""A request as those may see it who list what runs.

Invariant: no key of an account, and no more than fits on a page.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, to_builtins

from ..messages import to_timestamp
from ..pipeline.request import NormalizedRequest, RawRequest

__all__ = ["MOST_SHOWN", "shown_request"]

MOST_SHOWN = 10
"""Of requests, filters and symbols: a list of all replays may hold hundreds of them."""


def shown_request(request: RawRequest | NormalizedRequest) -> dict[str, Any]:
    """Its fields as a client writes them; of long lists the beginning, and how long they are."""
    shown: dict[str, Any] = {
        "exchange": request.exchange,
        "from": to_timestamp(request.from_us),
        "to": to_timestamp(request.to_us),
    }
    if isinstance(request, NormalizedRequest):
        shown["dataTypes"] = list(request.data_types)
        _show_symbols(shown, request.symbols)
    else:
        filters = []
        for item in request.filters[:MOST_SHOWN]:
            filters.append({"channel": item.channel})
            _show_symbols(filters[-1], None if item.symbols is UNSET else item.symbols)
        shown["filters"] = filters
        if len(request.filters) > MOST_SHOWN:
            shown["filterCount"] = len(request.filters)
    if request.playback.faults is not None:
        shown["faults"] = to_builtins(request.playback.faults)
    return shown


def _show_symbols(shown: dict[str, Any], symbols: Any) -> None:
    if symbols is not None:
        shown["symbols"] = list(symbols[:MOST_SHOWN])
        if len(symbols) > MOST_SHOWN:
            shown["symbolCount"] = len(symbols)
