"""History, then live, in one request: nothing is missing and nothing is told twice, by ids of trades and numbers of the book's changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

from tardis_machine import replay_normalized
from tardis_machine.computed.order_book import OrderBook
from tardis_machine.messages import BookChange, Message, Trade, parse_timestamp_us, to_timestamp
from tardis_machine.sample.live.misbehaviour import Reset
from tests.integration.seam_market import DAY_US, MINUTE_US, SeamMarket, seam_market

SYMBOLS = {"bitmex": "XBTUSD", "binance-futures": "BTCUSDT", "deribit": "BTC-PERPETUAL"}
DATA_TYPES = ["trade", "book_change"]


def request(exchange: str, **options: Any) -> dict[str, Any]:
    """From when there is history, with the shortest wait for the last of it."""
    asked = {"exchange": exchange, "symbols": [SYMBOLS[exchange]], "data_types": DATA_TYPES, "from_": to_timestamp(DAY_US)}
    return asked | {"wait_when_data_not_yet_available": 6} | options


def is_heard(message: Message, market: SeamMarket) -> bool:
    """Whether it came live: what is heard has our clock's time, which is far from the market's."""
    return abs(parse_timestamp_us(message.local_timestamp) - market.now_us) > 60 * MINUTE_US


async def read_past_the_seam(
    market: SeamMarket, exchange: str, then: Callable[[], None] = lambda: None, **options: Any
) -> list[Message]:
    """All messages until the market is half a minute past where live data began to be told; `then` is called after a while of history."""
    messages: list[Message] = []
    end_us = None
    batches = replay_normalized(**request(exchange, **options), **market.options)
    async with asyncio.timeout(60), aclosing(batches):
        async for batch in batches:
            if not messages:
                asyncio.get_running_loop().call_later(1.0, then)
            messages += batch
            if end_us is None and is_heard(batch[-1], market):
                end_us = market.now_us + MINUTE_US // 2
            if end_us is not None and market.now_us > end_us:
                return messages
    raise AssertionError("the replay ended")


def levels_of(change: BookChange) -> tuple[Any, ...]:
    sides = (tuple((level.price, level.amount) for level in side) for side in (change.bids, change.asks))
    return change.timestamp, *sides


def book_of(changes: list[BookChange]) -> tuple[Any, ...]:
    """The levels of whoever applied them."""
    book = OrderBook()
    for change in changes:
        book.update(change)
    return tuple([(level.price, level.amount) for level in side] for side in (book.bids(), book.asks()))


def check(market: SeamMarket, exchange: str, messages: list[Message]) -> None:
    """Compares with what history says once all of it is past."""
    recorded = list(market.recorded(exchange, SYMBOLS[exchange], DATA_TYPES))
    known = [message for _, each in recorded for message in each]
    ids = [message.id for message in messages if isinstance(message, Trade)]
    assert ids == [message.id for message in known if isinstance(message, Trade)][: len(ids)]
    changes = [message for message in messages if isinstance(message, BookChange)]
    # A book that goes on live is told whole once; history's own first is one too.
    assert [change.is_snapshot for change in changes].count(True) == 2
    known_changes = [message for message in known if isinstance(message, BookChange)]
    if exchange != "deribit":  # which tells some changes together, on each connection others
        told = [levels_of(change) for change in changes if not change.is_snapshot]
        assert told == [levels_of(change) for change in known_changes if not change.is_snapshot][: len(told)]
    last = changes[-1].timestamp or ""
    assert book_of(changes) == book_of([change for change in known_changes if (change.timestamp or "") <= last])
    assert is_heard(changes[-1], market)
    assert not is_heard(changes[0], market)


def numbers_of(raw: dict[str, Any]) -> tuple[int, int] | None:
    """The number that a change of Binance's book follows, and its own."""
    data = raw["data"]
    return (data["pu"], data["u"]) if "pu" in data else None


async def test_nothing_is_missing_and_nothing_is_told_twice(tmp_path: Path) -> None:
    async with seam_market(tmp_path, *SYMBOLS) as market:
        told = await asyncio.gather(*(read_past_the_seam(market, exchange) for exchange in SYMBOLS))
        for exchange, messages in zip(SYMBOLS, told, strict=True):
            check(market, exchange, messages)
        numbers = {
            levels_of(message): found
            for raw, each in market.recorded("binance-futures", "BTCUSDT", DATA_TYPES)
            for message in each
            if isinstance(message, BookChange) and (found := numbers_of(raw))
        }
        changes = [message for message in told[1] if isinstance(message, BookChange) and not message.is_snapshot]
        assert all(before[1] == after[0] for before, after in pairwise(numbers[levels_of(change)] for change in changes))


async def test_a_connection_that_is_lost_before_the_seam_leaves_no_hole(tmp_path: Path) -> None:
    async with seam_market(tmp_path, "binance-futures") as market:
        lost = []
        messages = await read_past_the_seam(
            market,
            "binance-futures",
            lambda: lost.append(market.exchanges.misbehave("binance-futures", Reset())),
            with_disconnect_messages=True,
        )
        assert lost == [1]
        assert {message.__class__.__name__ for message in messages} == {"Trade", "BookChange"}
        check(market, "binance-futures", messages)
