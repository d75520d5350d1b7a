"""What a delivery has its courier do with the disk, and what the courier brings back.

Invariant: plain data; who does an errand changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .batching import Chunk
from .contract import Record
from .mark import Mark

__all__ = ["Burial", "Leftover", "Loaded", "Spill"]


class Spill(msgspec.Struct):
    """Chunks to be written to disk together."""

    chunks: list[Chunk]
    in_new_segment: bool
    """Records that are in memory only came since the last write, and must find a place between the two."""


class Loaded(msgspec.Struct):
    """Records that were read back from the spool."""

    records: Sequence[Record]
    size_bytes: int
    mark: Mark
    accepted_at: float


class Burial(msgspec.Struct):
    """A record for the dead letters."""

    chunk: Chunk
    reason: str

    @property
    def record(self) -> Record:
        return self.chunk.records[0]


class Leftover(msgspec.Struct):
    """What a shutdown leaves in memory only, in order; its place is right behind a segment of the spool, None: behind all."""

    after_segment: int | None
    records: list[Record]
