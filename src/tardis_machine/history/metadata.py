"""What the history API says about exchanges, instruments and API keys, kept on disk for a while.

    {cache_dir}/metadata/{name}.json

Invariant: what is older than an hour is asked for again, and served where upstream can't say anything newer. What a key opens is kept
under a digest of the key. A document, which may have tens of megabytes, is in memory once, and only while somebody uses it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar, cast
from weakref import WeakValueDictionary

import aiohttp
import msgspec
import orjson

from ..brief import brief
from ..errors import OptionsError, UpstreamError
from ..settings.defaults import cache_dir as default_cache_dir
from .api import DEFAULT_API_URL, DEFAULT_USER_AGENT, check_api_key, check_api_url, parse_refusal, read_bounded
from .cache import check_exchange, write_private
from .flights import Flights

__all__ = [
    "ApiKeyAccess",
    "ExchangeDetails",
    "InstrumentInfo",
    "InstrumentSymbols",
    "MetadataClient",
    "filter_instruments",
    "find_instrument_symbols",
    "get_api_key_access_info",
    "get_exchange_details",
    "get_instrument_info",
]

TTL_S = 3600.0
TIMEOUT_S = 30.0
MAX_BYTES = 256 * 1024 * 1024
_ATTEMPTS = 2
_PAUSE_S = 0.5

_LOG = logging.getLogger(__name__)

Found = TypeVar("Found")


class ExchangeDetails(TypedDict, total=False):
    """What there is of an exchange; upstream may say more than this."""

    id: str
    name: str
    enabled: bool
    filterable: bool
    availableSince: str
    availableChannels: list[str]
    availableSymbols: list[dict[str, Any]]
    incidentReports: list[dict[str, Any]]
    supportsDatasets: bool
    datasets: dict[str, Any]


class InstrumentInfo(TypedDict, total=False):
    """An instrument; upstream may say more than this."""

    id: str
    datasetId: str
    exchange: str
    baseCurrency: str
    quoteCurrency: str
    type: str
    active: bool
    availableSince: str
    availableTo: str
    priceIncrement: float
    amountIncrement: float
    minTradeAmount: float
    contractMultiplier: float
    changes: list[dict[str, Any]]


class ApiKeyAccess(TypedDict, total=False):
    """What an API key opens of an exchange, and from when until when."""

    exchange: str
    accessType: str
    dataPlan: str
    symbols: list[str]
    to: str


class InstrumentSymbols(TypedDict):
    """The symbols of an exchange that were found."""

    exchange: str
    symbols: list[str]


class Metadata:
    """A document as it came. `is_stale`: it may be out of date, as upstream is away."""

    def __init__(self, body: bytes, *, age_s: float = 0.0, is_stale: bool = False) -> None:
        self.body = body
        self.is_stale = is_stale
        self._born_s = time.monotonic() - age_s

    @property
    def age_s(self) -> float:
        """Since upstream said it."""
        return time.monotonic() - self._born_s

    def read(self) -> Any:
        """What it says, anew for each who asks: that takes several times the memory of its text."""
        return orjson.loads(self.body)


class MetadataClient:
    """Asks for documents. Makes its connections on demand: a document that was fetched within the hour takes none."""

    def __init__(
        self,
        api_url: str = DEFAULT_API_URL,
        api_key: str | None = None,
        cache_dir: Path | str | None = None,
        *,
        ttl_s: float = TTL_S,
        user_agent: str = DEFAULT_USER_AGENT,
    ) -> None:
        self._url = check_api_url(api_url)
        self._api_key = check_api_key(api_key)
        self._folder = Path(default_cache_dir(os.environ) if cache_dir is None else cache_dir) / "metadata"
        self._ttl_s = ttl_s
        self._headers = {"User-Agent": user_agent}
        self._session: aiohttp.ClientSession | None = None
        # Those that somebody uses.
        self._used: WeakValueDictionary[str, Metadata] = WeakValueDictionary()
        self._loading: Flights[str, Metadata] = Flights()
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._loading.close()
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def exchanges(self) -> Metadata:
        """All exchanges."""
        return await self._document("exchanges", "exchanges")

    async def exchange(self, exchange: str) -> Metadata:
        """ExchangeDetails."""
        return await self._document(f"exchanges/{check_exchange(exchange)}", f"exchange-{exchange}")

    async def instruments(self, exchange: str) -> Metadata:
        """A list of InstrumentInfo."""
        return await self._document(f"instruments/{check_exchange(exchange)}", f"instruments-{exchange}", with_key=True)

    async def api_key_info(self) -> Metadata:
        """A list of ApiKeyAccess."""
        return await self._document("api-key-info", "api-key-info", with_key=True)

    async def _document(self, path: str, name: str, *, with_key: bool = False) -> Metadata:
        """The one that others use, while it is new enough; else it is loaded, once for all who ask."""
        if with_key and self._api_key:
            name += "-" + hashlib.sha256(self._api_key.encode()).hexdigest()[:16]
        used = self._used.get(name)
        if used is None or used.is_stale or used.age_s >= self._ttl_s:
            used = self._used[name] = await self._loading.join(name, lambda: self._load(path, name))
        return used

    async def _load(self, path: str, name: str) -> Metadata:
        """From the disk while it is new enough, from upstream, or from the disk again."""
        file = self._folder / f"{name}.json"
        kept = await asyncio.to_thread(_read_kept, file)
        if kept is not None and kept.age_s < self._ttl_s:
            return kept
        try:
            body = await self._fetch(path)
            await asyncio.to_thread(_check, body, path)
        except UpstreamError as error:
            if kept is None or error.status in (401, 403, 404):
                raise
            _LOG.warning("%s; what was known of %s %d minutes ago is used", error, path, kept.age_s // 60)
            return Metadata(kept.body, age_s=kept.age_s, is_stale=True)
        try:
            await asyncio.to_thread(write_private, file, body)
        except OSError as error:
            _LOG.warning("the cache in %s can't be written (%s); continuing without it", self._folder, error.strerror or error)
        return Metadata(body)

    async def look_up(self, document: Metadata, find: Callable[[Any], Found]) -> Found:
        """What is found in a document, off the event loop; one at a time, as reading one takes much memory."""
        async with self._turn:
            return await asyncio.to_thread(lambda: find(document.read()))

    async def _fetch(self, path: str) -> bytes:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._fetch_once(path)
            except UpstreamError as error:
                if attempt == _ATTEMPTS or error.status < 500:
                    raise
            await asyncio.sleep(_PAUSE_S)
        raise AssertionError("unreachable")

    async def _fetch_once(self, path: str) -> bytes:
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        try:
            async with self._open_session().get(f"{self._url}/{path}", headers=headers) as response:
                body = await read_bounded(response, MAX_BYTES)
                if response.status == 200:
                    return body
                message, code = parse_refusal(body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            cause = " ".join(str(error).split()) or type(error).__name__
            raise UpstreamError(f"the history API could not be read for {path}: {cause}", 502) from None
        if message is None:
            message = f"the history API answered {response.status} for {path}"
        if self._api_key:
            message = message.replace(self._api_key, "***")
        raise UpstreamError(message, response.status, code)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=10 * TIMEOUT_S, sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S),
                trust_env=self._url.host not in ("127.0.0.1", "localhost", "::1"),
            )
        return self._session


def _read_kept(file: Path) -> Metadata | None:
    """The document; None where there is none that can be read."""
    try:
        body, age_s = file.read_bytes(), time.time() - file.stat().st_mtime
        _check(body, file.name)
    except (OSError, UpstreamError):
        return None
    return Metadata(body, age_s=max(age_s, 0.0))


def _check(body: bytes, path: str) -> None:
    """That it is JSON, without making anything of it."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise UpstreamError(f"the history API answered something that is no JSON for {path}: {error}", 502) from None


