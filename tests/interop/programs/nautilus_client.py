"""NautilusTrader's clients of a machine without a token: PORT. Prints the instruments it finds, and the trades of a day, as JSON."""

import asyncio
import json
import sys

from nautilus_trader.core import nautilus_pyo3 as nautilus
from nautilus_trader.model.data import capsule_to_data

port = int(sys.argv[1])
ASKED = {
    "exchange": "bitmex",
    "symbols": ["XBTUSD"],
    "from": "2020-02-01",
    "to": "2020-02-02",
    "dataTypes": ["trade"],
    "withDisconnectMessages": False,
}


async def main() -> None:
    instruments = await nautilus.TardisHttpClient("any", base_url=f"http://127.0.0.1:{port}/v1").instruments("bitmex")
    replayed: list[object] = []
    instrument = nautilus.TardisInstrumentMiniInfo(nautilus.InstrumentId.from_str("XBTUSD.BITMEX"), "XBTUSD", "bitmex", 1, 0)
    options = nautilus.ReplayNormalizedRequestOptions.from_json(json.dumps(ASKED).encode())
    await nautilus.TardisMachineClient(base_url=f"ws://127.0.0.1:{port + 1}").replay([instrument], [options], replayed.append)
    trades = [capsule_to_data(item) for item in replayed]
    rows = [
        [trade.trade_id.value, float(str(trade.price)), float(str(trade.size)), trade.ts_event, trade.ts_init] for trade in trades
    ]
    print(json.dumps({"instruments": sorted(str(each.id) for each in instruments), "trades": rows}))


asyncio.run(main())
