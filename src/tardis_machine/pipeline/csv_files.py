"""A day of a dataset as one file: the header and the rows in one gzip member, which readers that know but one read whole.

Invariant: a day without rows is an empty file, compressed, as tardis.dev publishes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

from .compression import compressor
from .csv_rows import Dataset
from .request import NormalizedRequest

__all__ = ["compress_rows", "day_request"]

DAY_US = 86_400_000_000


def day_request(dataset: Dataset, exchange: str, symbols: list[str] | None, start_us: int, end_us: int) -> NormalizedRequest:
    """What a replay is asked for."""
    return NormalizedRequest(exchange=exchange, from_us=start_us, to_us=end_us, data_types=[dataset.data_type], symbols=symbols)


async def compress_rows(dataset: Dataset, parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The bytes of the file, as they come."""
    compress = compressor("gzip")
    header = dataset.header
    async for rows in parts:
        if rows:
            yield await asyncio.to_thread(compress, header + rows, False)
            header = b""
    yield compress(b"", True)
