"""An hour of the sample market in a cache folder, made once: what every replay is measured on. Backfills take it of several days.

Invariant: one gzip file a minute, in the layout that all clients of the history API share, so that others read the same files.
"""

from __future__ import annotations

from pathlib import Path

from tardis_machine.filters import optimize_filters, to_compact_json
from tardis_machine.history.cache import FeedCache
from tardis_machine.history.slice import MINUTE_US, Slice
from tardis_machine.pipeline.replay import NormalizedReplay, Segment
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.sample.cache_dir import fill_cache
from tardis_machine.sample.recording import Recording

__all__ = ["CACHE_DIR", "EXCHANGES", "fill", "options", "raw_options", "slices"]

CACHE_DIR = Path(__file__).parents[1] / ".tools" / "bench-cache"
EXCHANGES = {"bitmex": "XBTUSD", "binance": "BTCUSDT", "coinbase": "BTC-USD", "deribit": "BTC-PERPETUAL", "okex": "BTC-USDT"}


def options(exchange: str, minutes: int, *data_types: str, day: int = 1) -> dict[str, object]:
    """A normalized request."""
    return {
        "exchange": exchange,
        "symbols": [EXCHANGES[exchange]],
        "from": f"2020-02-{day:02d}T00:00:00Z",
        "to": f"2020-02-{day:02d}T{minutes // 60:02d}:{minutes % 60:02d}:00Z",
        "dataTypes": list(data_types),
    }


def _segment(exchange: str, minutes: int, *data_types: str, day: int = 1) -> Segment:
    [segment] = NormalizedReplay(parse_normalized_request(options(exchange, minutes, *data_types, day=day))).segments()
    return segment


def raw_options(exchange: str, minutes: int) -> dict[str, object]:
    """A raw request for what trades and book changes are made of."""
    asked = options(exchange, minutes)
    filters = [
        {"channel": item.channel, "symbols": item.symbols} for item in _segment(exchange, minutes, "trade", "book_change").filters
    ]
    return {"exchange": exchange, "from": asked["from"], "to": asked["to"], "filters": filters}


def fill(minutes: int, day: int = 1) -> None:
    """Makes the files that are missing."""
    recording: Recording | None = None
    for exchange in EXCHANGES:
        for data_types in (("trade", "book_change"), ("book_change",)) if exchange == "bitmex" else (("trade", "book_change"),):
            segment = _segment(exchange, minutes, *data_types, day=day)
            cache = FeedCache(CACHE_DIR, exchange, tuple(optimize_filters(segment.filters)))
            last = cache.find(segment.to_us - MINUTE_US, 1)
            if last is None:
                recording = recording or Recording()
                print(f"making {minutes} minutes of {exchange}: {to_compact_json(segment.filters).decode()}", flush=True)
                fill_cache(CACHE_DIR, exchange, segment.filters, segment.from_us, segment.to_us, recording=recording)


def slices(exchange: str, minutes: int, day: int = 1) -> list[Slice]:
    """The files that a replay of trades and book changes reads."""
    segment = _segment(exchange, minutes, "trade", "book_change", day=day)
    cache = FeedCache(CACHE_DIR, exchange, tuple(optimize_filters(segment.filters)))
    files = [cache.find(start_us, 1) for start_us in range(segment.from_us, segment.to_us, MINUTE_US)]
    return [Slice(exchange, file.start_us, 1, file.path, None, file.encoding) for file in files if file is not None]
