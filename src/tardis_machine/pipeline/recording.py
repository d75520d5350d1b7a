"""Where the raw messages of a live request are kept: in the cache in which a replay of the same request looks.

Invariant: the connections of a request have one cache, under the filters that its replay asks for.
"""

from __future__ import annotations

from pathlib import Path

from ..computed.data_types import parse_data_types
from ..filters import optimize_filters
from ..history.cache import FeedCache
from ..realtime.recorder import CacheRecorder
from .normalizer import Normalizer
from .request import StreamRequest
from .stream import plan_connections

__all__ = ["open_recorder"]


def open_recorder(folder: Path | str, request: StreamRequest) -> CacheRecorder:
    """A recorder of the connections that a LiveStream of this request makes, in its order."""
    cache = _cache_of(Path(folder), request)
    return CacheRecorder([cache for _ in plan_connections(request)])


def _cache_of(folder: Path, request: StreamRequest) -> FeedCache:
    normalizer = Normalizer(request.exchange, parse_data_types(request.data_types).normalizers, realtime=True)
    return FeedCache(folder, request.exchange, tuple(optimize_filters(normalizer.filters(request.symbols or None))))
