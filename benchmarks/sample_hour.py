"""An hour of the sample market in a cache folder, made once: what every replay is measured on. Backfills take it of several days.

There are two markets. "everyday" is the sample market as it is: a third of a book's messages are inserts and deletes. "mostly-updates" is
calmer, and shows what depends on that.

Invariant: one gzip file a minute, in the layout that all clients of the history API share, so that others read the same files. A cache
folder is named after what the market brings, so that no file of an earlier sample market is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from tardis_machine.filters import Filter, optimize_filters, to_compact_json
from tardis_machine.history.cache import FeedCache
from tardis_machine.history.slice import MINUTE_US, Slice
from tardis_machine.pipeline.replay import NormalizedReplay, Period
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.recorded_line import to_time_of_ticks
from tardis_machine.sample.cache_dir import fill_cache
from tardis_machine.sample.market import EVERYDAY, MOSTLY_UPDATES, SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.sample.venues.bybit import BybitVenue

__all__ = ["EXCHANGES", "MARKETS", "SYMBOLS", "cache_dir", "fill", "options", "raw_options", "slices"]

MARKETS = {"everyday": EVERYDAY, "mostly-updates": MOSTLY_UPDATES}
"""The mix of messages of each market; the first is the default."""

EXCHANGES = {"bitmex": "XBTUSD", "binance": "BTCUSDT", "coinbase": "BTC-USD", "deribit": "BTC-PERPETUAL", "okex": "BTC-USDT"}
"""Those that are merged, and their symbols."""

SYMBOLS = EXCHANGES | {"binance-futures": "BTCUSDT", "okex-swap": "BTC-USDT-SWAP", "bybit": "BTCUSDT"}
"""All that are replayed."""

MONTHS = {"bybit": "2026-02"}
"""When they are replayed that did not speak in 2020 as the sample market has them speak."""


class BybitRecording(Recording):
    """Bybit, which the sample market has only live, as a recorder would have heard it from the first minute of a day on."""

    def minute(self, exchange: str, index: int, filters: Sequence[Filter] = ()) -> bytes:
        venue = BybitVenue(exchange)
        instrument = next(each for each in venue.instruments(index) if each.symbol == SYMBOLS[exchange])
        minute, start = self.market.minute(instrument, index), index * MINUTE_US * 10
        rows = list(venue.rows(self.market, minute, frozenset(item.channel for item in filters)))
        if index % 1440 == 0:
            openings = (venue.opening(self.market, minute, item.channel, start) for item in filters)
            rows += [(start, opening) for opening in openings if opening is not None]
        lines = [f"{to_time_of_ticks(arrival)} {message}\n" for arrival, message in sorted(rows)]
        return "".join(lines).encode()


def options(exchange: str, minutes: int, *data_types: str, day: int = 1) -> dict[str, object]:
    """A normalized request."""
    month = MONTHS.get(exchange, "2020-02")
    return {
        "exchange": exchange,
        "symbols": [SYMBOLS[exchange]],
        "from": f"{month}-{day:02d}T00:00:00Z",
        "to": f"{month}-{day:02d}T{minutes // 60:02d}:{minutes % 60:02d}:00Z",
        "dataTypes": list(data_types),
    }


@cache
def cache_dir(market: str = "everyday") -> Path:
    """Where the files of a market are. The folder's name ends in a hash of a minute of each exchange, in little activity."""
    recording = Recording(SampleMarket(activity=0.1, message_mix=MARKETS[market]))
    first = _period("bitmex", 1, "trade").from_us // MINUTE_US
    digest = sha256(b"".join(recording.minute(exchange, first) for exchange in EXCHANGES)).hexdigest()
    return Path(__file__).parents[1] / ".tools" / "bench-cache" / f"{market}-{digest[:12]}"


def _period(exchange: str, minutes: int, *data_types: str, day: int = 1) -> Period:
    [period] = NormalizedReplay(parse_normalized_request(options(exchange, minutes, *data_types, day=day))).periods()
    return period


def raw_options(exchange: str, minutes: int) -> dict[str, object]:
    """A raw request for what trades and book changes are made of."""
    asked = options(exchange, minutes)
    filters = [
        {"channel": item.channel, "symbols": item.symbols} for item in _period(exchange, minutes, "trade", "book_change").filters
    ]
    return {"exchange": exchange, "from": asked["from"], "to": asked["to"], "filters": filters}


def fill(minutes: int, day: int = 1, market: str = "everyday", exchanges: Iterable[str] = EXCHANGES) -> None:
    """Makes the files that are missing."""
    folder = cache_dir(market)
    recording: Recording | None = None
    for exchange in exchanges:
        for data_types in (("trade", "book_change"), ("book_change",)) if exchange == "bitmex" else (("trade", "book_change"),):
            period = _period(exchange, minutes, *data_types, day=day)
            cache = FeedCache(folder, exchange, tuple(optimize_filters(period.filters)))
            last = cache.find(period.to_us - MINUTE_US, 1)
            if last is None:
                if recording is None or isinstance(recording, BybitRecording) != (exchange == "bybit"):
                    kind = BybitRecording if exchange == "bybit" else Recording
                    recording = kind(SampleMarket(message_mix=MARKETS[market]))
                print(f"making {minutes} minutes of {exchange}, {market}: {to_compact_json(period.filters).decode()}", flush=True)
                fill_cache(folder, exchange, period.filters, period.from_us, period.to_us, recording=recording)


def slices(exchange: str, minutes: int, day: int = 1, market: str = "everyday") -> list[Slice]:
    """The files that a replay of trades and book changes reads."""
    period = _period(exchange, minutes, "trade", "book_change", day=day)
    cache = FeedCache(cache_dir(market), exchange, tuple(optimize_filters(period.filters)))
    files = [cache.find(start_us, 1) for start_us in range(period.from_us, period.to_us, MINUTE_US)]
    return [Slice(exchange, file.start_us, 1, file.path, None, file.encoding) for file in files if file is not None]
