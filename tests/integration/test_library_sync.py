"""The library for who has no event loop, or one that is busy; data frames; raw live data."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tardis_machine as machine
from tardis_machine import OrderBook, to_pandas, to_polars, to_table
from tardis_machine.errors import OptionsError
from tardis_machine.messages import BookChange, Trade
from tardis_machine.realtime.backoff import Timings
from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.scripted_exchange import scripted_exchange
from tests.integration.test_stream_server import trade

SPAN = {"exchange": "bitmex", "from_": "2020-02-01", "to": "2020-02-01T00:01"}
NORMALIZED = SPAN | {"symbols": ["XBTUSD"], "data_types": ["trade", "book_change"]}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[dict[str, Any]]:
    with SampleHistoryApi().serve_in_thread() as api:
        yield {"api_url": api.url, "cache_dir": tmp_path}


async def test_sync_iterators_have_what_the_others_have(source: dict[str, Any]) -> None:
    """Within a loop that runs, as in a notebook."""
    loops = asyncio.get_running_loop()
    messages = await loops.run_in_executor(None, lambda: list(machine.replay_normalized_sync(**NORMALIZED, **source)))
    assert messages == [m async for batch in machine.replay_normalized(**NORMALIZED, **source) for m in batch]
    raw = SPAN | {"filters": [{"channel": "trade", "symbols": ["XBTUSD"]}]}
    assert list(machine.replay_sync(**raw, **source)) == [m async for batch in machine.replay(**raw, **source) for m in batch]
    assert to_table(messages).equals(to_table(machine.replay_arrow_sync(**NORMALIZED, **source)))
    at = {"exchange": "bitmex", "symbol": "XBTUSD", "at": "2020-02-01T00:00:30", "depth": 5}
    assert machine.book_at_sync(**at, **source) == await machine.book_at(**at, **source)


def test_a_thread_ends_with_its_iterator(source: dict[str, Any]) -> None:
    before = threading.active_count()
    messages = machine.replay_normalized_sync(**NORMALIZED, **source)
    assert isinstance(next(messages), BookChange | Trade)
    assert threading.active_count() > before
    messages.close()  # type: ignore[attr-defined]
    with pytest.raises(OptionsError, match="exchange"):
        next(machine.replay_normalized_sync(**(NORMALIZED | {"exchange": "nowhere"}), **source))
    assert not [each for each in threading.enumerate() if each.name == "tardis-machine"]


def test_messages_become_frames(source: dict[str, Any]) -> None:
    messages = list(machine.replay_normalized_sync(**NORMALIZED, **source))
    trades = [message for message in messages if isinstance(message, Trade)]
    for frame in (to_polars(messages), to_polars(machine.replay_arrow_sync(**NORMALIZED, **source))):
        assert frame.height == len(messages)
        assert frame.filter(pl.col("type") == "trade")["amount"].sum() == sum(trade.amount for trade in trades)
    pandas = to_pandas(trades)
    assert list(pandas["trade_id"]) == [trade.id for trade in trades]
    assert str(pandas["local_ts"].dtype) == "datetime64[us, UTC]"
    assert to_polars([]).height == 0


def test_the_book_is_public(source: dict[str, Any]) -> None:
    book = OrderBook()
    for message in machine.replay_normalized_sync(**NORMALIZED, **source):
        if isinstance(message, BookChange):
            book.update(message)
    at = machine.book_at_sync(exchange="bitmex", symbol="XBTUSD", at="2020-02-01T00:00:59.999999", **source)
    assert (list(book.bids()), list(book.asks())) == (list(at.bids), list(at.asks))
    assert book.best_bid == at.bids[0]


async def test_raw_live_messages_are_as_the_exchange_sent_them() -> None:
    timings = Timings(first_s=0.01, most_s=0.02, close_timeout_s=0.2, connect_timeout_s=2.0)
    async with scripted_exchange() as exchange:
        batches = machine.stream(
            exchange="bitmex",
            filters=[{"channel": "trade", "symbols": ["XBTUSD"]}],
            with_disconnects=True,
            timeout_interval_ms=0,
            exchange_urls={"bitmex": exchange.url},
            _timings=timings,
        )
        got: list[Any] = []
        async with asyncio.timeout(15), aclosing(batches):
            reading = asyncio.create_task(_read(batches, got, 4))
            peer = await exchange.client()
            assert await peer.hear() == {"op": "subscribe", "args": ["trade:XBTUSD"]}
            await peer.send(trade(1), trade(2))
            await asyncio.sleep(0.2)
            peer.cut()
            await (await exchange.client()).send(trade(3))
            await reading
    assert [None if item is None else item[1] for item in got] == [trade(1), trade(2), None, trade(3)]
    assert all(item is None or len(item[0]) == 28 for item in got)


async def _read(batches: Any, got: list[Any], count: int) -> None:
    async for batch in batches:
        got += batch
        if len(got) >= count:
            return


@pytest.mark.parametrize(
    ("options", "field"),
    [({"exchange": "ftx"}, "exchange"), ({"filters": []}, "filters"), ({"filters": [{"channel": "x"}]}, "filters[0].channel")],
)
def test_a_mistake_is_named(options: dict[str, Any], field: str) -> None:
    asked = {"exchange": "bitmex", "filters": [{"channel": "trade"}]} | options
    with pytest.raises(OptionsError) as caught:
        next(machine.stream_sync(**asked))
    assert caught.value.field == field
