"""Qubx's reader of a machine: PORT. Prints what it reads of XBTUSD, as rows with its own names, as JSON."""

import json
import sys

from qubx.data.readers import AsPandasFrame
from qubx.data.tardis import TardisMachineReader

port = int(sys.argv[1])
url = f"http://127.0.0.1:{port}"
reader = TardisMachineReader(tardis_api_url=f"{url}/v1", tardis_machine_url=url)
SPAN = ("2020-02-01 00:00:00", "2020-02-01 00:07:00")


def read(**asked: object) -> list[dict[str, object]]:
    frame = reader.read("bitmex:XBTUSD", *SPAN, transform=AsPandasFrame(), **asked)
    return list(frame.reset_index().to_dict("records"))


answers = {
    "exchanges": reader.get_exchanges(),
    "trades": read(data_type="trade"),
    "bars": read(data_type="trade", timeframe="1m"),
    "tickers": len(read(data_type="derivative_ticker")),
}
print(json.dumps(answers, default=str))
