"""The history API over HTTP: one slice, asked for until it has come or there is no hope.

Invariant: a download that is returned has been decompressed once and found whole.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from .._version import __version__
from ..errors import OptionsError, SettingsError, SliceError, UpstreamError
from ..filters import Filter, to_compact_json
from .fair_slots import FairSlots
from .reader import check_lines, decompress, fits
from .slice import MINUTE_US, Encoding, to_datetime, to_slice_name
from .threads import Threads

__all__ = [
    "DEFAULT_API_URL",
    "Compression",
    "Download",
    "HistoryApi",
    "RetryPolicy",
    "UpstreamRequest",
    "check_api_key",
    "check_api_url",
    "parse_refusal",
    "read_bounded",
]

DEFAULT_API_URL = "https://api.tardis.dev/v1"
DEFAULT_USER_AGENT = f"tardis-machine/{__version__} (Python)"

Compression = Literal["zstd", "zstd-multiframe", "gzip"]

MAX_SLICE_MINUTES = 1440
MAX_SUGGESTED_MINUTES = 60
MAX_SLICE_BYTES = 1 << 30
MAX_ERROR_BYTES = 64 * 1024
CORRUPT_ATTEMPTS = 2
"""A body that HTTP calls complete but is corrupt would most often come corrupt again."""

_LOG = logging.getLogger(__name__)

_ENCODINGS: dict[str, Encoding] = {"zstd": "zst", "gzip": "gz", "x-gzip": "gz", "identity": "gz", "": "gz"}
_SAME_AGAIN = frozenset({400, 401, 402, 403, 404, 405, 406, 410, 413, 414, 415, 422, 431, 451})
"""Answers that another try would not change."""

_HOPELESS = (aiohttp.InvalidURL, aiohttp.TooManyRedirects, aiohttp.ClientConnectorCertificateError)
_WORTH_ANOTHER_TRY = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """Minutes to ask for, counted from the start of the replay they belong to."""

    exchange: str
    from_us: int
    offset: int
    minutes: int
    filters: tuple[Filter, ...]
    api_key: str | None = field(repr=False)
    asker: Hashable = None
    """Whose share of the slots it takes."""
    attempts: int | None = None
    """How often it is asked for at most; None: as the policy says."""

    @property
    def start_us(self) -> int:
        return self.from_us + self.offset * MINUTE_US

    @property
    def name(self) -> str:
        return to_slice_name(self.exchange, self.start_us, self.minutes)


@dataclass(frozen=True, slots=True)
class Download:
    """What came: compressed as sent, how many minutes it covers, and what size upstream suggests to ask for."""

    data: bytes = field(repr=False)
    encoding: Encoding
    minutes: int
    suggested_minutes: int


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently a slice is asked for."""

    attempts: int = 30
    timeout_s: float = 135.0
    """Without a byte received; a whole answer may take ten times that."""
    backoff_scale: float = 1.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    def to_delay_s(self, attempt: int, status: int | None) -> float:
        """How long to wait after this attempt, the first being 1, failed with this HTTP status (None: without an answer)."""
        delay_s = min(2.0**attempt, 120.0) + random.random() * 0.5
        if status == 429:
            delay_s += 60.0
        elif status == 500:
            delay_s *= 2.0
        return delay_s * self.backoff_scale


