"""What `export nautilus` and `export hftbacktest` made, read by NautilusTrader and hftbacktest, beside what these make of the CSV
files of the same replay: FOLDER with `csv`, `catalog` and `npz`. Prints JSON."""

import json
import sys
from pathlib import Path

import numpy
from hftbacktest import DEPTH_CLEAR_EVENT, EXCH_EVENT, LOCAL_EVENT, BacktestAsset, ROIVectorMarketDepthBacktest
from hftbacktest.data import validate_event_order
from hftbacktest.data.utils.tardis import convert
from nautilus_trader.adapters.tardis.loaders import TardisCSVDataLoader
from nautilus_trader.model.enums import BookAction, RecordFlag
from nautilus_trader.model.identifiers import InstrumentId
from nautilus_trader.persistence.catalog import ParquetDataCatalog

folder = Path(sys.argv[1])
END_NS = 10**19


def file_of(dataset: str) -> str:
    return str(folder / "csv" / f"bitmex_{dataset}_2020-02-01_XBTUSD.csv.gz")


def compare_catalog() -> dict[str, object]:
    loader = TardisCSVDataLoader(price_precision=1, size_precision=0, instrument_id=InstrumentId.from_str("XBTUSD.BITMEX"))
    catalog = ParquetDataCatalog(str(folder / "catalog"))
    trades, loaded_trades = catalog.trade_ticks(), loader.load_trades(file_of("trades"))
    quotes, loaded_quotes = catalog.quote_ticks(), loader.load_quotes(file_of("quotes"))
    deltas = catalog.order_book_deltas()
    changes = [delta for delta in deltas if delta.action != BookAction.CLEAR]

    def seen(delta: object) -> tuple[object, ...]:
        return delta.action, delta.order.side, delta.order.price, delta.order.size, delta.ts_event, delta.ts_init

    clears = [index for index, delta in enumerate(deltas) if delta.action == BookAction.CLEAR]
    return {
        "trades": len(trades),
        "same_trades": trades == loaded_trades,
        "quotes": len(quotes),
        "same_quotes": quotes == loaded_quotes,
        "changes": len(changes),
        "same_changes": list(map(seen, changes)) == list(map(seen, loader.load_deltas(file_of("incremental_book_L2")))),
        "last_of_messages": sum(bool(delta.flags & RecordFlag.F_LAST) for delta in deltas),
        "clears": len(clears),
        "clears_begin_snapshots": all(deltas[index + 1].flags & RecordFlag.F_SNAPSHOT for index in clears),
    }


def compare_events() -> dict[str, object]:
    path = str(folder / "npz" / "bitmex_2020-02-01_XBTUSD.npz")
    ours = numpy.load(path)["data"]
    theirs = convert([file_of("trades"), file_of("incremental_book_L2")], buffer_size=1_000_000, ss_buffer_size=100_000)
    validate_event_order(ours)
    is_clear = (ours["ev"] & 0xFF) == DEPTH_CLEAR_EVENT
    of_exchange, local = (((events["ev"] & flag) == flag) for events, flag in ((ours, EXCH_EVENT), (ours, LOCAL_EVENT)))

    def changes(events: numpy.ndarray) -> list[tuple]:
        """In both orders, without clearings, whose prices the converter takes from a row that need not be the last of the book."""
        kept = events[(events["ev"] & 0xFF) != DEPTH_CLEAR_EVENT]
        kinds = ~(EXCH_EVENT | LOCAL_EVENT)
        orders = (kept[(kept["ev"] & flag) == flag].tolist() for flag in (EXCH_EVENT, LOCAL_EVENT))
        return [[(row[0] & kinds, *row[1:]) for row in order] for order in orders]

    return {
        "dtype": ours.dtype == theirs.dtype,
        "same_events": changes(ours) == changes(theirs),
        "overtaken": len(ours) - int(local.sum()),
        "clears": int((is_clear & local).sum()),
        "each_once_in_each_order": int(of_exchange.sum()) == int(local.sum()),
        "book": book_at_end(path),
    }


def book_at_end(path: str) -> list[float]:
    """As a backtest sees it when all has arrived."""
    asset = (
        BacktestAsset()
        .data([path])
        .linear_asset(1.0)
        .constant_order_latency(0, 0)
        .risk_adverse_queue_model()
        .no_partial_fill_exchange()
        .trading_value_fee_model(0.0, 0.0)
        .tick_size(0.5)
        .lot_size(1.0)
        .roi_lb(0.0)
        .roi_ub(100_000.0)
    )
    backtest = ROIVectorMarketDepthBacktest([asset])
    while backtest.elapse(1_000_000_000) == 0:
        pass
    depth = backtest.depth(0)
    best = [float(depth.best_bid), float(depth.best_ask)]
    backtest.close()
    return best


print(json.dumps({"nautilus": compare_catalog(), "hftbacktest": compare_events()}))
