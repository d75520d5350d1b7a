"""History as batches of messages: what to fetch, through which mappers, cut to the second.

Invariant: everything between slices and messages is synchronous and pure (`RawReplay`, `NormalizedReplay`), so that a worker process and
this process run the same code. The asynchronous functions below are the library's own way to it, without a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import orjson

from ..computed import Computer
from ..computed.data_types import parse_data_types
from ..errors import SliceError
from ..exchanges import exchange_named, switch_dates_us
from ..filters import Filter
from ..history.api import DEFAULT_API_URL
from ..history.client import HistoryClient
from ..history.reader import lines_between, read_lines
from ..history.slice import Slice
from ..messages import Disconnect, Message
from .merger import combine
from .normalizer import Normalizer, symbol_filter
from .request import NormalizedRequest, RawRequest, parse_normalized_request, parse_raw_request

__all__ = ["LINES_IN_BATCH", "NormalizedReplay", "RawReplay", "Segment", "batches", "fetch_lines", "replay", "replay_normalized"]

# Large enough that a batch's costs vanish, small enough that the event loop is not held up.
LINES_IN_BATCH = 1_000


class Segment(msgspec.Struct, frozen=True):
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

    def segments(self) -> list[Segment]:
        """One: the filters are the client's own."""
        return [Segment(self._request.from_us, self._request.to_us, self._request.filters)]

    def feed(self, segment: Segment, lines: list[bytes]) -> list[bytes]:
        """The lines that belong to the answer."""
        lines = lines_between(lines, segment.from_us, segment.to_us)
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
    """Normalized and computed messages of one request."""

    def __init__(self, request: NormalizedRequest, keep_disconnects: bool = False) -> None:
        self._request = request
        # To be shown, or only to be published.
        self._with_disconnects = keep_disconnects or request.with_disconnect_messages
        wanted = parse_data_types(request.data_types)
        self._data_types = wanted.normalizers
        # As in the reference, bars and books go on through a disconnect that was not asked for.
        self._computer = Computer(wanted, reset_on_disconnect=request.with_disconnect_messages)
        self._normalizer: Normalizer | None = None
        # The segment that the normalizer was made for.
        self._segment: Segment | None = None
        self._symbols: frozenset[str] | None = None

    def segments(self) -> list[Segment]:
        """The request cut where a mapper is replaced: what to ask upstream for may change there too."""
        request = self._request
        exchange = exchange_named(request.exchange)
        switches = [date for date in switch_dates_us(exchange, self._data_types) if request.from_us < date < request.to_us]
        return [
            Segment(start, end, self._make_normalizer(start).filters(request.symbols))
            for start, end in pairwise([request.from_us, *switches, request.to_us])
        ]

    def feed(self, segment: Segment, lines: list[bytes]) -> list[Message]:
        """The messages of a batch of lines."""
        return self._complete(self._normalizer_for(segment).feed_lines(lines_between(lines, segment.from_us, segment.to_us)))

    @property
    def can_skim(self) -> bool:
        """Whether `skim` takes much less than `feed`: what is computed needs every message."""
        return not self._computer.is_needed and self._make_normalizer(self._request.from_us).can_skim

    def skim(self, segment: Segment, lines: list[bytes]) -> None:
        """Goes past a batch of lines that another worker feeds."""
        self._normalizer_for(segment).skim_lines(lines_between(lines, segment.from_us, segment.to_us))

    def _normalizer_for(self, segment: Segment) -> Normalizer:
        if self._normalizer is None or segment != self._segment:
            self._segment = segment
            self._normalizer = self._make_normalizer(segment.from_us)
            self._symbols = symbol_filter(self._request.symbols, segment.filters)
        return self._normalizer

    def _complete(self, messages: list[Message]) -> list[Message]:
        if self._symbols is not None and not _are_all_of(messages, self._symbols):
            symbols = self._symbols
            messages = [m for m in messages if isinstance(m, Disconnect) or m.symbol in symbols]  # type: ignore[union-attr]
        return self._computer.feed(messages)

    def _make_normalizer(self, at_us: int) -> Normalizer:
        return Normalizer(self._request.exchange, self._data_types, at_us, with_disconnects=self._with_disconnects)


_symbol_of = attrgetter("symbol")


def _are_all_of(messages: list[Message], symbols: frozenset[str]) -> bool:
    """Nearly always: upstream has left the others out. This takes a tenth of the time of looking at each."""
    try:
        return symbols.issuperset(map(_symbol_of, messages))
    except AttributeError:  # a disconnect
        return False


def batches(lines: list[bytes], size: int = LINES_IN_BATCH) -> Iterator[list[bytes]]:
    """A slice's lines in batches."""
    for start in range(0, len(lines), size):
        yield lines[start : start + size]


