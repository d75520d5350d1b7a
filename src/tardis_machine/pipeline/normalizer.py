"""Raw messages of one exchange to normalized ones: the pure heart of replay and live alike.

Invariant: what comes out depends only on what was fed, in its order; no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter

import orjson

from ..errors import NormalizeError, OptionsError
from ..exchanges import Json, Mapper, decode_lines, exchange_named, feed_messages, make_mappers
from ..filters import Filter, merge_filters
from ..messages import Disconnect, Message, parse_timestamp_us
from ..recorded_line import MESSAGE_START, Lines, clock_of, time_of, to_clock

__all__ = ["Decoded", "Normalizer", "messages_of", "symbol_filter"]

# What was parsed is still in the processor's cache when it is mapped.
_LINES_DECODED = 250
_BYTES_DECODED = 64 * 1024


@dataclass
class Decoded:
    """Recorded lines and what was parsed of them; where one could not be, `messages` ends before it and `error` says why."""

    lines: Sequence[bytes]
    clocks: Sequence[str | None]
    """The recorder's time of each; None is a lost connection."""
    messages: list[Json] = field(default_factory=list)
    error: Exception | None = None


class Normalizer:
    """Normalizes the messages of one connection at a time.

    `at` picks the mappers' version (None: the latest); `realtime` makes checks strict where a live feed can still be mended.
    `only_written` is for whoever does nothing with messages of `feed_lines` but write them: levels of books may be text already.

    >>> n = Normalizer("bitmex", ["trade"])
    >>> [(f.channel, f.symbols) for f in n.filters(["xbtusd"])]
    [('trade', ['XBTUSD'])]
    >>> n.feed(b"2019-06-01T00:00:28.6190000Z", b'{"table":"quote","action":"insert","data":[]}')
    []
    """

    def __init__(
        self,
        exchange: str,
        data_types: Sequence[str],
        at: datetime | int | None = None,
        realtime: bool = False,
        *,
        with_disconnects: bool = False,
        only_written: bool = False,
    ) -> None:
        self._exchange = exchange_named(exchange)
        self._data_types = _checked(data_types, self._exchange.name, self._exchange.data_types)
        self._prepare = self._exchange.prepare
        self._realtime = realtime
        self._with_disconnects = with_disconnects
        self._only_written = only_written
        self._at_us = int(at.astimezone(UTC).timestamp() * 1_000_000) if isinstance(at, datetime) else at
        # None between a lost connection and the next message, whose date picks the new mappers.
        self._mappers: list[Mapper] | None = make_mappers(self._exchange, self._data_types, self._at_us, realtime)
        # The recorder's clock at the last message; None until there was one.
        self._last: str | None = None

    @property
    def exchange(self) -> str:
        """The exchange's name."""
        return self._exchange.name

    def filters(self, symbols: Sequence[str] | None = None) -> list[Filter]:
        """What to ask upstream for, so that `feed` gets what it needs."""
        mappers = self._mappers or make_mappers(self._exchange, self._data_types, self._at_us, self._realtime)
        return merge_filters(item for mapper in mappers for item in mapper.filters(symbols))

    def feed(self, local_timestamp: bytes, raw: bytes) -> list[Message]:
        """The normalized messages of one raw message; raises NormalizeError, which holds what was emitted before it."""
        decoded = Decoded([local_timestamp], [to_clock(local_timestamp.decode())])
        try:
            decoded.messages.append(orjson.loads(raw if self._prepare is None else self._prepare(raw)))
        except Exception as error:
            decoded.error = error
        return self.feed_decoded(decoded)

    def feed_lines(self, lines: Sequence[bytes]) -> list[Message]:
        """The normalized messages of recorded lines; an empty line is a lost connection."""
        out: list[Message] = []
        unread = tuple(mapper.unread for mapper in self._mappers or () if mapper.unread)
        last: str | None = None
        parts: Iterable[Sequence[bytes]]
        if self._prepare is not None:
            lines = [self._prepare(line) for line in lines]
        if isinstance(lines, Lines):
            if unread and lines and not lines.has_empty:
                last = clock_of(lines.data[lines.last_start : lines.end])
                lines = Lines(lines.data, lines.start, lines.end, unread)
            parts = lines.in_parts(_BYTES_DECODED)
        else:
            if unread and lines and b"" not in lines:
                last = clock_of(lines[-1])
                lines = [line for line in lines if not line.startswith(unread, MESSAGE_START)]
            parts = (lines[start : start + _LINES_DECODED] for start in range(0, len(lines), _LINES_DECODED))
        for part in parts:
            self.feed_decoded(Decoded(part, *decode_lines(part, self._only_written)), out)
        self._last = last or self._last
        return out

    def feed_decoded(self, decoded: Decoded, out: list[Message] | None = None) -> list[Message]:
        """The normalized messages of what was decoded, appended to `out`."""
        out = [] if out is None else out
        clocks, messages = decoded.clocks, decoded.messages
        error: Exception | None = None
        place = 0
        while place < len(messages) and error is None:
            clock = clocks[place]
            if clock is None:
                # Of connections that were lost one after the other, with nothing in between, the first is told.
                if self._mappers is not None:
                    out += self.disconnect()
                place += 1
                continue
            try:
                mappers = self._mappers if self._mappers is not None else self._reconnect(clock)
            except Exception as mistake:
                error = mistake
            else:
                place, error = feed_messages([(mapper.accepts, mapper.map) for mapper in mappers], clocks, messages, place, out)
            self._last = clocks[place - (error is None)]
        if error is None and decoded.error is not None:
            error, self._last = decoded.error, clocks[place]
        if error is not None:
            raise _normalize_error(self._exchange.name, decoded.lines[place], place, error, out) from error
        return out

    def disconnect(self) -> list[Message]:
        """The connection was lost: state is forgotten; the message that says so, where asked for and not before the first message."""
        self._mappers = None
        if self._with_disconnects and self._last is not None:
            return [Disconnect(self._exchange.name, self._last)]
        return []

    def _reconnect(self, local_timestamp: str) -> list[Mapper]:
        at_us = self._at_us if self._realtime else parse_timestamp_us(local_timestamp)
        self._mappers = make_mappers(self._exchange, self._data_types, at_us, self._realtime)
        return self._mappers


