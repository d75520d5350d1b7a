"""What a request makes of recorded lines: which to fetch, through which mappers, cut to the second.

Invariant: synchronous and pure, so that worker processes, the library and Spark run the same code. Nothing here fetches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from ..computed import Computer
from ..computed.data_types import parse_data_types
from ..exchanges import exchange_named, switch_dates_us
from ..filters import Filter
from ..history.reader import lines_between
from ..messages import Message
from .normalizer import Normalizer, messages_of, symbol_filter
from .request import NormalizedRequest, RawRequest

__all__ = ["NormalizedReplay", "Period", "RawReplay"]


class Period(msgspec.Struct, frozen=True):
    """A part of a replay that one set of filters and mappers serves."""

    from_us: int
    to_us: int
    filters: Sequence[Filter]


class RawReplay:
    """Recorded lines of one raw request, cut and cleaned; lines are what the history API recorded, an empty one a disconnect."""

    def __init__(self, request: RawRequest) -> None:
        self._request = request
        # Whether the last line was a disconnect: repeats say nothing new.
        self._was_disconnect = False

    def periods(self) -> list[Period]:
        """One: the filters are the client's own."""
        return [Period(self._request.from_us, self._request.to_us, self._request.filters)]

    def feed(self, period: Period, lines: list[bytes]) -> list[bytes]:
        """The lines that belong to the answer."""
        lines = lines_between(lines, period.from_us, period.to_us)
        if b"" not in lines:
            if lines:
                self._was_disconnect = False
            return lines
        kept = []
        for line in lines:
            if line or (self._request.with_disconnects and not self._was_disconnect):
                kept.append(line)
            self._was_disconnect = not line
        return kept


class NormalizedReplay:
    """Normalized and computed messages of one request; `only_written`: nobody looks into them (see Normalizer)."""

    def __init__(self, request: NormalizedRequest, keep_disconnects: bool = False, only_written: bool = False) -> None:
        self._request = request
        self._only_written = only_written
        # To be shown, or only to be published.
        self._with_disconnects = keep_disconnects or request.with_disconnect_messages
        wanted = parse_data_types(request.data_types)
        self._data_types = wanted.normalizers
        # As in the reference, bars and books go on through a disconnect that was not asked for.
        self._computer = Computer(wanted, reset_on_disconnect=request.with_disconnect_messages)
        self.computing_weight = wanted.weight
        """What computing makes of one message at most, see DataTypes; 0 where `compute` changes nothing."""
        self.heaviest = max((item.weight for item in wanted.computables), default=1)
        """The weight of the heaviest computed message."""
        self._normalizer: Normalizer | None = None
        # The period that the normalizer was made for.
        self._period: Period | None = None
        self._symbols: frozenset[str] | None = None

    def periods(self) -> list[Period]:
        """The request cut where a mapper is replaced: what to ask upstream for may change there too."""
        request = self._request
        exchange = exchange_named(request.exchange)
        switches = [date for date in switch_dates_us(exchange, self._data_types) if request.from_us < date < request.to_us]
        return [
            Period(start, end, self._make_normalizer(start).filters(request.symbols))
            for start, end in pairwise([request.from_us, *switches, request.to_us])
        ]

    def feed(self, period: Period, lines: Sequence[bytes]) -> list[Message]:
        """The messages of a batch of lines."""
        return self.compute(self.normalize(period, lines))

    def normalize(self, period: Period, lines: Sequence[bytes]) -> list[Message]:
        """The messages of a batch of lines, without computed ones. They are to be given to `compute` in their order."""
        messages = self._normalizer_for(period).feed_lines(lines_between(lines, period.from_us, period.to_us))
        return messages if self._symbols is None else messages_of(messages, self._symbols)

    def compute(self, messages: list[Message]) -> list[Message]:
        """Normalized messages with the computed ones among them, and without those that only served to compute others."""
        return self._computer.feed(messages)

    def _normalizer_for(self, period: Period) -> Normalizer:
        if self._normalizer is None or period != self._period:
            self._period = period
            self._normalizer = self._make_normalizer(period.from_us)
            self._symbols = symbol_filter(self._request.symbols, period.filters)
        return self._normalizer

    def _make_normalizer(self, at_us: int) -> Normalizer:
        return Normalizer(
            self._request.exchange,
            self._data_types,
            at_us,
            with_disconnects=self._with_disconnects,
            # What is computed looks into levels.
            only_written=self._only_written and not self.computing_weight,
        )
