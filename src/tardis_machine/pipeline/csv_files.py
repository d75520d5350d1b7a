"""A day of a dataset as one file: the header and the rows in one gzip member, which readers that know but one read whole.

Invariant: a day without rows is an empty file, compressed, as tardis.dev publishes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

from .compression import compressor
from .csv_rows import Dataset
from .request import NormalizedRequest

__all__ = ["compress_rows", "day_request", "to_pieces"]

DAY_US = 86_400_000_000
PIECE_BYTES = 64 * 1024


def day_request(dataset: Dataset, exchange: str, symbols: list[str] | None, start_us: int, end_us: int) -> NormalizedRequest:
    """What a replay is asked for."""
    return NormalizedRequest(exchange=exchange, from_us=start_us, to_us=end_us, data_types=[dataset.data_type], symbols=symbols)


async def to_pieces(dataset: Dataset, parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The header and the rows, in pieces of one size however they come, so that a file of the same rows has the same bytes."""
    waiting = bytearray()
    begun = False
    async for rows in parts:
        if rows and not begun:
            waiting += dataset.header
            begun = True
        waiting += rows
        while len(waiting) >= PIECE_BYTES:
            yield bytes(waiting[:PIECE_BYTES])
            del waiting[:PIECE_BYTES]
    if waiting:
        yield bytes(waiting)


async def compress_rows(dataset: Dataset, parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The bytes of the file, as they come."""
    compress = compressor("gzip")
    async for piece in to_pieces(dataset, parts):
        yield await asyncio.to_thread(compress, piece, False)
    yield compress(b"", True)
