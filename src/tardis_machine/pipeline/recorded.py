"""History out of own recordings: each minute from the streams that heard what is asked for, together where none heard all of it.

Invariant: what is found is all that was asked for of that minute. Synchronous: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import SliceError
from ..exchanges import EXCHANGES
from ..filters import Filter
from ..history.metadata import ExchangeDetails, InstrumentInfo
from ..history.reader import split_lines
from ..history.recordings import RecordedFeed, find_feeds, recorded_exchanges
from ..messages import UNSET, to_timestamp
from ..telemetry import get_logger
from .selecting import Selection, merge_lines, missing_of, overlap_of, select_lines, to_selection

__all__ = ["RecordedHistory"]

log = get_logger("recorder")


class RecordedHistory:
    """What lies in a folder of recordings."""

    def __init__(self, record_dir: Path) -> None:
        self._record_dir = record_dir

    def find(self, exchange: str, start_us: int, filters: Sequence[Filter]) -> bytes | None:
        """The lines of a minute; None where something of it was not recorded. Without filters all is meant, which no recording has."""
        if not filters or exchange not in EXCHANGES:
            return None
        asked = missing = to_selection(filters)
        parts: list[list[bytes]] = []
        feeds = [(feed, to_selection(feed.filters)) for feed in find_feeds(self._record_dir, exchange)]
        # Who heard just this comes first, then who heard most of it.
        feeds.sort(key=lambda item: (item[1] != asked, -_width(overlap_of(asked, item[1]))))
        for feed, recorded in feeds:
            wanted = overlap_of(missing, recorded)
            if not wanted:
                continue
            data = _read(feed, start_us)
            if data is None:
                continue
            lines = split_lines(data)
            parts.append(lines if wanted == recorded else select_lines(exchange, lines, recorded, wanted, start_us))
            missing = missing_of(missing, wanted)
            if not missing:
                return b"".join([line + b"\n" for line in merge_lines(parts)])
        return None

    def exchanges(self) -> list[ExchangeDetails]:
        """Those that were recorded, as the history API lists them."""
        details = [self.exchange(name) for name in recorded_exchanges(self._record_dir)]
        return [{"id": each["id"], "name": each["name"], "enabled": True} for each in details if each is not None]

    def exchange(self, exchange: str) -> ExchangeDetails | None:
        """What was heard of an exchange: since when, which channels and symbols. None where nothing was."""
        feeds = self._begun(exchange)
        if not feeds:
            return None
        return {
            "id": exchange,
            "name": exchange,
            "enabled": True,
            "filterable": True,
            "availableSince": _to_text(min(feeds.values())),
            "availableChannels": sorted({item.channel for feed in feeds for item in feed.filters}),
            "availableSymbols": [{"id": symbol, "availableSince": since} for symbol, since in _symbols(feeds).items()],
            "incidentReports": [],
        }

    def instruments(self, exchange: str) -> list[InstrumentInfo]:
        """The symbols that were heard, and since when; more than that no recording says."""
        return [
            {
                "id": symbol,
                "datasetId": symbol.replace("/", "-").replace(":", "-"),
                "exchange": exchange,
                "active": True,
                "availableSince": since,
            }
            for symbol, since in _symbols(self._begun(exchange)).items()
        ]

    def _begun(self, exchange: str) -> dict[RecordedFeed, int]:
        """Feeds that have minutes, and when the first of them began."""
        feeds = {feed: feed.first_us for feed in find_feeds(self._record_dir, exchange)}
        return {feed: start_us for feed, start_us in feeds.items() if start_us is not None}


def _symbols(feeds: Mapping[RecordedFeed, int]) -> dict[str, str]:
    """Symbols, as users write them, and since when they were heard."""
    since: dict[str, int] = {}
    for feed, start_us in feeds.items():
        for item in feed.filters:
            for symbol in () if item.symbols is UNSET else item.symbols:
                since[symbol.upper()] = min(start_us, since.get(symbol.upper(), start_us))
    return {symbol: _to_text(since[symbol]) for symbol in sorted(since)}


def _to_text(instant_us: int) -> str:
    return to_timestamp(instant_us, milliseconds=True)


def _width(selection: Selection) -> int:
    return sum(1_000_000 if symbols is None else len(symbols) for symbols in selection.values())


def _read(feed: RecordedFeed, start_us: int) -> bytes | None:
    try:
        return feed.read(start_us)
    except SliceError as error:
        log.error("a recorded minute is damaged", folder=feed.folder, error=str(error))
    except OSError as error:
        log.error("a recorded minute can't be read", folder=feed.folder, error=error.strerror)
    return None
