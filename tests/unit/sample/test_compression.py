from __future__ import annotations

import gzip
import io

import pytest
import zstandard

from tardis_machine.sample.compression import COMPRESSIONS, Compression, compress, encoding_of


def _decompress(data: bytes, compression: Compression) -> bytes:
    if compression == "gzip":
        return gzip.decompress(data)
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
        return reader.read()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("data", [b"", b"\n", b"line\n" * 100_000])
def test_all_of_it_comes_back(data: bytes, compression: Compression) -> None:
    compressed = compress(data, compression)
    assert compressed
    assert _decompress(compressed, compression) == data
    assert compress(data, compression) == compressed


def test_many_frames_are_many() -> None:
    data = b"line\n" * 100_000
    first = zstandard.ZstdDecompressor().decompressobj()
    assert 0 < len(first.decompress(compress(data, "zstd-multiframe"))) < len(data)
    assert first.unused_data
    assert zstandard.ZstdDecompressor().decompress(compress(data, "zstd")) == data


def test_encodings_are_named_as_in_http() -> None:
    assert [encoding_of(each) for each in COMPRESSIONS] == ["zstd", "zstd", "gzip"]
