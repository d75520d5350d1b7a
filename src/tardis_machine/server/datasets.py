"""`/v1/datasets/{exchange}/{dataset}/{yyyy}/{mm}/{dd}/{symbol}.csv.gz`: days of CSV, made of a replay as they are asked for.

Invariant: a complete-looking file is complete. It counts as a replay, and has the limits of one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime

from aiohttp import hdrs, web

from ..engine import Machine
from ..errors import OptionsError, TardisMachineError
from ..exchanges import exchange_named
from ..history.metadata import InstrumentInfo
from ..pipeline.csv_files import DAY_US, compress_rows, day_request
from ..pipeline.csv_rows import dataset_named, to_dataset_symbol
from ..processes.jobs.contract import Chunk
from .http import cut_off, request_id_of

__all__ = ["DatasetRoutes"]

_GROUPS = {"SPOT": "spot", "FUTURES": "future", "PERPETUALS": "perpetual", "OPTIONS": "option"}
"""What stands for all symbols of a type."""


class DatasetRoutes:
    """The handler, for one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def add_to(self, app: web.Application) -> None:
        """Puts the route into an application."""
        path = r"/v1/datasets/{exchange}/{dataset}/{year:\d{4}}/{month:\d\d}/{day:\d\d}/{symbol:.+}.csv.gz"
        app.router.add_get(path, self.dataset, allow_head=False)

    async def dataset(self, request: web.Request) -> web.StreamResponse:
        """One day of one dataset."""
        place = request.match_info
        dataset = dataset_named(place["dataset"])
        exchange = exchange_named(place["exchange"])
        if dataset.normalized not in exchange.data_types:
            raise OptionsError(
                f"dataset: {exchange.name} has no {dataset.normalized}, which {dataset.name} is made of", "dataset"
            )
        start_us = _parse_day(place["year"], place["month"], place["day"])
        symbols = await self._symbols(exchange.name, place["symbol"].upper())
        replay = day_request(dataset, exchange.name, symbols, start_us, start_us + DAY_US)
        chunks = self._machine.replay("/v1/datasets", [replay], form="csv")
        async with aclosing(chunks):
            # Until there is a first chunk nothing is sent, so that what fails early has a status of its own.
            first = await anext(chunks, None)
            parts = compress_rows(dataset, _data(first, chunks))
            headers = {hdrs.CONTENT_TYPE: "application/gzip", "X-Request-Id": request_id_of(request)}
            response = web.StreamResponse(headers=headers)
            response.enable_chunked_encoding()
            await response.prepare(request)
            try:
                async for part in parts:
                    await response.write(part)
                await response.write_eof()
            except ConnectionError:
                pass  # the client went away
            except Exception as error:
                cut_off(request, error)
        return response

    async def _symbols(self, exchange: str, name: str) -> list[str] | None:
        """The symbols that a name in a dataset means; None are all. What nobody knows is taken as it is."""
        metadata = self._machine.metadata
        try:
            return await metadata.look_up(await metadata.instruments(exchange), lambda listed: _symbols_of(listed, name))
        except TardisMachineError:
            return _symbols_of([], name)


def _symbols_of(listed: Sequence[InstrumentInfo], name: str) -> list[str] | None:
    found = [each["id"] for each in listed if to_dataset_symbol(each.get("datasetId", each["id"])) == name]
    if found or name not in _GROUPS:
        return found or [name]
    return [each["id"] for each in listed if each.get("type") == _GROUPS[name]] or None


def _parse_day(year: str, month: str, day: str) -> int:
    try:
        return int(datetime(int(year), int(month), int(day), tzinfo=UTC).timestamp()) * 1_000_000
    except ValueError:
        raise OptionsError(f"date: there is no day {year}/{month}/{day}", "date") from None


async def _data(first: Chunk | None, chunks: AsyncGenerator[Chunk, None]) -> AsyncIterator[bytes]:
    if first is not None:
        yield bytes(first.data)
    async for chunk in chunks:
        yield bytes(chunk.data)
