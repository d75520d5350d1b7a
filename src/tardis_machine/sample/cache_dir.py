"""Fills a cache directory with recorded minutes, as a replay of the history API would have left it.

Invariant: the layout is the one that all clients of the history API share, so that each of them reads it without a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from ..filters import Filter, optimize_filters, to_compact_json
from ..messages import to_timestamp
from .compression import Compression, compress, encoding_of
from .market import MINUTE_US
from .recording import Recording

__all__ = ["fill_cache"]

_SUFFIXES = {"gzip": "gz", "zstd": "zst"}


def fill_cache(
    directory: Path | str,
    exchange: str,
    filters: Sequence[Filter],
    from_us: int,
    to_us: int,
    compression: Compression = "gzip",
    *,
    recording: Recording | None = None,
) -> list[Path]:
    """Writes a file for each minute of [from, to) and returns their paths, in order."""
    recording = recording or Recording()
    digest = sha256(to_compact_json(optimize_filters(filters))).hexdigest()
    root = Path(directory) / "feeds" / exchange / digest
    suffix = _SUFFIXES[encoding_of(compression)]
    paths = []
    for index in range(from_us // MINUTE_US, to_us // MINUTE_US):
        date, time = to_timestamp(index * MINUTE_US).split("T")
        hour, minute, _ = time.split(":")
        path = root.joinpath(*date.split("-"), hour, f"{minute}.json.{suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".unconfirmed")
        temporary.write_bytes(compress(recording.minute(exchange, index, filters), compression))
        temporary.rename(path)
        paths.append(path)
    return paths
