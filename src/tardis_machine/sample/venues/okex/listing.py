"""What OKX's exchanges list, and how their slots and lots read in both generations of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol
from zlib import crc32

from ...instrument import Instrument, Memo, Terms, to_number
from ...market import Change, Minute, SampleMarket, SlotBook
from .._contract import Row, Wants
from .._listing import STRIKES, compact_date

__all__ = ["PRODUCTS", "Checksum", "Language", "OkexProduct", "Words", "index_of", "words_of"]

_CHECKED_LEVELS = 25
_LOOK_AT = 40


@dataclass(frozen=True, slots=True)
class OkexProduct:
    """One of OKX's exchanges."""

    kind: str
    """As the new API writes it: SPOT."""
    prefix: str
    """As the old API writes it: spot."""
    listing: Callable[[str, int], tuple[Instrument, ...]]
    """(exchange, expiry of its dated contracts) to what is listed."""


def _spot(exchange: str, quarter_us: int) -> tuple[Instrument, ...]:
    return (
        Instrument(exchange, "BTC-USDT", "BTC", "spot", 1, 1, 8, 40_000_000, 3_000_000, 10.0, 50.0, depth=150, spacing=6),
        Instrument(exchange, "ETH-USDT", "ETH", "spot", 2, 1, 6, 8_000_000, 600_000, 4.0, 25.0, depth=150, spacing=9),
    )


def _swaps(exchange: str, quarter_us: int) -> tuple[Instrument, ...]:
    return (
        Instrument(exchange, "BTC-USDT-SWAP", "BTC", "perpetual", 1, 1, 0, 400, 30, 12.0, 60.0, depth=150, spacing=5),
        Instrument(exchange, "ETH-USDT-SWAP", "ETH", "perpetual", 2, 1, 0, 900, 60, 5.0, 28.0, depth=150, spacing=8),
        Instrument(
            exchange, "BTC-USD-SWAP", "BTC", "perpetual", 1, 1, 0, 300, 25, 4.0, 20.0, depth=100, spacing=6, settled_in_asset=True
        ),
    )


def _futures(exchange: str, quarter_us: int) -> tuple[Instrument, ...]:
    date, terms = compact_date(quarter_us), Terms(quarter_us)
    return (
        Instrument(exchange, f"BTC-USDT-{date}", "BTC", "future", 1, 1, 0, 200, 15, 3.0, 20.0, depth=100, spacing=7, terms=terms),
        Instrument(exchange, f"ETH-USDT-{date}", "ETH", "future", 2, 1, 0, 400, 30, 1.0, 10.0, depth=100, spacing=9, terms=terms),
    )


def _options(exchange: str, quarter_us: int) -> tuple[Instrument, ...]:
    def option(strike: int, call: bool) -> Instrument:
        symbol = f"BTC-USD-{compact_date(quarter_us)}-{strike}-{'C' if call else 'P'}"
        terms = Terms(quarter_us, strike, call)
        return Instrument(exchange, symbol, "BTC", "option", 4, 5, 0, 60, 8, 0.02, 1.0, depth=8, terms=terms)

    return tuple(option(strike, call) for strike in STRIKES["BTC"] for call in (True, False))


PRODUCTS = {
    "okex": OkexProduct("SPOT", "spot", _spot),
    "okex-swap": OkexProduct("SWAP", "swap", _swaps),
    "okex-futures": OkexProduct("FUTURES", "futures", _futures),
    "okex-options": OkexProduct("OPTION", "option", _options),
}


def index_of(instrument: Instrument) -> str:
    """The index that an instrument follows: BTC-USDT-SWAP follows BTC-USDT."""
    return "-".join(instrument.symbol.split("-")[:2])


