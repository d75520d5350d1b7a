"""What rows of both generations hold: the same numbers by other names, and 0 or nothing for what is not known.

Invariant: a generation says how it names a number, and nothing else about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._mapper import Json
from .._parsing import nonzero_number

EPOCH = "1970-01-01T00:00:00.000Z"
"""The time of a book that has none."""

GREEKS = {name: name for name in ("delta", "gamma", "vega", "theta")}


def numbers_of(row: Json, names: Mapping[str, str]) -> dict[str, Any]:
    """The numbers of a row by the names of our fields, of which `names` tells the exchange's; UNSET where there is none."""
    return {ours: nonzero_number(row.get(theirs)) for ours, theirs in names.items()}
