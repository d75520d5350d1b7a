"""How much was traded each minute? Asked of an Arrow answer with polars and with DuckDB: of a machine, or without one.

python examples/arrow_frames.py [URL of a machine]     pip install 'tardis-machine[polars]' duckdb
TM_API_URL: where history comes from without a machine
"""

from __future__ import annotations

import json
import os
import sys
from urllib.parse import quote
from urllib.request import Request, urlopen

import duckdb
import polars as pl
import pyarrow as pa

from tardis_machine import replay_arrow_sync

ASKED = {
    "exchange": "bitmex",
    "symbols": ["XBTUSD"],
    "from": "2020-02-01T00:00",
    "to": "2020-02-01T00:05",
    "dataTypes": ["trade", "book_change"],
}


def from_machine(url: str) -> pa.Table:
    """The answer of a server: one Arrow stream, which anything that knows Arrow reads."""
    request = Request(f"{url}/replay-normalized?options={quote(json.dumps(ASKED))}")  # noqa: S310 - the user's own server
    request.add_header("Accept", "application/vnd.apache.arrow.stream")
    with urlopen(request) as answer:  # noqa: S310
        return pa.ipc.open_stream(answer).read_all()


def without_machine() -> pa.Table:
    """The same in this process."""
    return pa.Table.from_batches(replay_arrow_sync(ASKED, api_url=os.environ.get("TM_API_URL")))


def main(url: str | None = None) -> None:
    rows = from_machine(url) if url else without_machine()

    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    minutes = (
        frame.filter(pl.col("type") == "trade")
        .group_by_dynamic("local_ts", every="1m")
        .agg(pl.len().alias("trades"), pl.col("amount").sum().alias("volume"))
    )
    print("polars:", minutes.with_columns(pl.col("local_ts").dt.strftime("%H:%M")).rows())

    # DuckDB finds `rows` by its name.
    found = duckdb.sql(
        "SELECT strftime(local_ts, '%H:%M'), count(*), sum(amount) FROM rows WHERE type = 'trade' GROUP BY 1 ORDER BY 1"
    )
    print("duckdb:", found.fetchall())
    best = duckdb.sql("SELECT bids[1].price, asks[1].price FROM rows WHERE type = 'book_change' AND is_snapshot LIMIT 1")
    print("first book:", best.fetchall())


if __name__ == "__main__":
    main(*sys.argv[1:])
