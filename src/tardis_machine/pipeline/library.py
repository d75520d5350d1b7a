"""History for who imports the package: what the server replays, as asynchronous iterators and without a server.

Invariant: batches come in time order, and hold what the routes of the same name send.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson

from ..history.api import DEFAULT_API_URL
from ..history.client import HistoryClient
from ..messages import Message
from ..realtime.accounts import check_credentials
from ..realtime.backoff import Timings
from ..realtime.endpoints import check_urls
from ..recorded_line import MESSAGE_START, TIME_LENGTH
from .fetching import fetch_lines
from .merger import combine
from .replay import NormalizedReplay, RawReplay
from .request import NormalizedRequest, SinceRequest, parse_raw_request, parse_replay_requests
from .since import SinceReplays

__all__ = ["parse_replay", "replay", "replay_normalized"]


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


async def _replay_since(
    requests: Sequence[SinceRequest],
    api_url: str | None,
    api_key: str | None,
    cache_dir: str | Path | None,
    urls: Mapping[str, str],
    credentials: Mapping[str, str],
    timings: Timings | None,
    history: Mapping[str, Any],
) -> AsyncGenerator[list[Message], None]:
    async with (
        HistoryClient(api_url or DEFAULT_API_URL, api_key, cache_dir, **history) as client,
        SinceReplays(requests, client, urls=urls, credentials=credentials, timings=timings) as replays,
    ):
        for source in (replays.history(), replays.live()):
            async with aclosing(source):
                async for batch in source:
                    if shown := replays.shown(batch):
                        yield shown


_FIELDS = {
    "exchange": "exchange",
    "symbols": "symbols",
    "from": "from_",
    "to": "to",
    "dataTypes": "data_types",
    "withDisconnectMessages": "with_disconnect_messages",
    "autoCleanup": "auto_cleanup",
    "waitWhenDataNotYetAvailable": "wait_when_data_not_yet_available",
}
"""The fields of a request, and the keywords of each."""


def parse_replay(
    requests: Sequence[dict[str, Any]], keywords: Mapping[str, Any]
) -> Sequence[NormalizedRequest] | Sequence[SinceRequest]:
    """The requests of `replay_normalized`: options objects, or one by keywords."""
    given = {field: keywords.get(keyword) for field, keyword in _FIELDS.items()}
    listed = {name: list(value) for name in ("symbols", "dataTypes") if (value := given[name]) is not None}
    options = list(requests) or [{"dataTypes": []} | given | listed]
    return parse_replay_requests(options[0] if len(options) == 1 else options)


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
    wait_when_data_not_yet_available: bool | float | None = None,
    exchange_urls: Mapping[str, str] | None = None,
    exchange_credentials: Mapping[str, str] | None = None,
    _timings: Timings | None = None,
    _history: Mapping[str, Any] | None = None,
) -> AsyncGenerator[list[Message], None]:
    """Normalized history as batches of messages. Several requests, given as options objects, are merged by local timestamp.

    Without `to`, or with "live", it goes on with live data where history ends, for ever.

    async for batch in replay_normalized(exchange="bitmex", symbols=["XBTUSD"], from_="2020-02-01", to="2020-02-02",
                                         data_types=["trade", "book_change"]):
        for message in batch: ...
    """
    parsed = parse_replay(
        requests,
        {
            "exchange": exchange,
            "symbols": symbols,
            "from_": from_,
            "to": to,
            "data_types": data_types,
            "with_disconnect_messages": with_disconnect_messages,
            "auto_cleanup": auto_cleanup,
            "wait_when_data_not_yet_available": wait_when_data_not_yet_available,
        },
    )
    if isinstance(parsed[0], SinceRequest):
        urls, credentials = check_urls(exchange_urls or {}), check_credentials(exchange_credentials or {})
        since = [item for item in parsed if isinstance(item, SinceRequest)]
        return _replay_since(since, api_url, api_key, cache_dir, urls, credentials, _timings, _history or {})
    streams = [_replay_one(item, api_url, api_key, cache_dir) for item in parsed if isinstance(item, NormalizedRequest)]
    return streams[0] if len(streams) == 1 else combine(*streams)
