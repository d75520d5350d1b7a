"""The encodings in which the history API sends a slice.

Invariant: whatever the encoding, the bytes decompress to the same lines.
"""

from __future__ import annotations

from typing import Literal

import zstandard
from isal import igzip

__all__ = ["COMPRESSIONS", "Compression", "compress", "encoding_of"]

Compression = Literal["zstd-multiframe", "zstd", "gzip"]
COMPRESSIONS: tuple[Compression, ...] = ("zstd-multiframe", "zstd", "gzip")
_FRAME_BYTES = 65_521
"""Of a multi-frame slice. An odd number: frames end anywhere, also inside a line."""


def encoding_of(compression: Compression) -> str:
    """The Content-Encoding of a compression."""
    return "gzip" if compression == "gzip" else "zstd"


def compress(data: bytes, compression: Compression) -> bytes:
    """A slice as the history API would send it."""
    if compression == "gzip":
        # Without the time: the same lines are the same bytes.
        return bytes(igzip.compress(data, 2, mtime=0))
    compressor = zstandard.ZstdCompressor(level=3)
    if compression == "zstd":
        return compressor.compress(data)
    starts = range(0, max(len(data), 1), _FRAME_BYTES)
    return b"".join([compressor.compress(data[start : start + _FRAME_BYTES]) for start in starts])
