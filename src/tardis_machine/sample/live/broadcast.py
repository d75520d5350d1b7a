"""All messages that an exchange sends, by channel and minute. They are made once and read by every subscriber.

Invariant: a subscription yields every message of its topics once, in order of arrival, from the moment of its snapshot on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from ..instrument import Instrument
from ..market import Minute, SampleMarket
from ..venues import Venue
from ..venues._contract import SECOND, Row

__all__ = ["MINUTE", "Broadcast", "Render", "Subscription", "Topic"]

MINUTE = 60 * SECOND
# One change of a book may be several messages, so many clock ticks apart; the next change is further away.
_SAME_EVENT = 2

Render = Callable[[bytes], bytes]
"""A message as a client asked for it: under another name, in another unit of time."""


class Topic(NamedTuple):
    """What can be subscribed to: a channel of an instrument, or of a symbol that is none (an index)."""

    channel: str
    symbol: str
    instrument: Instrument | None = None


class _Rows(NamedTuple):
    arrivals: list[int]
    messages: list[bytes]


class Broadcast:
    """One exchange's messages, kept for as long as someone may still read them."""

    def __init__(self, market: SampleMarket, venue: Venue) -> None:
        self.market = market
        self.venue = venue
        self._minutes: dict[tuple[int, int], Minute] = {}
        self._rows: dict[tuple[Topic, int], _Rows] = {}

    def minute(self, instrument: Instrument, at: int) -> Minute:
        """The minute that an instant is in."""
        key = (instrument.key, at // MINUTE)
        minute = self._minutes.get(key)
        if minute is None:
            minute = self._minutes[key] = self.market.minute(instrument, at // MINUTE)
        return minute

    def rows(self, topic: Topic, index: int) -> _Rows:
        """All messages of a topic in a minute since 1970."""
        key = (topic, index)
        rows = self._rows.get(key)
        if rows is None:
            made = sorted(self._make(topic, index), key=itemgetter(0))
            rows = self._rows[key] = _Rows([arrival for arrival, _ in made], [message.encode() for _, message in made])
        return rows

    def last(self, topic: Topic, at: int) -> bytes | None:
        """The latest message of a topic until then, if the last two minutes have one."""
        for index in (at // MINUTE, at // MINUTE - 1):
            rows = self.rows(topic, index)
            place = bisect_right(rows.arrivals, at)
            if place:
                return rows.messages[place - 1]
        return None

    def forget(self, before_index: int) -> None:
        """Drops minutes that lie behind everyone."""
        for minute in [key for key in self._minutes if key[1] < before_index]:
            del self._minutes[minute]
        for rows in [key for key in self._rows if key[1] < before_index]:
            del self._rows[rows]

    def _make(self, topic: Topic, index: int) -> list[Row]:
        if topic.instrument is not None:
            minute = self.minute(topic.instrument, index * MINUTE)
            return list(self.venue.rows(self.market, minute, frozenset((topic.channel,))))
        asked = (topic.channel, topic.symbol)
        return list(self.venue.common(self.market, index, lambda channel, symbol: (channel, symbol) == asked))


class Subscription:
    """One topic as one client reads it, from a moment on."""

    def __init__(self, broadcast: Broadcast, topic: Topic, position: int, render: Render | None = None) -> None:
        self.topic = topic
        self.render = render
        self._tape = broadcast
        self._index = position // MINUTE
        self._rows = broadcast.rows(topic, self._index)
        self._next = self._end(position, 0)

    def take(self, position: int) -> list[tuple[int, bytes]]:
        """What became due, with its arrival."""
        taken: list[tuple[int, bytes]] = []
        while True:
            arrivals, messages = self._rows
            end = self._end(position, self._next)
            if end > self._next:
                taken += zip(arrivals[self._next : end], messages[self._next : end], strict=True)
                self._next = end
            if position < (self._index + 1) * MINUTE:
                break
            self._index += 1
            self._rows, self._next = self._tape.rows(self.topic, self._index), 0
        return taken if self.render is None else [(arrival, self.render(message)) for arrival, message in taken]

    def _end(self, position: int, start: int) -> int:
        """Up to where messages are due: an event is sent whole, as snapshots and true books hold events whole."""
        arrivals = self._rows.arrivals
        end = bisect_right(arrivals, position, start)
        while start < end < len(arrivals) and arrivals[end] <= arrivals[end - 1] + _SAME_EVENT:
            end += 1
        return end