class Words:
    """How an instrument's slots and lots read: all numbers are text, without needless zeros."""

    def __init__(self, instrument: Instrument) -> None:
        self.price = Memo(lambda slot: to_number(instrument.price_units(slot), instrument.price_decimals))
        decimals = instrument.size_decimals
        self.size: Callable[[int], str] = lambda lots: to_number(lots, decimals)

    def level(self, slot: int, lots: int) -> str:
        """Price, size, a field that is always 0, and how many orders there are."""
        return f'["{self.price[slot]}","{self.size(lots)}","0","{lots % 9 + 1 if lots else 0}"]'

    def changed(self, changes: list[Change]) -> str:
        """Both sides of an update."""
        bids = ",".join([self.level(slot, lots) for bid, slot, lots, _ in changes if bid])
        asks = ",".join([self.level(slot, lots) for bid, slot, lots, _ in changes if not bid])
        return f'"asks":[{asks}],"bids":[{bids}]'

    def whole(self, book: SlotBook) -> str:
        """Both sides of a snapshot."""
        bids = ",".join([self.level(slot, book.bids[slot]) for slot in sorted(book.bids, reverse=True)])
        asks = ",".join([self.level(slot, book.asks[slot]) for slot in sorted(book.asks)])
        return f'"asks":[{asks}],"bids":[{bids}]'


@lru_cache(maxsize=256)
def words_of(instrument: Instrument) -> Words:
    """The words of an instrument, made once."""
    return Words(instrument)


class Checksum:
    """The exchange's checksum of the best 25 levels of each side, kept as the book changes."""

    def __init__(self, words: Words, book: SlotBook) -> None:
        self._words = words
        self._sides = [{slot: self._text(slot, lots) for slot, lots in side.items()} for side in (book.asks, book.bids)]
        # The best levels of asks and bids; None when the side has changed.
        self._best: list[list[str] | None] = [None, None]

    def apply(self, changes: list[Change]) -> None:
        """Follows a change of the book."""
        for bid, slot, lots, _ in changes:
            self._best[bid] = None
            if lots:
                self._sides[bid][slot] = self._text(slot, lots)
            else:
                self._sides[bid].pop(slot, None)

    def value(self, bid: int, ask: int) -> int:
        """CRC-32 of the levels from the best ones on, the sides by turns, as a signed integer."""
        if (asks := self._best[False]) is None:
            asks = self._best[False] = _first_of(self._sides[False], ask, 1)
        if (bids := self._best[True]) is None:
            bids = self._best[True] = _first_of(self._sides[True], bid, -1)
        both = min(len(bids), len(asks))
        parts = [""] * (2 * both)
        parts[::2], parts[1::2] = bids[:both], asks[:both]
        unsigned = crc32(":".join([*parts, *bids[both:], *asks[both:]]).encode())
        return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned

    def _text(self, slot: int, lots: int) -> str:
        return f"{self._words.price[slot]}:{self._words.size(lots)}"


def _first_of(side: dict[int, str], best: int, step: int) -> list[str]:
    """The best levels of a side: looked up next to the best one, as sorting a side for each message takes much longer."""
    found = [side[slot] for slot in range(best, best + step * _LOOK_AT, step) if slot in side][:_CHECKED_LEVELS]
    if len(found) == min(len(side), _CHECKED_LEVELS):
        return found
    return [side[slot] for slot in sorted(side, reverse=step < 0)[:_CHECKED_LEVELS]]


class Language(Protocol):
    """A generation of the API: what a venue has to say, in its words."""

    def rows(self, product: OkexProduct, market: SampleMarket, minute: Minute, channels: frozenset[str]) -> Iterator[Row]:
        """A minute of one instrument."""

    def greeting(
        self, product: OkexProduct, market: SampleMarket, listed: Sequence[Instrument], arrival: int, wants: Wants
    ) -> Iterator[Row]:
        """What a recorder that connects gets."""

    def common(
        self, product: OkexProduct, market: SampleMarket, listed: Sequence[Instrument], minute_index: int, wants: Wants
    ) -> Iterator[Row]:
        """What belongs to no single instrument."""
