"""tardis-machine: replays tick-level crypto market history and streams live data, raw or normalized, to clients and event buses.

The names below are the public interface; everything else may change. They are loaded when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _compiled as _compiled
from ._version import __version__

if TYPE_CHECKING:
    from .computed import compute
    from .computed.order_book import OrderBook
    from .history.cache import clear_cache
    from .history.datasets import download_datasets
    from .history.metadata import find_instrument_symbols, get_api_key_access_info, get_exchange_details, get_instrument_info
    from .messages import to_json
    from .pipeline.book_at import book_at
    from .pipeline.library import replay, replay_normalized
    from .pipeline.merger import combine
    from .pipeline.normalizer import Normalizer
    from .pipeline.raw_stream import stream
    from .pipeline.stream import stream_normalized
    from .pipeline.synchronous import (
        book_at_sync,
        replay_arrow_sync,
        replay_normalized_sync,
        replay_sync,
        stream_normalized_sync,
        stream_sync,
    )
    from .pipeline.tables import replay_arrow, to_pandas, to_polars, to_table
    from .server.app import TardisMachine

__all__ = [
    "Normalizer",
    "OrderBook",
    "TardisMachine",
    "__version__",
    "book_at",
    "book_at_sync",
    "clear_cache",
    "combine",
    "compute",
    "download_datasets",
    "find_instrument_symbols",
    "get_api_key_access_info",
    "get_exchange_details",
    "get_instrument_info",
    "replay",
    "replay_arrow",
    "replay_arrow_sync",
    "replay_normalized",
    "replay_normalized_sync",
    "replay_sync",
    "stream",
    "stream_normalized",
    "stream_normalized_sync",
    "stream_sync",
    "to_json",
    "to_pandas",
    "to_polars",
    "to_table",
]

_HOMES = {
    "Normalizer": "pipeline.normalizer",
    "OrderBook": "computed.order_book",
    "TardisMachine": "server.app",
    "book_at": "pipeline.book_at",
    "book_at_sync": "pipeline.synchronous",
    "clear_cache": "history.cache",
    "combine": "pipeline.merger",
    "compute": "computed",
    "download_datasets": "history.datasets",
    "find_instrument_symbols": "history.metadata",
    "get_api_key_access_info": "history.metadata",
    "get_exchange_details": "history.metadata",
    "get_instrument_info": "history.metadata",
    "replay": "pipeline.library",
    "replay_arrow": "pipeline.tables",
    "replay_arrow_sync": "pipeline.synchronous",
    "replay_normalized": "pipeline.library",
    "replay_normalized_sync": "pipeline.synchronous",
    "replay_sync": "pipeline.synchronous",
    "stream": "pipeline.raw_stream",
    "stream_normalized": "pipeline.stream",
    "stream_normalized_sync": "pipeline.synchronous",
    "stream_sync": "pipeline.synchronous",
    "to_json": "messages",
    "to_pandas": "pipeline.tables",
    "to_polars": "pipeline.tables",
    "to_table": "pipeline.tables",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
