"""One running exchange: its broadcast, its clock, the faults it was told to show, and its true books.

Invariant: the true book is the one that a client has who applied every message sent until now, no more and no less.
"""

from __future__ import annotations

import re
from itertools import count

from ...errors import OptionsError
from ..market import SampleMarket
from ..venues import Venue
from ..venues._contract import SECOND
from .broadcast import MINUTE, Broadcast, Topic
from .clock import Clock
from .clock_skew import shift_times
from .misbehaviour import Faults

__all__ = ["LiveVenue"]


class LiveVenue:
    """What all connections to one exchange share."""

    def __init__(self, venue: Venue, market: SampleMarket, clock: Clock, times: re.Pattern[bytes]) -> None:
        self.name = venue.exchange
        self.venue = venue
        self.clock = clock
        self.broadcast = Broadcast(market, venue)
        self.faults = Faults()
        self._times = times
        self._identities = count(1)

    @property
    def now_us(self) -> int:
        """What the exchange's own clock says."""
        return self.clock.now_us + self.faults.skew_ms * 1_000

    def next_identity(self) -> int:
        """A number for a new connection."""
        return next(self._identities)

    def skewed(self, message: bytes) -> bytes:
        """A message with the times that the exchange's clock says."""
        return message if not self.faults.skew_ms else shift_times(message, self._times, self.faults.skew_ms)

    def topics(self, channel: str, symbol: str | None = None) -> list[Topic]:
        """A channel of a symbol as it is spelled, or of all that is listed (None); empty when there is no such thing."""
        if channel not in self.venue.channels and channel not in self.venue.live_channels:
            return []
        listed = self.venue.instruments(self.clock.position // MINUTE)
        return [
            Topic(channel, self.venue.symbol(channel, each), each)
            for each in listed
            if symbol is None or self.venue.symbol(channel, each) == symbol
        ]

    def opening(self, topic: Topic, old_s: float = 0.0) -> str | None:
        """The snapshot that a subscription starts with, as of now or of a while ago."""
        if topic.instrument is None:
            return None
        at = self.clock.position - int(old_s * SECOND)
        return self.venue.opening(self.broadcast.market, self.broadcast.minute(topic.instrument, at), topic.channel, at)

    def true_book(self, symbol: str, channel: str | None = None) -> tuple[dict[float, float], dict[float, float]]:
        """Bids and asks, price to amount, best first, as a channel has told them until now."""
        channel = channel or self.venue.book_channels[0]
        listed = self.venue.instruments(self.clock.position // MINUTE)
        for instrument in listed:
            if symbol.upper() in (instrument.symbol.upper(), self.venue.symbol(channel, instrument).upper()):
                minute = self.broadcast.minute(instrument, self.clock.position)
                return self.venue.shown(self.broadcast.market, minute, channel, self.clock.position).levels(instrument)
        names = ", ".join(each.symbol for each in listed)
        raise OptionsError(f"symbol: expected one of {names}, which {self.name} has, got '{symbol}'", "symbol")