class HistoryApi:
    """Asks for slices, at most `concurrency` at a time, which askers share fairly."""

    def __init__(
        self,
        api_url: str,
        threads: Threads,
        *,
        user_agent: str,
        compression: Compression,
        concurrency: int,
        retry: RetryPolicy,
    ) -> None:
        self._url = check_api_url(api_url)
        self._threads = threads
        self._headers = {"Accept-Encoding": "zstd, gzip", "User-Agent": user_agent}
        self._compression = compression
        self._concurrency = concurrency
        self._slots = FairSlots(concurrency)
        self._retry = retry
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def fetch_slice(self, request: UpstreamRequest) -> Download:
        """The slice, whole; it may cover fewer or more minutes than asked for."""
        corrupt = 0
        attempt = 0
        attempts = request.attempts or self._retry.attempts
        while True:
            attempt += 1
            try:
                async with self._slots.held_by(request.asker):
                    download = await self._fetch_once(request)
                if download is not None:
                    return download
                request = replace(request, minutes=1)
                continue
            except SliceError:
                corrupt += 1
                if corrupt == CORRUPT_ATTEMPTS:
                    raise
                continue
            except UpstreamError as error:
                failure, status = error, error.status
                hopeless = status in _SAME_AGAIN and not (status == 400 and "ISO 8601 format" in str(error))
            except _WORTH_ANOTHER_TRY as error:
                failure, status = _to_failure(request, error), None
                hopeless = isinstance(error, _HOPELESS)
            if hopeless or attempt >= attempts:
                raise failure
            delay_s = self._retry.to_delay_s(attempt, status)
            _LOG.log(
                logging.INFO if attempt < 3 else logging.WARNING,
                "slice %s: attempt %d of %d failed, next in %.1f s: %s",
                *(request.name, attempt, attempts, delay_s, failure),
            )
            await self._retry.sleep(delay_s)

    async def _fetch_once(self, request: UpstreamRequest) -> Download | None:
        """One try; None when the answer does not say how many minutes it covers, and it may not be one."""
        headers = dict(self._headers)
        if request.api_key:
            headers["Authorization"] = f"Bearer {request.api_key}"
        async with self._open_session().get(self._to_url(request), headers=headers) as response:
            if response.status != 200:
                raise await self._to_refusal(request, response)
            minutes = _parse_minutes(response, request)
            if minutes is None and request.minutes > 1:
                return None
            encoding = _ENCODINGS.get(_content_encoding(response))
            if encoding is None:
                raise SliceError(
                    f"slice {request.name} is encoded as {_content_encoding(response)!r}, which is neither zstd nor gzip"
                )
            data = await read_bounded(response, MAX_SLICE_BYTES + 1)
            suggested = _parse_suggestion(response)
        if len(data) > MAX_SLICE_BYTES:
            raise SliceError(f"slice {request.name} has more than {MAX_SLICE_BYTES} bytes")
        await self._threads.run(_check, data, encoding, request, minutes)
        return Download(data, encoding, minutes or 1, suggested)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            patience_s = self._retry.timeout_s
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                connector=aiohttp.TCPConnector(limit=self._concurrency),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=10 * patience_s, sock_connect=patience_s, sock_read=patience_s),
                # A proxy of the environment is for the world outside.
                trust_env=self._url.host not in ("127.0.0.1", "localhost", "::1"),
            )
        return self._session

    def _to_url(self, request: UpstreamRequest) -> URL:
        start = f"{to_datetime(request.from_us):%Y-%m-%dT%H:%M:%S.000Z}"
        url = f"{self._url}/data-feeds/{request.exchange}?from={start}&offset={request.offset}&compression={self._compression}"
        if request.minutes > 1:
            url += f"&sliceSize={request.minutes}"
        if request.filters:
            url += "&filters=" + quote(to_compact_json(request.filters), safe="~()*!.'")
        return URL(url, encoded=True)

    async def _to_refusal(self, request: UpstreamRequest, response: aiohttp.ClientResponse) -> UpstreamError:
        """The error that upstream gives, in its own words where it has any."""
        body = await read_bounded(response, MAX_ERROR_BYTES)
        encoding = _ENCODINGS.get(_content_encoding(response))
        if encoding and _content_encoding(response) not in ("", "identity"):
            body = await self._threads.run(_decompress_text, body, encoding)
        message, code = parse_refusal(body)
        if message is None:
            message = f"the history API answered {response.status} for slice {request.name}: {_to_excerpt(body)}"
        if request.api_key:
            message = message.replace(request.api_key, "***")
        return UpstreamError(message, response.status, code)