def _checked(data_types: Sequence[str], exchange: str, known: Sequence[str]) -> list[str]:
    for name in data_types:
        if name not in known:
            raise OptionsError(f"dataTypes: {exchange} has no {name!r}; it has {', '.join(known)}", "dataTypes")
    return list(data_types)


def _normalize_error(exchange: str, line: bytes, place: int, error: Exception, emitted: list[Message]) -> NormalizeError:
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    mistake = NormalizeError(
        f"{exchange} message received at {time_of(line).decode('ascii', 'replace')} can't be normalized: {cause}"
    )
    mistake.emitted = emitted
    mistake.place = place
    return mistake


def symbol_filter(symbols: Sequence[str] | None, filters: Iterable[Filter]) -> frozenset[str] | None:
    """The normalized symbols that a request for `symbols` lets through; None: all.

    Upstream can't filter every channel by symbol, and some exchanges spell a symbol otherwise in a channel than in its messages.
    """
    if not symbols:
        return None
    spelled = {symbol for item in filters if isinstance(item.symbols, (list, tuple)) for symbol in item.symbols}
    return frozenset({*symbols, *(symbol.upper() for symbol in symbols), *spelled, *(symbol.upper() for symbol in spelled)})


_symbol_of = attrgetter("symbol")


def messages_of(messages: list[Message], symbols: frozenset[str]) -> list[Message]:
    """Those of these symbols; a disconnect is of all."""
    try:
        # Nearly always: upstream has left the others out. This takes a tenth of the time of looking at each.
        if symbols.issuperset(map(_symbol_of, messages)):
            return messages
    except AttributeError:
        pass  # a disconnect has none
    return [m for m in messages if isinstance(m, Disconnect) or m.symbol in symbols]  # type: ignore[union-attr]