_FILTERED = ("id", "datasetId", "baseCurrency", "quoteCurrency", "type", "contractType", "underlyingType", "active")


def filter_instruments(instruments: Sequence[InstrumentInfo], wanted: Any) -> list[InstrumentInfo]:
    """Those of which each field has the value, or one of the values, that is wanted; since and to compare as dates do.

    Of `availableSince` and `availableTo` what is there from that date on, and until that date.
    """
    if not isinstance(wanted, Mapping):
        raise OptionsError(f"filter: expected an object such as {{'type': 'perpetual'}}, got {brief(wanted)}", "filter")
    for name in wanted:
        if name not in (*_FILTERED, "availableSince", "availableTo"):
            known = ", ".join((*_FILTERED, "availableSince", "availableTo"))
            raise OptionsError(f"filter: there is no field {brief(name)} to filter by; there are {known}", "filter")
    tests = [(name, _test_of(name, value)) for name, value in wanted.items()]
    return [instrument for instrument in instruments if all(test(instrument.get(name)) for name, test in tests)]


def _test_of(name: str, value: Any) -> Callable[[Any], bool]:
    """Whether what an instrument has is wanted."""
    if name == "availableSince":
        day = str(value)[:10]
        return lambda has: has is not None and str(has)[:10] <= day
    if name == "availableTo":
        day = str(value)[:10]
        return lambda has: has is None or str(has)[:10] >= day
    if isinstance(value, list | tuple):
        # Looked up, as a list may be long; what is no text, number or flag is nothing that an instrument has.
        values = frozenset(item for item in value if isinstance(item, str | int | float | None))
        return lambda has: has in values
    return lambda has: bool(has == value)


