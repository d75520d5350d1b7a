"""What MEXC's feeds share: how a book's snapshot, which is fetched, finds its place among the updates.

Invariant: a snapshot is delivered once it joins the updates heard. It may come from a cache, and be older than the first of them: two
are refused while none was heard, and the third is taken, as the book may be one that hardly changes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import orjson

from ...filters import Filter
from .._feed import Credentials, Feed, Fetch
from .._joined_book import JoinRules
from .._joined_book_gate import JoinedBookGate
from .._mapper import Json

__all__ = ["SnapshotFeed"]


class SnapshotFeed(Feed):
    """A feed that fetches the snapshots of its books."""

    rules: ClassVar[JoinRules]

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self.books: JoinedBookGate = JoinedBookGate(self.rules, patience=2)

    @abstractmethod
    def read_snapshot(self, symbol: str, answer: Json) -> tuple[int, Json] | None:
        """The number of a snapshot, and the message that the recorder has of it; None where the answer is no book."""

    def fetch_snapshot(self, symbol: str, path: str) -> Fetch:
        """The snapshot of a book."""

        def to_messages(body: bytes) -> list[bytes] | None:
            found = self.read_snapshot(symbol, orjson.loads(body))
            return [orjson.dumps(found[1])] if found is not None and self.books.fits(symbol, found[0]) else None

        return Fetch(f"snapshot of {symbol}", path, to_messages)
