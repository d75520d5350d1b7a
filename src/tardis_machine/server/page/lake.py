"""What lake jobs tell of themselves at their `--metrics-port`, for the page.

Invariant: they are asked only while a browser looks. What is shown of an answer are its numbers; of a failure, one sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from ...history.api import read_bounded
from ...telemetry import LAKE_COMMIT_AGE_SECONDS, LAKE_LAG_SECONDS, LAKE_LEFT, LAKE_LOST, LAKE_QUARANTINED, LAKE_ROWS, Metric

__all__ = ["LakeJobs"]

INTERVAL_S = 5.0
_TIMEOUT = aiohttp.ClientTimeout(total=3.0)
_MAX_BYTES = 1024 * 1024


class LakeJobs:
    """The lake jobs that the user named, and what each said last; `watched` keeps that fresh."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self.states: list[dict[str, Any]] = []

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While this is open, the jobs are asked every few seconds."""
        watching = asyncio.create_task(self._watch()) if self._urls else None
        try:
            yield
        finally:
            if watching is not None:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching

    async def _watch(self) -> None:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as http:
            while True:
                self.states = list(await asyncio.gather(*(_ask(http, url) for url in self._urls)))
                await asyncio.sleep(INTERVAL_S)


async def _ask(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    # Without what may be a password in the address.
    parts = urlsplit(url)
    job = {"job": f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname}
    try:
        async with http.get(url, allow_redirects=False) as response:
            if response.status != 200:
                return job | {"problem": f"it answered with status {response.status}"}
            return job | _figures((await read_bounded(response, _MAX_BYTES)).decode())
    except TimeoutError:
        return job | {"problem": "it does not answer"}
    except aiohttp.ClientConnectionError:
        return job | {"problem": "it can't be reached"}
    except (aiohttp.ClientError, ValueError):
        return job | {"problem": "what it answered are no metrics"}


def _figures(text: str) -> dict[str, Any]:
    """What the page shows of a job's metrics; ValueError where they are not those of a lake job."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def values(metric: Metric, label: str = "") -> dict[str, float]:
        return {sample.labels.get(label, ""): sample.value for sample in samples if sample.name == metric.full_name}

    lag = values(LAKE_LAG_SECONDS)
    if not lag:
        raise ValueError("no lake job")
    ages = values(LAKE_COMMIT_AGE_SECONDS, "stream")
    return {
        "lagSeconds": lag[""],
        # A layer that reads nothing for long is found by its age, not by that of the busiest.
        "commitAgeSeconds": max(ages.values(), default=None),
        "left": values(LAKE_LEFT, "what"),
        "rows": values(LAKE_ROWS, "table"),
        "quarantined": sum(values(LAKE_QUARANTINED).values()),
        "lost": sum(values(LAKE_LOST).values()),
    }
