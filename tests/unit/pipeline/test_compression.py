"""Answers compress a chunk at a time, and a cut one is seen as cut."""

from __future__ import annotations

import gzip
import zlib

import pytest
import zstandard

from tardis_machine.pipeline.compression import COMPRESSIONS, Compression, compressor, negotiate

CHUNKS = [b"one" * 1000, b"", b"two" * 10]


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_every_chunk_can_be_read_when_it_arrives(kind: Compression) -> None:
    compress = compressor(kind)
    reader = zstandard.ZstdDecompressor().decompressobj() if kind == "zstd" else zlib.decompressobj(31)
    for chunk in CHUNKS:
        assert reader.decompress(compress(chunk, False)) == chunk
    assert reader.decompress(compress(b"end", True)) == b"end"
    assert reader.eof


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_without_its_last_chunk_the_stream_is_cut(kind: Compression) -> None:
    data = compressor(kind)(b"x" * 5000, False)
    with pytest.raises((EOFError, zstandard.ZstdError)):
        gzip.decompress(data) if kind == "gzip" else zstandard.ZstdDecompressor().decompress(data)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("", None),
        ("br", None),
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip;q=1.0, zstd;q=0.5", "gzip"),
        ("zstd;q=0, gzip;q=0", None),
        ("GZIP", "gzip"),
        ("gzip;q=nonsense", None),
    ],
)
def test_the_client_chooses(accepted: str, chosen: str | None) -> None:
    assert negotiate(accepted) == chosen
