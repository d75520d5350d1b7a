"""The books that a client rebuilds from what simulated exchanges send are the market's true ones, whenever it subscribes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import aiohttp
import pytest

from tardis_machine.sample.live import SimulatedExchanges
from tardis_machine.sample.live.families import FAMILIES
from tests.unit.sample.live_client import connected, reader_of

# Four seconds before a minute ends: its end is part of every test.
START_US = 1_790_812_856_000_000
DATED = "BTC-25DEC26"


def _okex(channel: str, symbol: str) -> Any:
    return {"op": "subscribe", "args": [{"channel": channel, "sprdId" if channel.startswith("sprd") else "instId": symbol}]}


def _binance(symbol: str) -> Any:
    return {"method": "SUBSCRIBE", "params": [f"{symbol.lower()}@depth@100ms"], "id": 1}


_PATHS = {"binance-futures": "/public/stream"}
# Exchange, path, channel of the true book, symbol, requests.
BOOKS: list[tuple[str, str, str, str, list[Any]]] = [
    ("bitmex", "/realtime", "orderBookL2", "XBTUSD", [{"op": "subscribe", "args": ["orderBookL2:XBTUSD", "trade:XBTUSD"]}]),
    *(
        (exchange, _PATHS.get(exchange, "/stream"), "depth", symbol, [_binance(symbol)])
        for exchange, symbol in (
            ("binance", "BTCUSDT"),
            ("binance-us", "ETHUSD"),
            ("binance-jersey", "BTCEUR"),
            ("binance-futures", "BTCUSDT"),
            ("binance-delivery", "BTCUSD_PERP"),
        )
    ),
    (
        "coinbase",
        "",
        "level2_batch",
        "BTC-USD",
        [{"type": "subscribe", "product_ids": ["BTC-USD"], "channels": ["level2_batch"]}],
    ),
    (
        "coinbase",
        "",
        "l2update",
        "ETH-USD",
        [
            {
                "type": "subscribe",
                "channels": [{"name": "level2", "product_ids": ["ETH-USD"]}],
                **dict.fromkeys(("signature", "key", "passphrase", "timestamp"), "1"),
            }
        ],
    ),
    (
        "deribit",
        "/ws/api/v2",
        "book.100ms",
        "BTC-PERPETUAL",
        [{"id": 1, "method": "public/subscribe", "params": {"channels": ["book.BTC-PERPETUAL.100ms"]}}],
    ),
    (
        "deribit",
        "/ws/api/v2",
        "book",
        "ETH-PERPETUAL",
        [
            {"id": 1, "method": "public/auth", "params": {"grant_type": "client_credentials"}},
            {"id": 2, "method": "private/subscribe", "params": {"channels": ["book.ETH-PERPETUAL.raw"]}},
        ],
    ),
    ("okex", "/ws/v5/public", "books", "BTC-USDT", [_okex("books", "BTC-USDT")]),
    (
        "okex-swap",
        "/ws/v5/public",
        "books-l2-tbt",
        "BTC-USDT-SWAP",
        [{"op": "login", "args": [{"apiKey": "k"}]}, _okex("books-l2-tbt", "BTC-USDT-SWAP")],
    ),
    ("okex-futures", "/ws/v5/public", "books", "BTC-USDT-261225", [_okex("books", "BTC-USDT-261225")]),
    ("okex-options", "/ws/v5/public", "books", "BTC-USD-261225-30000-C", [_okex("books", "BTC-USD-261225-30000-C")]),
    (
        "okex-spreads",
        "/ws/v5/business",
        "sprd-books5",
        "BTC-USD-SWAP_BTC-USD-261225",
        [_okex("sprd-books5", "BTC-USD-SWAP_BTC-USD-261225")],
    ),
    *(
        (
            "kraken",
            "/v2",
            f"v2/book-{depth}",
            "BTC/USD",
            [{"method": "subscribe", "params": {"channel": "book", "symbol": ["BTC/USD"], "depth": depth}}],
        )
        for depth in (1000, 10)
    ),
    (
        "kraken",
        "",
        "v1/book-25",
        "XBT/USD",
        [{"event": "subscribe", "pair": ["XBT/USD"], "subscription": {"name": "book", "depth": 25}}],
    ),
    ("bybit", "/v5/public/linear", "orderbook.50", "BTCUSDT", [{"op": "subscribe", "args": ["orderbook.50.BTCUSDT"]}]),
    ("bybit", "/v5/public/inverse", "orderbook.200", "BTCUSD", [{"op": "subscribe", "args": ["orderbook.200.BTCUSD"]}]),
    ("bybit-spot", "/v5/public/spot", "orderbook.50", "ETHUSDT", [{"op": "subscribe", "args": ["orderbook.50.ETHUSDT"]}]),
    (
        "bybit-options",
        "/v5/public/option",
        "orderbook.25",
        f"{DATED}-30000-C",
        [{"op": "subscribe", "args": [f"orderbook.25.{DATED}-30000-C"]}],
    ),
]
_REST = {"binance-futures": "/fapi/v1/depth", "binance-delivery": "/dapi/v1/depth"}


def test_every_exchange_has_a_book_here() -> None:
    assert {exchange for exchange, *_ in BOOKS} == set(FAMILIES)


@pytest.mark.parametrize(
    ("exchange", "path", "channel", "symbol", "requests"), BOOKS, ids=[f"{book[0]}-{book[2]}" for book in BOOKS]
)
async def test_books_from_messages_are_the_true_ones(
    exchange: str, path: str, channel: str, symbol: str, requests: list[Any]
) -> None:
    async with SimulatedExchanges(exchanges=[exchange], speed=None, start_us=START_US, activity=0.5) as simulated:
        await simulated.advance(37)
        async with connected(simulated, exchange, path) as client:
            reader = reader_of(exchange, channel)
            for request in requests:
                await client.send(request)
                await client.read()
            if exchange.startswith("binance"):
                await simulated.advance(730)
                messages = await client.read_all()
                snapshot = await _fetch_depth(simulated, exchange, symbol)
                for message in messages[1:]:
                    reader.take(message)
                reader.take({"stream": f"{symbol.lower()}@depthSnapshot", "data": snapshot})
            for ms in (0, 950, 1, 2_500, 777, 4_000):
                await simulated.advance(ms)
                for message in await client.read_all():
                    reader.take(message)
                if reader.bids:
                    name = next(iter(reader.bids))
                    truth = simulated.true_book(exchange, symbol, channel)
                    assert (reader.bids[name], reader.asks[name]) == truth
            assert reader.bids
            assert client.received > 2
            assert all(truth)
            assert list(truth[0]) == sorted(truth[0], reverse=True)


async def _fetch_depth(simulated: SimulatedExchanges, exchange: str, symbol: str) -> Any:
    url = simulated.urls[f"{exchange}-rest"] + _REST.get(exchange, "/api/v3/depth")
    async with aiohttp.ClientSession() as session, session.get(f"{url}?symbol={symbol}&limit=1000") as answer:
        assert answer.status == 200
        assert int(answer.headers["X-MBX-USED-WEIGHT-1M"]) > 0
        return await answer.json()


def changes_in_parts(simulated: SimulatedExchanges, minute_index: int) -> list[int]:
    """When a change of BitMEX's book begins that is more than one message."""
    venue = simulated.venue("bitmex")
    arrivals = venue.broadcast.rows(venue.topics("orderBookL2", "XBTUSD")[0], minute_index).arrivals
    return [arrival for arrival, following in pairwise(arrivals) if following - arrival <= 2]


