"""What the history API says of the sample market's exchanges and instruments.

Invariant: the same for the same date, and as upstream writes it.
"""

from __future__ import annotations

from typing import Any

from ..messages import to_timestamp
from .instrument import Instrument
from .recording import venue_of
from .venues import VENUES

__all__ = ["describe_exchange", "list_exchanges", "list_instruments"]

SINCE = "2019-03-30T00:00:00.000Z"
_LISTED_US = 1_580_515_200_000_000
"""2020-02-01: what is listed on that day is what the sample lists."""


def list_exchanges() -> list[dict[str, Any]]:
    """All of them, in short."""
    return [{"id": name, "name": name, "enabled": True, "filterable": True, "availableSince": SINCE} for name in sorted(VENUES)]


def describe_exchange(exchange: str) -> dict[str, Any]:
    """One of them, with its channels and symbols."""
    symbols = [{"id": each.symbol, "type": each.kind, "availableSince": SINCE} for each in _instruments(exchange)]
    return {
        "id": exchange,
        "name": exchange,
        "enabled": True,
        "filterable": True,
        "availableSince": SINCE,
        "availableChannels": list(venue_of(exchange).channels),
        "availableSymbols": symbols,
        "incidentReports": [],
        "supportsDatasets": False,
    }


def list_instruments(exchange: str) -> list[dict[str, Any]]:
    """What it lists."""
    return [_describe(instrument) for instrument in _instruments(exchange)]


def _instruments(exchange: str) -> list[Instrument]:
    return list(venue_of(exchange).instruments(_LISTED_US // 60_000_000))


def _describe(instrument: Instrument) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": instrument.symbol,
        "datasetId": instrument.symbol.replace("/", "-").replace(":", "-").upper(),
        "exchange": instrument.exchange,
        "baseCurrency": instrument.asset,
        "quoteCurrency": "USD",
        "type": instrument.kind,
        "active": True,
        "availableSince": SINCE,
        "priceIncrement": instrument.tick / 10**instrument.price_decimals,
        "amountIncrement": 1 / 10**instrument.size_decimals,
        "minTradeAmount": 1 / 10**instrument.size_decimals,
        "makerFee": 0.0002,
        "takerFee": 0.0005,
        "inverse": instrument.settled_in_asset,
        "contractMultiplier": 1,
    }
    if instrument.terms is not None:
        described["expiry"] = to_timestamp(instrument.terms.expiry_us, milliseconds=True)
        if instrument.kind == "option":
            described["strikePrice"] = instrument.terms.strike
            described["optionType"] = "call" if instrument.terms.call else "put"
    return described
