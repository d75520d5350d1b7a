"""Where the raw messages of a live request are kept: with the recordings in which a replay of the same request looks.

Invariant: the connections of a request have one folder, under the filters that its replay asks for.
"""

from __future__ import annotations

from pathlib import Path

from ..computed.data_types import parse_data_types
from ..filters import optimize_filters
from ..history.recordings import RecordedFeed
from ..realtime.recorder import LineRecorder
from .normalizer import Normalizer
from .request import StreamRequest
from .stream import plan_connections

__all__ = ["open_recorder"]


def open_recorder(folder: Path | str, request: StreamRequest) -> LineRecorder:
    """A recorder of the connections that a LiveStream of this request makes, in its order."""
    feed = _feed_of(Path(folder), request)
    return LineRecorder([feed for _ in plan_connections(request)])


def _feed_of(folder: Path, request: StreamRequest) -> RecordedFeed:
    normalizer = Normalizer(request.exchange, parse_data_types(request.data_types).normalizers, realtime=True)
    return RecordedFeed(folder, request.exchange, tuple(optimize_filters(normalizer.filters(request.symbols or None))))
