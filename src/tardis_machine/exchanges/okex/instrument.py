"""What OKX's instrument names say: `BTC-USD-240628-60000-C` is a call, of the index BTC-USD.

Invariant: names come back with every message, so what they say is worked out once for each.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from ...errors import OptionsError
from .._parsing import expiration_on, to_number

# More instruments than OKX lists at a time.
_KNOWN = 20_000
_DAY = re.compile(r"(\d\d)(\d\d)(\d\d)", re.ASCII)


def family_of(instrument: str) -> str:
    """`SOL-USD_UM-260618-67-C` is one of SOL-USD_UM."""
    base, quote = instrument.split("-")[:2]
    return f"{base}-{quote}"


@lru_cache(_KNOWN)
def index_of(instrument: str) -> str:
    """`BTC-USD_UM_XPERP-310404` follows BTC-USD: what comes after the quote currency says how it is margined."""
    return family_of(instrument).partition("_")[0]


def spell_instrument(symbol: str) -> str:
    """A symbol that a user typed, in upper case; OptionsError where it has no quote currency, and so no index."""
    if "-" not in symbol:
        raise OptionsError(f"symbols: expected an instrument of OKX such as BTC-USDT-SWAP, got {symbol!r}", "symbols")
    return symbol.upper()


@lru_cache(_KNOWN)
def option_terms(instrument: str) -> tuple[Literal["put", "call"], float, str]:
    """Type, strike price and expiration, which is at 08:00 UTC."""
    _, _, day, strike, kind, *_ = instrument.split("-")
    found = _DAY.search(day)
    if found is None:
        raise ValueError(f"{instrument} does not say when it expires")
    year, month, day_of_month = map(int, found.groups())
    return "put" if kind == "P" else "call", to_number(strike), expiration_on(2000 + year, month, day_of_month)