def check_api_key(api_key: str | None) -> str | None:
    """The key, when it is one that may stand in a header; an empty one is none."""
    if api_key and not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise OptionsError("apiKey: expected letters, digits and signs without a space", "apiKey")
    return api_key or None


def check_api_url(api_url: str) -> URL:
    try:
        url = URL(api_url.rstrip("/"))
        usable = (
            url.scheme in ("http", "https") and bool(url.host) and not (url.user or url.password or url.query or url.fragment)
        )
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(
            [f"api-url: expected an http or https URL without credentials and query, got {_without_secrets(api_url)!r}"]
        )
    return url


def _without_secrets(url: str) -> str:
    """What stands before an @ or after a ? may be secret."""
    return re.sub(r"//[^/]*@|\?.*", "…", url)


def _to_failure(request: UpstreamRequest, error: BaseException) -> UpstreamError:
    """What happened when no answer came."""
    if isinstance(error, TimeoutError):
        return UpstreamError(f"the history API did not answer in time for slice {request.name}", 504)
    cause = " ".join(str(error).split()) or type(error).__name__
    return UpstreamError(f"the history API could not be read for slice {request.name}: {cause}", 502)


def _content_encoding(response: aiohttp.ClientResponse) -> str:
    return response.headers.get("Content-Encoding", "").strip().lower()


def _parse_minutes(response: aiohttp.ClientResponse, request: UpstreamRequest) -> int | None:
    """How many minutes the answer covers, None when it does not say."""
    text = response.headers.get("X-Slice-Size")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_SLICE_MINUTES):
        raise SliceError(f"slice {request.name} has the header X-Slice-Size {text!r}, which is not a number of minutes")
    return int(text)


def _parse_suggestion(response: aiohttp.ClientResponse) -> int:
    """A hint only: what can't be read suggests single minutes."""
    text = response.headers.get("X-Suggested-Slice-Size", "1")
    return min(max(int(text), 1), MAX_SUGGESTED_MINUTES) if text.isascii() and text.isdigit() else 1


def _check(data: bytes, encoding: Encoding, request: UpstreamRequest, minutes: int | None) -> None:
    """Raises unless the slice is whole, and is what it is said to be where that is not what was asked for."""
    lines = decompress(data, encoding, request.name)
    check_lines(lines, request.name)
    covered = minutes or 1
    if minutes != request.minutes and not fits(lines, request.start_us, request.start_us + covered * MINUTE_US):
        said = "does not say how many minutes it covers" if minutes is None else f"is said to cover {minutes} minutes"
        raise SliceError(f"slice {request.name} {said}, but has lines outside of the {covered} from its start")


async def read_bounded(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """The body, at most that much of it."""
    parts: list[bytes] = []
    count_bytes = 0
    async for part in response.content.iter_any():
        parts.append(part[: limit_bytes - count_bytes])
        count_bytes += len(parts[-1])
        if count_bytes >= limit_bytes:
            break
    return b"".join(parts)


def _decompress_text(body: bytes, encoding: Encoding) -> bytes:
    """An error's body; what can't be read, or is longer than an error can be, says nothing."""
    try:
        return decompress(body, encoding, "", MAX_ERROR_BYTES)
    except SliceError:
        return b""


def parse_refusal(body: bytes) -> tuple[str | None, int | None]:
    """Upstream's `{"code", "message"}`; (None, None) when the body is something else."""
    try:
        refusal = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, None
    if not isinstance(refusal, dict) or not isinstance(refusal.get("message"), str):
        return None, None
    code = refusal.get("code")
    return refusal["message"], code if isinstance(code, int) else None


def _to_excerpt(body: bytes) -> str:
    text = " ".join(body.decode(errors="replace").split())
    return text[:300] or "no text"
