"""NautilusTrader's loaders and hftbacktest's converter of datasets: FOLDER of `export csv` of XBTUSD. Prints JSON."""

import json
import sys
from pathlib import Path

import numpy
from hftbacktest import BUY_EVENT, DEPTH_EVENT, DEPTH_SNAPSHOT_EVENT, TRADE_EVENT
from hftbacktest.data.utils.tardis import convert
from nautilus_trader.adapters.tardis.loaders import TardisCSVDataLoader
from nautilus_trader.model.identifiers import InstrumentId

folder = Path(sys.argv[1])


def file_of(dataset: str) -> str:
    return str(folder / f"bitmex_{dataset}_2020-02-01_XBTUSD.csv.gz")


def load() -> dict[str, object]:
    loader = TardisCSVDataLoader(price_precision=1, size_precision=0, instrument_id=InstrumentId.from_str("XBTUSD.BITMEX"))
    trades = loader.load_trades(file_of("trades"))
    deltas = loader.load_deltas(file_of("incremental_book_L2"))
    return {
        "trades": [
            [trade.trade_id.value, float(str(trade.price)), float(str(trade.size)), trade.ts_event, trade.ts_init]
            for trade in trades
        ],
        "deltas": sum(delta.order.size > 0 or delta.order.price > 0 for delta in deltas),
        "quotes": [
            [float(str(quote.bid_price)), float(str(quote.ask_price)), quote.ts_init]
            for quote in loader.load_quotes(file_of("quotes"))
        ],
        "depths": len(loader.load_depth10(file_of("book_snapshot_25"), levels=25)),
        "snapshots": len(loader.load_depth10(file_of("book_snapshot_5"), levels=5)),
        "fundings": len(loader.load_funding_rates(file_of("derivative_ticker"))),
    }


def convert_both() -> dict[str, object]:
    events = convert([file_of("trades"), file_of("incremental_book_L2")], buffer_size=1_000_000, ss_buffer_size=100_000)
    kinds = events["ev"]
    trades = events[(kinds & 0xFF) == TRADE_EVENT]
    return {
        "trades": len(trades),
        "volume": float(trades["qty"].sum()),
        "bought": float(trades["qty"][(trades["ev"] & BUY_EVENT) == BUY_EVENT].sum()),
        "levels": int(numpy.isin(kinds & 0xFF, [DEPTH_EVENT, DEPTH_SNAPSHOT_EVENT]).sum()),
    }


print(json.dumps({"nautilus": load(), "hftbacktest": convert_both()}))
