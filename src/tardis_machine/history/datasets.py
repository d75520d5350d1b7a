"""Downloads of datasets: days of CSV, from tardis.dev or from a machine.

Invariant: a file under its name is whole. What is there is not fetched again; what was begun goes on where it ended, if it is the same.
"""

from __future__ import annotations

import asyncio
import glob
import random
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import aiohttp
from aiohttp import hdrs

from ..dates import parse_date_us
from ..errors import OptionsError, UpstreamError
from .api import DEFAULT_USER_AGENT, check_api_key, check_api_url, parse_refusal, read_bounded
from .cache import check_exchange

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["DEFAULT_DATASETS_URL", "download_datasets", "to_file_name"]

DEFAULT_DATASETS_URL = "https://datasets.tardis.dev/v1"

ATTEMPTS = 8
_TIMEOUT_S = 135.0
_MAX_ERROR_BYTES = 64 * 1024
_EPOCH = date(1970, 1, 1)


def to_file_name(exchange: str, dataset: str, day: str, symbol: str) -> str:
    """`deribit_trades_2020-02-01_BTC-PERPETUAL.csv.gz`"""
    return f"{exchange}_{dataset}_{day}_" + re.sub(r'[:\\/?*<>|"]', "-", symbol) + ".csv.gz"


async def download_datasets(
    *,
    exchange: str,
    data_types: Sequence[str],
    symbols: Sequence[str],
    from_: str,
    to: str,
    download_dir: str | Path = "datasets",
    api_key: str | None = None,
    datasets_url: str | None = None,
    concurrency: int = 8,
    progress: bool | None = None,
) -> list[Path]:
    """Downloads each day, data type and symbol into a file of its own; `to` is not included. Returns the files.

    `progress` shows a bar; by default where standard error is a terminal.

    await download_datasets(exchange="deribit", data_types=["trades"], symbols=["BTC-PERPETUAL"],
                            from_="2020-02-01", to="2020-02-02")
    """
    days = _days(from_, to)
    folder = Path(download_dir)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    download = _Download(
        f"{check_api_url(datasets_url or DEFAULT_DATASETS_URL)}/{check_exchange(exchange)}", check_api_key(api_key)
    )
    files = {
        folder / to_file_name(exchange, data_type, day, symbol): f"{data_type}/{day.replace('-', '/')}/{_spell(symbol)}.csv.gz"
        for data_type in data_types
        for symbol in symbols
        for day in days
    }
    turns = asyncio.Semaphore(concurrency)
    bar = _open_bar(len(files), sys.stderr.isatty() if progress is None else progress)
    try:
        async with aiohttp.ClientSession(
            auto_decompress=False,
            headers={"User-Agent": DEFAULT_USER_AGENT},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_S, sock_read=_TIMEOUT_S),
            trust_env=True,
        ) as session:

            async def fetch(target: Path, path: str) -> None:
                async with turns:
                    if not await asyncio.to_thread(target.exists):
                        await download.fetch(session, path, target)
                    if bar is not None:
                        bar.advance(bar.task_ids[0])

            tasks = [asyncio.create_task(fetch(target, path)) for target, path in files.items()]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        if bar is not None:
            bar.stop()
    return list(files)


class _Download:
    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._api_key = api_key

    async def fetch(self, session: aiohttp.ClientSession, path: str, target: Path) -> None:
        """Asks until the file is there, or there is no hope."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._fetch_once(session, path, target)
            except UpstreamError as error:
                if attempt == ATTEMPTS or (400 <= error.status < 500 and error.status != 429):
                    raise
            except (aiohttp.ClientError, TimeoutError) as error:
                if attempt == ATTEMPTS:
                    cause = " ".join(str(error).split()) or type(error).__name__
                    raise UpstreamError(f"the dataset {path} could not be downloaded: {cause}", 502) from None
            await asyncio.sleep(min(0.5 * 2.0**attempt, 60.0) * (0.5 + random.random()))
        raise AssertionError("unreachable")

    async def _fetch_once(self, session: aiohttp.ClientSession, path: str, target: Path) -> None:
        """Into a file beside it, which names what it is a part of."""
        begun, version = _find_begun(target)
        headers = {hdrs.AUTHORIZATION: f"Bearer {self._api_key}"} if self._api_key else {}
        if begun is not None:
            headers |= {hdrs.RANGE: f"bytes={begun.stat().st_size}-", hdrs.IF_RANGE: f'"{version}"'}
        async with session.get(f"{self._url}/{path}", headers=headers) as response:
            if response.status not in (200, 206):
                message, code = parse_refusal(await read_bounded(response, _MAX_ERROR_BYTES))
                raise UpstreamError(message or f"the dataset {path} was answered with {response.status}", response.status, code)
            if begun is None or response.status == 200:
                if begun is not None:
                    begun.unlink()
                begun = _part_of(target, response.headers.get(hdrs.ETAG, ""))
            try:
                with begun.open("ab" if response.status == 206 else "wb") as file:
                    async for data in response.content.iter_any():
                        await asyncio.to_thread(file.write, data)
            except BaseException:
                if not _version_of(begun):
                    begun.unlink(missing_ok=True)
                raise
        await asyncio.to_thread(begun.replace, target)


def _part_of(target: Path, etag: str) -> Path:
    """A part goes on only where the server says which version it is of."""
    version = etag.strip('"') if re.fullmatch(r'"[\w.-]{1,100}"', etag) else ""
    return target.with_name(f"{target.name}.{version}.part")


def _version_of(part: Path) -> str:
    return part.name.rpartition(".csv.gz.")[2].removesuffix(".part").removesuffix(".")


def _find_begun(target: Path) -> tuple[Path | None, str]:
    for part in target.parent.glob(f"{glob.escape(target.name)}.*.part"):
        if version := _version_of(part):
            with suppress(OSError):
                if part.stat().st_size:
                    return part, version
    return None, ""


def _days(from_: str, to: str) -> list[str]:
    days = []
    for name, text in (("from_", from_), ("to", to)):
        try:
            days.append(parse_date_us(text) // 86_400_000_000)
        except ValueError as error:
            raise OptionsError(f"{name}: {error}", name) from None
    if days[1] <= days[0]:
        raise OptionsError(f"to: expected a day after {from_}, got {to}; the last day is not included", "to")
    return [(_EPOCH + timedelta(days=day)).isoformat() for day in range(*days)]


def _spell(symbol: str) -> str:
    return quote(symbol.replace(":", "-").replace("/", "-").upper(), safe="")


def _open_bar(files: int, is_wanted: bool) -> Progress | None:
    if not is_wanted:
        return None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    bar.add_task("datasets", total=files)
    bar.start()
    return bar
