"""Numbers in the names of data types: `trade_bar_1.5s`.

Invariant: `to_text(parse_quantity(text))` is how JavaScript prints the number, whatever form it was written in.
"""

from __future__ import annotations

import re
from math import isinf

from ..messages import js_number, to_json

__all__ = ["parse_quantity", "to_text"]

_QUANTITY = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)


def parse_quantity(text: str, unit: float = 1) -> float:
    """The number of that many units; ValueError where it is none."""
    if not _QUANTITY.fullmatch(text) or isinf(float(text) * unit):
        raise ValueError(f"'{text}' is not a number")
    return js_number(float(text) * unit)


def to_text(quantity: float) -> str:
    """The number as it stands in a name."""
    return to_json(js_number(float(quantity))).decode()
