"""Silver to gold: products, each one transformation in a file of its own.

Invariant: a gold table is a function of silver (gaps and data_quality also of bronze's envelopes), whatever the order in which rows
came: what is late computes the windows anew that it touches, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...errors import OptionsError
from ..tables import QUARANTINE, Table
from .bars import BARS, bars
from .book_state import BOOK_STATE, parse_book_state
from .books import BOOKS_TABLE
from .data_quality import DATA_QUALITY, data_quality
from .funding import FUNDING, funding
from .gaps import GAPS, gaps
from .liquidations import LIQUIDATIONS, liquidations
from .markouts import MARKOUTS, markouts
from .notional import SOURCE as INSTRUMENTS_SOURCE
from .order_flow import ORDER_FLOW, order_flow
from .product import GoldProduct
from .rebuilding import TOP, Sampling
from .top_of_book import TOP_OF_BOOK
from .trades_with_quotes import TRADES_WITH_QUOTES, trades_with_quotes
from .turnover import TURNOVER, turnover
from .volatility import VOLATILITY, volatility

__all__ = ["GOLD_TABLES", "Chosen", "parse_products"]

GOLD_TABLES: tuple[Table, ...] = (
    BARS,
    TOP_OF_BOOK,
    BOOK_STATE,
    BOOKS_TABLE,
    TRADES_WITH_QUOTES,
    MARKOUTS,
    ORDER_FLOW,
    VOLATILITY,
    FUNDING,
    LIQUIDATIONS,
    TURNOVER,
    GAPS,
    DATA_QUALITY,
)

SOURCES = ("trades", "book_changes", "derivative_tickers", "liquidations", "control_events", "events", INSTRUMENTS_SOURCE)
"""The silver tables that gold is made of, and bronze.events."""
BOOK_SOURCES = frozenset({"book_changes", "control_events"})

_BY_INTERVAL: Mapping[str, Callable[[str], GoldProduct]] = {
    "bars": bars,
    "order_flow": order_flow,
    "volatility": volatility,
    "funding": funding,
    "liquidations": liquidations,
    "turnover": turnover,
}
_PLAIN: Mapping[str, Callable[[], GoldProduct]] = {
    "trades_with_quotes": trades_with_quotes,
    "markouts": markouts,
    "gaps": gaps,
    "data_quality": data_quality,
}


@dataclass(frozen=True)
class Chosen:
    """What is kept in gold."""

    products: tuple[GoldProduct, ...]
    book_states: tuple[Sampling, ...]
    has_tops: bool

    @property
    def has_books(self) -> bool:
        """Whether books are rebuilt."""
        return self.has_tops or bool(self.book_states)

    @property
    def sources(self) -> tuple[str, ...]:
        """The tables whose new rows say what is computed, in an order that is fixed: a checkpoint remembers them by their place."""
        wanted = {name for product in self.products for name in product.reads} | (BOOK_SOURCES if self.has_books else set())
        return tuple(name for name in SOURCES if name in wanted)

    @property
    def identity(self) -> str:
        """What a stream that keeps all of it is known by; another one where it reads other tables than in an earlier release."""
        reads_instruments = INSTRUMENTS_SOURCE in self.sources
        return ",".join((*self.names, *([INSTRUMENTS_SOURCE] if reads_instruments else ())))

    @property
    def tables(self) -> tuple[Table, ...]:
        """Those that are written, or read besides the sources."""
        books = {
            BOOKS_TABLE.name,
            *({BOOK_STATE.name} if self.book_states else ()),
            *({TOP_OF_BOOK.name} if self.has_tops else ()),
        }
        wanted = {product.table.name for product in self.products} | (books if self.has_books else set())
        return (QUARANTINE, *(table for table in GOLD_TABLES if table.name in wanted))

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, sorted: the same for the same choice."""
        names = {*(product.name for product in self.products), *(state.product for state in self.book_states)}
        return tuple(sorted(names | ({TOP} if self.has_tops else set())))


def parse_products(names: Iterable[str]) -> Chosen:
    """The products of these names; raises OptionsError for one that is none. Those that need gold.top_of_book bring it along."""
    products: dict[str, GoldProduct] = {}
    book_states: dict[str, Sampling] = {}
    has_tops = False
    for name in names:
        kind, _, interval = name.rpartition("_")
        if name == TOP:
            has_tops = True
        elif name.startswith("book_state_"):
            book_states[name] = parse_book_state(name)
        elif name in _PLAIN:
            products[name] = _PLAIN[name]()
        elif kind in _BY_INTERVAL:
            products[name] = _BY_INTERVAL[kind](interval)
        else:
            takes = ", ".join([*(f"{kind}_1m" for kind in _BY_INTERVAL), TOP, "book_state_10_1s", *_PLAIN])
            raise OptionsError(f"there is no gold product {name!r}; --gold takes names such as {takes}", "gold")
    has_tops = has_tops or any(TOP in product.reads for product in products.values())
    return Chosen(tuple(products.values()), tuple(book_states.values()), has_tops)
