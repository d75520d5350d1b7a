"""Answers compressed as they are made, a chunk at a time.

Invariant: every chunk can be read as soon as it arrives; the last one ends the stream, so that a cut one is seen as cut.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Literal

import zstandard
from isal import isal_zlib

__all__ = ["COMPRESSIONS", "Compression", "compressor", "negotiate"]

Compression = Literal["zstd", "gzip"]
COMPRESSIONS: tuple[Compression, ...] = ("zstd", "gzip")
"""In order of preference."""

_GZIP = 31  # zlib's window size that means: with a gzip header and trailer


def compressor(kind: Compression) -> Callable[[bytes, bool], bytes]:
    """A function of (data, whether it is the last) to compressed bytes."""
    if kind == "zstd":
        zstd = zstandard.ZstdCompressor(level=1).compressobj()
        block, finish = zstandard.COMPRESSOBJ_FLUSH_BLOCK, zstandard.COMPRESSOBJ_FLUSH_FINISH
        return lambda data, last: zstd.compress(data) + zstd.flush(finish if last else block)
    gzip = isal_zlib.compressobj(level=1, wbits=_GZIP)
    return lambda data, last: gzip.compress(data) + gzip.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def negotiate(accept_encoding: str) -> Compression | None:
    """The compression that a client's Accept-Encoding asks for, if we have it: its highest weight, then our preference."""
    weights: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameter = item.partition(";")
        weight = parameter.strip().removeprefix("q=")
        try:
            weights[name.strip()] = float(weight) if weight else 1.0
        except ValueError:
            weights[name.strip()] = 0.0
    best = max(COMPRESSIONS, key=lambda kind: weights.get(kind, 0.0))
    return best if weights.get(best, 0.0) > 0 else None