async def fetch_slices(
    client: HistoryClient, request: RawRequest | NormalizedRequest, segments: Sequence[Segment]
) -> AsyncGenerator[tuple[Segment, Slice], None]:
    """The slices of a request in time order, each with its segment."""
    for segment in segments:
        slices = client.slices(
            request.exchange,
            segment.from_us,
            segment.to_us,
            segment.filters,
            api_key=request.api_key,
            auto_cleanup=request.auto_cleanup,
            wait_when_data_not_yet_available=request.wait_when_data_not_yet_available,
        )
        async with aclosing(slices):
            async for piece in slices:
                yield segment, piece


async def fetch_lines(
    client: HistoryClient, request: RawRequest | NormalizedRequest, segments: Sequence[Segment]
) -> AsyncGenerator[tuple[Segment, list[bytes]], None]:
    """The recorded lines of a request in time order, in batches, each with its segment; what is damaged is fetched anew."""
    slices = fetch_slices(client, request, segments)
    async with aclosing(slices):
        async for segment, piece in slices:
            try:
                contents = [await asyncio.to_thread(read_lines, piece)]
            except SliceError:
                # What lies in the cache may be damaged; what was fetched just now may not.
                contents = [
                    await asyncio.to_thread(read_lines, anew) for anew in await client.refetch(piece, api_key=request.api_key)
                ]
            for batch in (batch for lines in contents for batch in batches(lines)):
                yield segment, batch


def _client(api_url: str | None, api_key: str | None, cache_dir: str | Path | None) -> HistoryClient:
    return HistoryClient(api_url or DEFAULT_API_URL, api_key, cache_dir)


async def replay(
    *,
    exchange: str,
    from_: str,
    to: str,
    filters: Sequence[dict[str, Any]] = (),
    with_disconnects: bool = False,
    api_key: str | None = None,
    api_url: str | None = None,
    cache_dir: str | Path | None = None,
    auto_cleanup: bool = False,
    wait_when_data_not_yet_available: bool | float = False,
) -> AsyncGenerator[list[tuple[str, Any] | None], None]:
    """Recorded messages in the exchange's own format: batches of (local timestamp, message), None for a disconnect.

    async for batch in replay(exchange="bitmex", from_="2020-02-01", to="2020-02-02",
                              filters=[{"channel": "trade", "symbols": ["XBTUSD"]}]):
        for local_timestamp, message in batch: ...
    """
    request = parse_raw_request(
        {
            "exchange": exchange,
            "from": from_,
            "to": to,
            "filters": [dict(item) for item in filters],
            "withDisconnects": with_disconnects,
            "autoCleanup": auto_cleanup,
            "waitWhenDataNotYetAvailable": wait_when_data_not_yet_available,
        }
    )
    steps = RawReplay(request)
    async with _client(api_url, api_key, cache_dir) as client:
        source = fetch_lines(client, request, steps.segments())
        async with aclosing(source):
            async for segment, lines in source:
                if kept := steps.feed(segment, lines):
                    yield [(str(line[:28], "ascii"), orjson.loads(line[29:])) if line else None for line in kept]


async def _replay_one(
    request: NormalizedRequest, api_url: str | None, api_key: str | None, cache_dir: str | Path | None
) -> AsyncGenerator[list[Message], None]:
    steps = NormalizedReplay(request)
    async with _client(api_url, api_key, cache_dir) as client:
        source = fetch_lines(client, request, steps.segments())
        async with aclosing(source):
            async for segment, lines in source:
                if messages := steps.feed(segment, lines):
                    yield messages


def replay_normalized(
    *requests: dict[str, Any],
    exchange: str | None = None,
    symbols: Sequence[str] | None = None,
    from_: str | None = None,
    to: str | None = None,
    data_types: Sequence[str] = (),
    with_disconnect_messages: bool = False,
    api_key: str | None = None,
    api_url: str | None = None,
    cache_dir: str | Path | None = None,
    auto_cleanup: bool = False,
    wait_when_data_not_yet_available: bool | float = False,
) -> AsyncGenerator[list[Message], None]:
    """Normalized history as batches of messages. Several requests, given as options objects, are merged by local timestamp.

    async for batch in replay_normalized(exchange="bitmex", symbols=["XBTUSD"], from_="2020-02-01", to="2020-02-02",
                                         data_types=["trade", "book_change"]):
        for message in batch: ...
    """
    options = list(requests) or [
        {
            "exchange": exchange,
            "symbols": None if symbols is None else list(symbols),
            "from": from_,
            "to": to,
            "dataTypes": list(data_types),
            "withDisconnectMessages": with_disconnect_messages,
            "autoCleanup": auto_cleanup,
            "waitWhenDataNotYetAvailable": wait_when_data_not_yet_available,
        }
    ]
    streams = [_replay_one(parse_normalized_request(item), api_url, api_key, cache_dir) for item in options]
    return streams[0] if len(streams) == 1 else combine(*streams)
