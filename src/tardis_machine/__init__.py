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
    from .history.cache import clear_cache
    from .history.datasets import download_datasets
    from .history.metadata import find_instrument_symbols, get_api_key_access_info, get_exchange_details, get_instrument_info
    from .messages import to_json
    from .pipeline.library import replay, replay_normalized
    from .pipeline.merger import combine
    from .pipeline.normalizer import Normalizer
    from .pipeline.stream import stream_normalized
    from .server.app import TardisMachine

__all__ = [
    "Normalizer",
    "TardisMachine",
    "__version__",
    "clear_cache",
    "combine",
    "compute",
    "download_datasets",
    "find_instrument_symbols",
    "get_api_key_access_info",
    "get_exchange_details",
    "get_instrument_info",
    "replay",
    "replay_normalized",
    "stream_normalized",
    "to_json",
]

_HOMES = {
    "Normalizer": "pipeline.normalizer",
    "TardisMachine": "server.app",
    "clear_cache": "history.cache",
    "combine": "pipeline.merger",
    "compute": "computed",
    "download_datasets": "history.datasets",
    "find_instrument_symbols": "history.metadata",
    "get_api_key_access_info": "history.metadata",
    "get_exchange_details": "history.metadata",
    "get_instrument_info": "history.metadata",
    "replay": "pipeline.library",
    "replay_normalized": "pipeline.library",
    "stream_normalized": "pipeline.stream",
    "to_json": "messages",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