async def test_no_change_of_a_book_is_sent_by_halves() -> None:
    """A change of BitMEX's book may be several messages: no snapshot and no pause falls between two of them."""
    index = START_US // 60_000_000
    async with SimulatedExchanges(exchanges=["bitmex"], speed=None, start_us=START_US) as simulated:
        between = [arrival for arrival in changes_in_parts(simulated, index) if arrival > START_US * 10]
        assert len(between) > 5
        async with connected(simulated, "bitmex", "/realtime") as client:
            await client.read()
            for arrival in [*between, *changes_in_parts(simulated, index + 1)[:5]]:
                if arrival < simulated.clock.position:
                    # It came while the one before it was looked at, and is in the books that were compared.
                    continue
                await simulated.advance((arrival - simulated.clock.position) / 10_000)
                assert simulated.clock.position == arrival
                reader = reader_of("bitmex", "")
                await client.ask({"op": "subscribe", "args": ["orderBookL2:XBTUSD"]})
                reader.take(await client.read())
                for ms in (0, 0.5, 3):
                    await simulated.advance(ms)
                    for message in await client.read_all():
                        reader.take(message)
                    assert (reader.bids["XBTUSD"], reader.asks["XBTUSD"]) == simulated.true_book("bitmex", "XBTUSD")
                await client.ask({"op": "unsubscribe", "args": ["orderBookL2:XBTUSD"]})
            # Who reads on while the market stands in the middle of a change has it whole, too.
            reader = reader_of("bitmex", "")
            await client.ask({"op": "subscribe", "args": ["orderBookL2:XBTUSD"]})
            reader.take(await client.read())
            for arrival in changes_in_parts(simulated, index + 1)[6:12]:
                await simulated.advance((arrival - simulated.clock.position) / 10_000)
                for message in await client.read_all():
                    reader.take(message)
                assert (reader.bids["XBTUSD"], reader.asks["XBTUSD"]) == simulated.true_book("bitmex", "XBTUSD")


async def test_many_snapshots_over_rest_all_join_the_updates() -> None:
    for exchange, path in (("binance", "/stream"), ("binance-futures", "/public/stream")):
        simulated = SimulatedExchanges(exchanges=[exchange], speed=None, start_us=START_US)
        async with simulated, connected(simulated, exchange, f"{path}?streams=btcusdt@depth@100ms") as client:
            messages: list[Any] = []
            readers = []
            for step in range(12):
                await simulated.advance(37 + step)
                messages += await client.read_all()
                reader = reader_of(exchange, "depth")
                for message in messages:
                    reader.take(message)
                snapshot = await _fetch_depth(simulated, exchange, "BTCUSDT")
                reader.take({"stream": "btcusdt@depthSnapshot", "data": snapshot})
                readers.append((reader, len(messages)))
            await simulated.advance(500)
            messages += await client.read_all()
            truth = simulated.true_book(exchange, "BTCUSDT")
            for reader, seen in readers:
                for message in messages[seen:]:
                    reader.take(message)
                assert (reader.bids["btcusdt"], reader.asks["btcusdt"]) == truth


async def test_one_seed_and_start_always_send_the_same_bytes() -> None:
    sent = []
    for seed in (5, 5, 6):
        simulated = SimulatedExchanges(seed, ["bitmex"], speed=None, start_us=START_US, activity=0.5)
        path = "/realtime?subscribe=trade:XBTUSD,orderBookL2:XBTUSD"
        async with simulated, connected(simulated, "bitmex", path) as client:
            await simulated.advance(5_000)
            await client.read_all()
            sent.append([each.message for each in simulated.sent])
    assert sent[0] == sent[1] != sent[2]
    assert len(sent[0]) > 100
    assert json.loads(sent[0][-1])["table"] in ("trade", "orderBookL2")
