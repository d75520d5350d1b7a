"""Trades of an interval summed up on columns, compared with what plain Python makes of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tardis_machine.lakehouse.commits import TableFile
from tardis_machine.lakehouse.gold.summing import SumTask, sum_trades
from tardis_machine.lakehouse.silver.trades import TRADES
from tardis_machine.lakehouse.storage import Folder
from tardis_machine.lakehouse.table_files import write_files

SECOND_US = 1_000_000
START_US = 1_580_515_200 * SECOND_US
INSTANT = pa.timestamp("us", "UTC")
PRICE = pa.decimal128(38, 18)


def make_trades(count: int, seed: int) -> list[dict[str, Any]]:
    random = Random(seed)
    rows = []
    for number in range(count):
        local_us = START_US + number * 100_000 + random.randrange(3) * 400_000
        # Some have no time of the exchange, or one that is far off.
        event_us = random.choice([local_us - random.randrange(2_000_000), local_us, None, local_us - 2 * 3600 * SECOND_US])
        rows.append(
            {
                "exchange": "bitmex",
                "symbol": random.choice(["XBTUSD", "ETHUSD", None]),
                "local_ts": local_us,
                "event_ts": event_us,
                "price": random.choice([None, *[Decimal(random.randrange(90_000, 91_000)) / 10] * 3]),
                "amount": random.choice([None, *[Decimal(random.randrange(1, 10**6)) / 1000] * 3]),
                "side": random.choice(["buy", "sell", "unknown"]),
                "sequence": number // 2,
                "event_id": random.randbytes(16),
            }
        )
    return rows


def write(folder: Path, rows: Sequence[dict[str, Any]]) -> TableFile:
    """One file of silver.trades."""
    kinds = {
        "local_ts": INSTANT,
        "event_ts": INSTANT,
        "price": PRICE,
        "amount": PRICE,
        "sequence": pa.int64(),
        "event_id": pa.binary(),
    }
    columns = {name: pa.array([row[name] for row in rows], kinds.get(name, pa.string())) for name in rows[0]}
    columns["date"] = pa.array([18_293] * len(rows), pa.int32()).cast(pa.date32())
    missing = {name: pa.nulls(len(rows), pa.string()) for name in TRADES.table.columns if name not in columns}
    batch = pa.RecordBatch.from_pydict({name: {**columns, **missing}[name] for name in TRADES.table.columns})
    (file,) = write_files(
        lambda batches: ((TRADES.table, batch) for _ in batches), Folder(str(folder)), {TRADES.table.name: str(folder)}, [batch]
    )
    times = [row["local_ts"] for row in rows]
    return TableFile(f"{folder}/{file.path}", file.path, file.size, file.partition, min(times), max(times), 0, 1 << 62)


def plainly(rows: Sequence[dict[str, Any]], interval_us: int) -> Iterator[tuple[tuple[str, int], dict[str, Any]]]:
    """Each window, with nothing but sums of fractions."""
    windows = defaultdict(list)
    for row in rows:
        event_us, local_us = row["event_ts"], row["local_ts"]
        ts = event_us if event_us is not None and abs(event_us - local_us) <= 3600 * SECOND_US else local_us
        windows[row["symbol"], ts - ts % interval_us].append((ts, local_us, row["sequence"], row["event_id"], row))
    for (symbol, start), found in windows.items():
        found.sort(key=lambda item: item[:4])
        trades, times = [item[4] for item in found], [item[0] for item in found]
        prices = [trade["price"] for trade in trades]
        known = [price for price in prices if price is not None]
        sized = [trade for trade in trades if trade["amount"] is not None]
        volume = sum(trade["amount"] for trade in sized) if sized else None
        held = [after - before for before, after in pairwise([*times, start + interval_us])]
        notional = [Fraction(trade["price"]) * Fraction(trade["amount"]) for trade in sized if trade["price"] is not None]
        at_prices = [Fraction(price) * us for price, us in zip(prices, held, strict=True) if price is not None]
        yield (
            (symbol, start),
            {
                "open": prices[0],
                "high": max(known, default=None),
                "low": min(known, default=None),
                "close": prices[-1],
                "volume": volume,
                "buy_volume": sum(trade["amount"] for trade in sized if trade["side"] == "buy"),
                "sell_volume": sum(trade["amount"] for trade in sized if trade["side"] == "sell"),
                "trades": len(trades),
                "vwap": float(sum(notional) / Fraction(volume)) if notional and volume else None,
                "twap": float(sum(at_prices) / sum(held)) if at_prices else None,
            },
        )


@pytest.mark.parametrize("interval_us", [SECOND_US, 60 * SECOND_US])
def test_windows_have_what_plain_sums_have(tmp_path: Path, interval_us: int) -> None:
    rows = make_trades(2_000, 1)
    shuffled = Random(2).sample(rows, len(rows))
    files = (write(tmp_path, shuffled[:1200]), write(tmp_path, shuffled[1200:]))
    wanted = {window: bar for window, bar in plainly(rows, interval_us) if window[0] is not None}
    # All but one; of the others nothing comes, wherever their rows lie.
    left_out = min(wanted)
    asked = [window for window in wanted if window != left_out]
    starts = np.array([start for _, start in asked], np.int64).tobytes()
    task = SumTask(Folder(str(tmp_path)), "bitmex", interval_us, tuple(symbol for symbol, _ in asked), starts, files)
    found = sum_trades(task).to_pylist()
    assert len(found) == len(asked) > 3
    for bar in found:
        start_us = round(bar["start"].timestamp() * 1e6)
        expected = wanted[bar["symbol"], start_us]
        for name, value in expected.items():
            if name in ("vwap", "twap") and value is not None:
                assert float(bar[name]) == pytest.approx(value, rel=1e-12), name
            else:
                assert bar[name] == value, name
    # What comes does not depend on how rows are spread over files.
    other = SumTask(task.storage, "bitmex", interval_us, task.symbols, starts, (write(tmp_path, rows),))
    assert sorted(map(str, sum_trades(other).to_pylist())) == sorted(map(str, found))


def test_windows_without_a_trade_give_nothing(tmp_path: Path) -> None:
    file = write(tmp_path, make_trades(10, 1))
    later = np.array([START_US + 3600 * SECOND_US], np.int64).tobytes()
    assert not sum_trades(SumTask(Folder(str(tmp_path)), "bitmex", SECOND_US, ("XBTUSD",), later, (file,))).num_rows
