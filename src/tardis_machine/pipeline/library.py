"""History for who imports the package: what the server replays, as asynchronous iterators and without a server.

Invariant: batches come in time order, and hold what the routes of the same name send.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson

from ..history.api import DEFAULT_API_URL
from ..history.client import HistoryClient
from ..messages import Message
from ..recorded_line import MESSAGE_START, TIME_LENGTH
from .fetching import fetch_lines
from .merger import combine
from .replay import NormalizedReplay, RawReplay
from .request import NormalizedRequest, parse_normalized_request, parse_raw_request

__all__ = ["replay", "replay_normalized"]


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
    raw = RawReplay(request)
    async with _client(api_url, api_key, cache_dir) as client:
        source = fetch_lines(client, request, raw.periods())
        async with aclosing(source):
            async for period, lines in source:
                if kept := raw.feed(period, lines):
                    yield [
                        (str(line[:TIME_LENGTH], "ascii"), orjson.loads(line[MESSAGE_START:])) if line else None for line in kept
                    ]


async def _replay_one(
    request: NormalizedRequest, api_url: str | None, api_key: str | None, cache_dir: str | Path | None
) -> AsyncGenerator[list[Message], None]:
    normalized = NormalizedReplay(request)
    async with _client(api_url, api_key, cache_dir) as client:
        source = fetch_lines(client, request, normalized.periods())
        async with aclosing(source):
            async for period, lines in source:
                if messages := normalized.feed(period, lines):
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