async def get_exchange_details(
    exchange: str, *, api_url: str | None = None, cache_dir: str | Path | None = None
) -> ExchangeDetails:
    """What there is of an exchange: since when, which channels and symbols.

    details = await get_exchange_details("bitmex")
    details["availableSince"]
    """
    async with MetadataClient(api_url or DEFAULT_API_URL, None, cache_dir) as client:
        return cast(ExchangeDetails, (await client.exchange(exchange)).read())


async def get_instrument_info(
    exchange: str | Sequence[str],
    *,
    symbol: str | None = None,
    filter: Mapping[str, Any] | None = None,  # noqa: A002 - as the other clients call it
    api_key: str | None = None,
    api_url: str | None = None,
    cache_dir: str | Path | None = None,
) -> list[InstrumentInfo]:
    """The instruments of one or more exchanges: all, those of a symbol, or those that a filter leaves.

    perpetuals = await get_instrument_info("bitmex", filter={"type": "perpetual", "active": True}, api_key="…")
    """
    found: list[InstrumentInfo] = []
    async with MetadataClient(api_url or DEFAULT_API_URL, api_key, cache_dir) as client:
        for name in [exchange] if isinstance(exchange, str) else exchange:
            found += (await client.instruments(name)).read()
    if symbol is not None:
        found = [instrument for instrument in found if instrument["id"].upper() == symbol.upper()]
    return found if filter is None else filter_instruments(found, filter)


async def find_instrument_symbols(
    exchanges: Sequence[str],
    filter: Mapping[str, Any],  # noqa: A002
    *,
    selector: Literal["id", "datasetId"] = "id",
    api_key: str | None = None,
    api_url: str | None = None,
    cache_dir: str | Path | None = None,
) -> list[InstrumentSymbols]:
    """The symbols of each exchange whose instruments a filter leaves, as requests or as datasets name them.

    await find_instrument_symbols(["deribit"], {"type": "option", "baseCurrency": "BTC"}, api_key="…")
    """
    found: list[InstrumentSymbols] = []
    for name in exchanges:
        instruments = await get_instrument_info(name, filter=filter, api_key=api_key, api_url=api_url, cache_dir=cache_dir)
        found.append({"exchange": name, "symbols": [each[selector] for each in instruments if selector in each]})
    return found


async def get_api_key_access_info(
    api_key: str, *, api_url: str | None = None, cache_dir: str | Path | None = None
) -> list[ApiKeyAccess]:
    """What an API key opens."""
    async with MetadataClient(api_url or DEFAULT_API_URL, api_key, cache_dir) as client:
        return cast(list[ApiKeyAccess], (await client.api_key_info()).read())
