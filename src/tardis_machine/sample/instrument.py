"""What is traded on a venue of the sample market, and how its slots and lots read as prices and sizes.

Invariant: a book's levels live in slots (integers). The price of a slot rises with the slot, so books that do not cross in slots
do not cross in prices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from .seeded_random import key_of, mix

__all__ = ["Instrument", "Kind", "Memo", "Terms", "to_decimal", "to_number", "to_rounded"]

Kind = Literal["spot", "perpetual", "future", "option"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Terms:
    """What only dated contracts have; strike and call only options."""

    expiry_us: int
    strike: int = 0
    call: bool = True


@dataclass(frozen=True, slots=True)
class Instrument:
    """One instrument of one exchange. Prices are integers of 10^-price_decimals, sizes lots of 10^-size_decimals."""

    exchange: str
    symbol: str
    asset: str
    kind: Kind
    price_decimals: int
    tick: int
    size_decimals: int
    level_lots: int
    """Size of an ordinary level."""
    trade_lots: int
    """Size of an ordinary trade."""
    trades_per_s: float
    changes_per_s: float
    """Changes of the book."""
    depth: int = 100
    """Levels of a side at the start of a minute."""
    spacing: int = 0
    """Price units between levels; 0: a tick. Where ticks are tiny, levels are further apart, at uneven prices."""
    terms: Terms | None = None
    settled_in_asset: bool = False
    """Inverse: contracts in quote currency, margin in the asset."""
    key: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", key_of(f"{self.exchange}|{self.symbol}"))
        object.__setattr__(self, "spacing", self.spacing or self.tick)

    def __hash__(self) -> int:
        return self.key

    def price_units(self, slot: int) -> int:
        """The price of a slot, in units of 10^-price_decimals."""
        ticks_between = self.spacing // self.tick
        if ticks_between == 1:
            return slot * self.tick
        return slot * self.spacing + mix(self.key, slot) % ticks_between * self.tick

    def price(self, slot: int) -> float:
        """The price of a slot as a number."""
        return float(to_decimal(self.price_units(slot), self.price_decimals))

    def size(self, lots: int) -> float:
        """Lots as a number."""
        return float(to_decimal(lots, self.size_decimals))


class Memo(dict[int, T], Generic[T]):
    """What a function gives for each integer, computed once: slots recur, and a look-up is all that a hot loop can afford."""

    def __init__(self, function: Callable[[int], T]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: int) -> T:
        value = self[key] = self._function(key)
        return value


def to_decimal(units: int, decimals: int) -> str:
    """Units of 10^-decimals as plain decimal text, every digit written: 42, 1 -> '4.2'."""
    if not decimals:
        return str(units)
    whole, fraction = divmod(abs(units), 10**decimals)
    return f"{'-' if units < 0 else ''}{whole}.{fraction:0{decimals}d}"


def to_number(units: int, decimals: int) -> str:
    """The same without needless zeros, as a JSON number is printed: 420, 2 -> '4.2'."""
    text = to_decimal(units, decimals)
    return text.rstrip("0").rstrip(".") if decimals else text


def to_rounded(value: float, decimals: int) -> str:
    """A value rounded to so many decimals, as a JSON number is printed; no exponent, no negative zero."""
    text = f"{value:.{decimals}f}"
    if decimals:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
