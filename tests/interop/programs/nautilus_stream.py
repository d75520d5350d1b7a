"""NautilusTrader's live client of a machine without a token: PORT COUNT. Prints the first COUNT trades of XBTUSD as JSON."""

import asyncio
import json
import os
import sys

from nautilus_trader.core import nautilus_pyo3 as nautilus
from nautilus_trader.model.data import capsule_to_data

port, count = map(int, sys.argv[1:])
ASKED = {
    "exchange": "bitmex",
    "symbols": ["XBTUSD"],
    "dataTypes": ["trade"],
    "withDisconnectMessages": False,
    "timeoutIntervalMS": 0,
}
rows: list[list[object]] = []


def take(item: object) -> None:
    trade = capsule_to_data(item)
    rows.append([trade.trade_id.value, float(str(trade.price)), float(str(trade.size)), trade.ts_event])
    if len(rows) == count:
        print(json.dumps(rows), flush=True)
        os._exit(0)  # the client knows no end of what is live


async def main() -> None:
    instrument = nautilus.TardisInstrumentMiniInfo(nautilus.InstrumentId.from_str("XBTUSD.BITMEX"), "XBTUSD", "bitmex", 1, 0)
    options = nautilus.StreamNormalizedRequestOptions.from_json(json.dumps(ASKED).encode())
    await nautilus.TardisMachineClient(base_url=f"ws://127.0.0.1:{port + 1}").stream([instrument], [options], take)


asyncio.run(main())
