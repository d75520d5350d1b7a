"""Files of datasets: whole, one member, and the same bytes however their rows come."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator
from random import Random

import pytest

from tardis_machine.pipeline.csv_files import PIECE_BYTES, compress_rows
from tardis_machine.pipeline.csv_rows import dataset_named

TRADES = dataset_named("trades")
ROWS = b"".join(b"bitmex,XBTUSD,%d,%d,,buy,%d,1\n" % (n, n, n * n % 9973) for n in range(12_000))


async def file_of(*parts: bytes) -> bytes:
    async def come() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return b"".join([data async for data in compress_rows(TRADES, come())])


def cut(rows: bytes, seed: int) -> list[bytes]:
    """In lengths of chance, of which some are none."""
    random = Random(seed)
    places = sorted(random.choices(range(len(rows)), k=random.choice((1, 7, 300))))
    return [rows[start:end] for start, end in zip([0, *places, places[-1]], [*places, places[-1], len(rows)], strict=True)]


async def test_the_same_rows_are_the_same_bytes() -> None:
    whole = await file_of(ROWS)
    assert len(ROWS) > 5 * PIECE_BYTES
    assert gzip.decompress(whole) == TRADES.header + ROWS
    for seed in range(30):
        parts = cut(ROWS, seed)
        assert b"".join(parts) == ROWS
        assert await file_of(*parts) == whole


async def test_a_file_is_one_member() -> None:
    reader = zlib.decompressobj(31)
    assert reader.decompress(await file_of(ROWS, ROWS)).count(b"\n") == 24_001
    assert (reader.eof, reader.unused_data) == (True, b"")


@pytest.mark.parametrize("parts", [(), (b"",), (b"", b"")])
async def test_a_day_without_rows_is_empty(parts: tuple[bytes, ...]) -> None:
    assert gzip.decompress(await file_of(*parts)) == b""


async def test_a_header_comes_once_with_the_first_row() -> None:
    assert gzip.decompress(await file_of(b"", b"a\n", b"", b"b\n")) == TRADES.header + b"a\nb\n"
