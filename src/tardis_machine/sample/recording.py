"""What a recorder of the sample market would have written: an exchange's raw lines by minute, as the history API serves them.

Invariant: a minute's lines are sorted by local timestamp, and a filtered minute is a subsequence of the whole one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import itemgetter

from ..errors import OptionsError
from ..filters import Filter, optimize_filters, to_compact_json
from ..messages import UNSET, to_timestamp
from .bounded_cache import BoundedCache
from .instrument import Instrument
from .market import MINUTE_US, SampleMarket, SlotBook
from .seeded_random import key_of, mix, unit
from .venues import VENUES, Venue
from .venues._contract import SECOND, Wants

__all__ = ["Recording", "venue_of"]

_DAY_MINUTES = 1_440
_GREETING = 1_000
"""Clock ticks that the answers to a new connection may take; only what an exchange sends late comes later."""


class Recording:
    """The sample market as recorded: raw lines by exchange and minute, made on demand and kept, bounded. Threads may share it."""

    def __init__(
        self, market: SampleMarket | None = None, *, disconnects_per_day: float = 24.0, keep_bytes: int = 64 << 20
    ) -> None:
        self.market = market or SampleMarket()
        self._disconnects_per_day = disconnects_per_day
        self._minutes: BoundedCache[bytes] = BoundedCache(keep_bytes)
        self._lock = threading.Lock()

    def minute(self, exchange: str, index: int, filters: Sequence[Filter] = ()) -> bytes:
        """The raw lines of a minute since 1970; without filters, every channel and symbol."""
        optimized = optimize_filters(filters)
        key = (exchange, index, to_compact_json(optimized))
        with self._lock:
            data = self._minutes.get(key)
            if data is None:
                data = self._record(venue_of(exchange), index, _to_wants(optimized))
                self._minutes.put(key, data, len(data))
            return data

    def slice(self, exchange: str, start_us: int, minutes: int, filters: Sequence[Filter] = ()) -> bytes:
        """The raw lines of some minutes, from the one that `start_us` is in."""
        first = start_us // MINUTE_US
        return b"".join([self.minute(exchange, index, filters) for index in range(first, first + minutes)])

    def instruments(self, exchange: str, at_us: int) -> Sequence[Instrument]:
        """What an exchange lists at an instant."""
        return venue_of(exchange).instruments(at_us // MINUTE_US)

    def instrument(self, exchange: str, symbol: str, at_us: int) -> Instrument:
        """The instrument of a symbol, in any case."""
        listed = self.instruments(exchange, at_us)
        for instrument in listed:
            if instrument.symbol.upper() == symbol.upper():
                return instrument
        raise OptionsError(
            f"symbol '{symbol}' is not in the sample of {exchange}; it has {', '.join(each.symbol for each in listed)}"
        )

    def book_at(self, exchange: str, symbol: str, at_us: int) -> tuple[dict[float, float], dict[float, float]]:
        """The true book with all that the recorder had received until then: bids and asks, price to amount, best first."""
        instrument = self.instrument(exchange, symbol, at_us)
        # At the end of a minute the book is what the next one opens with, whether or not that one is ever made.
        book: SlotBook = (
            self.market.opening_book(instrument, at_us // MINUTE_US)
            if at_us % MINUTE_US == 0
            else self.market.book_at(instrument, at_us)
        )
        return book.levels(instrument)

    def outage(self, exchange: str, index: int) -> tuple[int, int] | None:
        """When the recorder lost its connection in a minute since 1970, and when it was back: in 100 ns, both in that minute."""
        key = mix(self.market.seed, key_of(exchange), index)
        if unit(key) >= self._disconnects_per_day / _DAY_MINUTES:
            return None
        lost = index * MINUTE_US * 10 + 10 * SECOND + mix(key, 1) % (35 * SECOND)
        return lost, lost + SECOND // 4 + mix(key, 2) % (3 * SECOND)

    def _record(self, venue: Venue, index: int, wants: Wants) -> bytes:
        start = index * MINUTE_US * 10
        rows: list[tuple[int, str]] = []
        for instrument in venue.instruments(index):
            channels = frozenset(channel for channel in venue.channels if wants(channel, venue.symbol(channel, instrument)))
            if channels:
                rows += venue.rows(self.market, self.market.minute(instrument, index), channels)
        rows += venue.common(self.market, index, wants)
        outage = self.outage(venue.exchange, index)
        if outage is not None:
            lost, back = outage
            rows = [row for row in rows if not lost <= row[0] <= back]
            rows.append((lost, ""))
            # All of the greeting comes before what the new connection brings.
            rows += venue.greeting(self.market, back - _GREETING, wants)
        if index % _DAY_MINUTES == 0:
            rows += venue.greeting(self.market, start + 1, wants)
        rows.sort(key=itemgetter(0))
        texts = [to_timestamp((index * 60 + second) * 1_000_000)[:20] for second in range(60)]
        lines = []
        for arrival, message in rows:
            second, fraction = divmod(arrival - start, SECOND)
            lines.append(f"{texts[second]}{fraction:07d}Z {message}\n" if message else "\n")
        return "".join(lines).encode()


def venue_of(exchange: str) -> Venue:
    """The venue of a name."""
    try:
        return VENUES[exchange]
    except KeyError:
        raise OptionsError(f"exchange '{exchange}' is not in the sample market; it has {', '.join(VENUES)}", "exchange") from None


def _to_wants(filters: Sequence[Filter]) -> Wants:
    """A filter without symbols, or with an empty list of them, takes all of its channel."""
    if not filters:
        return lambda channel, symbol: True
    asked = {item.channel: None if item.symbols is UNSET or not item.symbols else frozenset(item.symbols) for item in filters}

    def wants(channel: str, symbol: str) -> bool:
        if channel not in asked:
            return False
        symbols = asked[channel]
        return symbols is None or symbol in symbols

    return wants
