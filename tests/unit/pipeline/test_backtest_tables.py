"""Rows of datasets as NautilusTrader's tables and hftbacktest's events; `make interop` has both read them."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from tardis_machine.errors import OptionsError, TardisMachineError
from tardis_machine.pipeline.csv_rows import dataset_named
from tardis_machine.pipeline.dataset_tables import to_table, with_decimals
from tardis_machine.pipeline.hftbacktest_events import to_events
from tardis_machine.pipeline.nautilus_tables import Precision, catalog_path, precision_of, to_nautilus

TRADES = b"""bitmex,XBTUSD,1000000,1000100,a,buy,9350.5,100
bitmex,XBTUSD,1000050,1000300,,sell,9350.25,0.5
bitmex,XBTUSD,1000200,1000250,c,unknown,9351,3
"""
LEVELS = b"""bitmex,XBTUSD,1000000,1000010,true,ask,11,1
bitmex,XBTUSD,1000000,1000010,true,bid,10,2
bitmex,XBTUSD,1000000,1000010,true,ask,12,3
bitmex,XBTUSD,1000100,1000110,false,bid,10,0
bitmex,XBTUSD,1000100,1000110,false,ask,11,5
bitmex,XBTUSD,1000200,1000220,true,bid,9,1
bitmex,XBTUSD,1000200,1000230,true,bid,8,1
"""
trades = to_table(dataset_named("trades"), [TRADES])
# In parts, as a replay brings them.
lines = LEVELS.splitlines(keepends=True)
levels = to_table(dataset_named("incremental_book_L2"), [b"".join(lines[:2]), b"", b"".join(lines[2:])])


def raw(number: str) -> bytes:
    return int(Decimal(number) * 10**16).to_bytes(16, "little", signed=True)


def test_trades_of_the_catalog() -> None:
    assert precision_of(with_decimals(trades)) == Precision(2, 1)
    table = to_nautilus("trades", with_decimals(trades), "XBTUSD.BITMEX", Precision(2, 1))
    assert table.schema.metadata == {b"instrument_id": b"XBTUSD.BITMEX", b"price_precision": b"2", b"size_precision": b"1"}
    assert not any(field.nullable for field in table.schema)
    assert table.to_pydict() == {
        "price": [raw("9350.5"), raw("9350.25"), raw("9351")],
        "size": [raw("100"), raw("0.5"), raw("3")],
        "aggressor_side": [1, 2, 0],
        "trade_id": ["a", "1000300-1", "c"],
        "ts_event": [1_000_000_000, 1_000_050_000, 1_000_200_000],
        "ts_init": [1_000_100_000, 1_000_300_000, 1_000_250_000],
    }
    path = catalog_path("trades", "XBT/USD.BITMEX", table)
    assert str(path) == "data/trade_tick/XBTUSD.BITMEX/1970-01-01T00-00-01-000100000Z_1970-01-01T00-00-01-000250000Z.parquet"


def test_a_precision_that_is_too_small_is_refused_by_name() -> None:
    with pytest.raises(OptionsError, match=r"--price-precision: expected 2 or more, which X\.Y has, got 1"):
        to_nautilus("trades", with_decimals(trades), "X.Y", Precision(1, 1))


def test_a_snapshot_clears_the_catalogs_book_and_each_message_ends() -> None:
    table = to_nautilus("incremental_book_L2", with_decimals(levels), "XBTUSD.BITMEX", Precision(0, 0)).to_pydict()
    assert table["action"] == [4, 1, 1, 1, 3, 2, 4, 1, 4, 1]
    assert table["side"] == [0, 2, 1, 2, 1, 2, 0, 1, 0, 1]
    assert table["flags"] == [32, 32, 32, 160, 0, 128, 32, 160, 32, 160]
    assert table["price"][:2] == [raw("0"), raw("11")]
    assert table["ts_init"][6:] == [1_000_220_000] * 2 + [1_000_230_000] * 2


def test_numbers_of_more_places_than_a_catalog_has() -> None:
    """As JavaScript prints sums of doubles; hftbacktest, which has doubles, gets the very same."""
    row = "bitflyer,X,1000,2000,a,buy,{},{}\n".format
    long = to_table(
        dataset_named("trades"), [row("100.5", "0.30000000000000004").encode(), row("1e-7", "2.00000000000000006").encode()]
    )
    decimals = with_decimals(long)
    assert precision_of(decimals) == Precision(7, 16)
    table = to_nautilus("trades", decimals, "X.Y", Precision(7, 16)).to_pydict()
    assert table["size"] == [raw("0.3"), raw("2.0000000000000001")]
    assert table["price"] == [raw("100.5"), raw("0.0000001")]
    events = to_events(long, to_table(dataset_named("incremental_book_L2"), []))
    assert events["qty"].tolist() == [0.30000000000000004, 2.0]
    with pytest.raises(TardisMachineError, match="amount: a number has more digits than a catalog can hold"):
        with_decimals(to_table(dataset_named("trades"), [row("1", "9" * 23).encode()]))


def test_events_are_in_both_orders_and_what_was_overtaken_is_there_twice() -> None:
    events = to_events(trades, to_table(dataset_named("incremental_book_L2"), []))
    exchange, local, kind = 1 << 31, 1 << 30, 0xFF
    assert [(int(row["ev"]) & kind, bool(row["ev"] & exchange), bool(row["ev"] & local), float(row["px"])) for row in events] == [
        (2, True, True, 9350.5),
        (2, True, False, 9350.25),
        (2, True, True, 9351.0),
        (2, False, True, 9350.25),
    ]
    for flag, name in ((exchange, "exch_ts"), (local, "local_ts")):
        times = events[name][(events["ev"] & flag) != 0]
        assert (np.diff(times) >= 0).all()
        assert len(times) == 3


def test_a_snapshot_clears_both_sides_first_and_a_trade_precedes_its_change() -> None:
    buy, sell = 1 << 29, 1 << 28
    events = to_events(trades, levels)
    books = events[(events["ev"] & 0xFF) != 2]
    kinds = [(int(row["ev"]) & 0xFF, "bid" if row["ev"] & buy else "ask", float(row["px"])) for row in books]
    assert [(kind, side) for kind, side, _ in kinds] == [
        (3, "bid"), (4, "bid"), (3, "ask"), (4, "ask"), (4, "ask"), (1, "bid"), (1, "ask"),
        (3, "bid"), (4, "bid"), (3, "ask"), (3, "bid"), (4, "bid"), (3, "ask"),
    ]  # fmt: skip
    assert all(np.isnan(price) == (kind == 3) for kind, _, price in kinds)
    assert not (events["ev"] & buy & (events["ev"] & sell)).any()
    same_time = to_events(trades, to_table(dataset_named("incremental_book_L2"), [b"bitmex,X,1000000,1000100,false,bid,10,0\n"]))
    assert [int(row["ev"]) & 0xFF for row in same_time[:2]] == [2, 1]


def test_a_clock_behind_that_of_the_exchange_makes_nothing_arrive_before_it_is_made() -> None:
    early = to_table(dataset_named("trades"), [b"bitmex,X,1000000,999990,a,buy,1,1\nbitmex,X,1000010,1000020,b,buy,1,1\n"])
    events = to_events(early, to_table(dataset_named("incremental_book_L2"), []))
    assert events["local_ts"].tolist() == [1_000_000_000, 1_000_030_000]
