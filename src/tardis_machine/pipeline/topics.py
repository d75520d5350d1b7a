"""What a live request asks for, topic by topic: one data type of one symbol.

Invariant: two requests have a topic in common only where both get the same messages of it.
"""

from __future__ import annotations

from typing import NamedTuple

from ..computed.data_types import parse_data_types
from .normalizer import Normalizer, symbol_filter
from .request import StreamRequest

__all__ = ["LiveTopic", "topics_of"]


class LiveTopic(NamedTuple):
    """One data type of one symbol."""

    data_type: str
    names: frozenset[str] = frozenset()
    """What messages may call the symbol; none: every symbol."""


def topics_of(request: StreamRequest) -> frozenset[LiveTopic]:
    """The topics of a request.

    >>> btc = StreamRequest(exchange="binance", data_types=["trade"], symbols=["BTCUSDT"])
    >>> [(topic.data_type, sorted(topic.names)) for topic in topics_of(btc)]
    [('trade', ['BTCUSDT', 'btcusdt'])]
    """
    topics: set[LiveTopic] = set()
    for data_type in request.data_types:
        normalizer = Normalizer(request.exchange, parse_data_types([data_type]).normalizers, realtime=True)
        if not request.symbols:
            topics.add(LiveTopic(data_type))
        for symbol in request.symbols or ():
            topics.add(LiveTopic(data_type, symbol_filter([symbol], normalizer.filters([symbol])) or frozenset()))
    return frozenset(topics)
