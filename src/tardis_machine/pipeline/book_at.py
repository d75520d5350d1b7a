"""The book of one instrument at one instant, out of history.

Invariant: it is the book of whoever has heard all that the recorder had received until then, and no more. While a connection is lost there
is no book.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ..errors import OptionsError
from ..history.api import DEFAULT_API_URL
from ..history.client import HistoryClient
from ..messages import BookChange, to_timestamp
from .current_state import CurrentState
from .fetching import fetch_lines
from .replay import NormalizedReplay
from .request import NormalizedRequest, parse_book_request

__all__ = ["BookRequest", "book_at", "parse_book"]

_DAY_US = 86_400_000_000
_SHORT_US = 600_000_000
"""A recorder that connected again, and exchanges that tell whole books all the time, spare the rest of the day."""
_BEGINNING_US = 60_000_000
"""Within which a day's whole books come."""


class BookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    exchange: str
    symbol: str
    at_us: int
    depth: int | None = None
    """Levels of a side; None: all."""

    def replays(self) -> Iterator[NormalizedRequest]:
        """What to replay for it: a little, and where no book began in that, the day, which begins with whole books.

        In its first minute these may not have come yet, and the day before has the book.
        """
        end_us = self.at_us + 1
        day_us = self.at_us - self.at_us % _DAY_US
        starts = [max(self.at_us - _SHORT_US, day_us), day_us]
        if self.at_us - day_us < _BEGINNING_US:
            starts.append(max(day_us - _DAY_US, 0))
        for from_us in dict.fromkeys(starts):
            yield NormalizedRequest(
                exchange=self.exchange,
                from_us=from_us,
                to_us=end_us,
                data_types=["book_change"],
                symbols=[self.symbol],
                with_disconnect_messages=True,
                publish=False,
            )

    def cut(self, book: BookChange) -> BookChange:
        """The best levels, as many as were asked for."""
        return book if self.depth is None else replace(book, bids=book.bids[: self.depth], asks=book.asks[: self.depth])

    @property
    def none_known(self) -> str:
        """The sentence for where there is no book."""
        return f"at: no book of {self.symbol} is known at {to_timestamp(self.at_us)}; it was not recorded, or its connection was lost"


def parse_book(exchange: str | None, symbol: str | None, at: str | None, depth: str | int | None) -> BookRequest:
    """What a client asks for; OptionsError where that is wrong."""
    options = {"exchange": exchange, "symbol": symbol, "at": at, "depth": depth}
    return BookRequest(**parse_book_request({name: value for name, value in options.items() if value is not None}))


async def book_at(
    *,
    exchange: str,
    symbol: str,
    at: str,
    depth: int | None = None,
    api_key: str | None = None,
    api_url: str | None = None,
    cache_dir: str | Path | None = None,
) -> BookChange:
    """The book at an instant, as one snapshot with the times of its last change; `depth` levels of a side, or all.

    book = await book_at(exchange="bitmex", symbol="XBTUSD", at="2020-02-01T10:30", depth=10)
    """
    asked = parse_book(exchange, symbol, at, depth)
    async with HistoryClient(api_url or DEFAULT_API_URL, api_key, cache_dir) as client:
        for request in asked.replays():
            state, normalized = CurrentState(), NormalizedReplay(request)
            async with aclosing(fetch_lines(client, request, normalized.periods())) as source:
                async for period, lines in source:
                    state.take(normalized.feed(period, lines))
            if books := state.books():
                return asked.cut(books[0])
    raise OptionsError(asked.none_known, "at")
