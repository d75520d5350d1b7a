"""What simulated exchanges answer: subscriptions and refusals, pings and time-outs, compression, REST."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tardis_machine.sample.live import SimulatedExchanges
from tests.unit.sample.live_client import Client, connected, until

START_US = 1_790_812_830_000_000


def stepped(*exchanges: str) -> SimulatedExchanges:
    return SimulatedExchanges(exchanges=exchanges, speed=None, start_us=START_US)


async def test_bitmex_welcomes_confirms_and_starts_tables_with_a_partial() -> None:
    simulated = stepped("bitmex")
    async with simulated, connected(simulated, "bitmex", "/realtime") as client:
        welcome = await client.read()
        assert welcome["info"].startswith("Welcome")
        assert welcome["timestamp"] == "2026-10-01T00:00:30.000Z"
        assert await client.ask("ping") == "pong"
        request = {"op": "subscribe", "args": ["instrument:XBTUSD", "trade:XBTUSD"]}
        assert await client.ask(request) == {"success": True, "subscribe": "instrument:XBTUSD", "request": request}
        partial = await client.read()
        assert (partial["table"], partial["action"], partial["filter"]) == ("instrument", "partial", {"symbol": "XBTUSD"})
        assert partial["data"][0]["markPrice"] > 0
        assert (await client.read())["subscribe"] == "trade:XBTUSD"
        assert (await client.read())["data"] == []
        await simulated.advance(2_000)
        tables = {(message["table"], message["action"]) for message in await client.read_all()}
        assert tables == {("instrument", "update"), ("trade", "insert")}
        for argument, problem in (("nothing:XBTUSD", "Unknown table: nothing"), ("trade:NOTHING", "Unknown or expired symbol")):
            answer = await client.ask({"op": "subscribe", "args": [argument]})
            assert answer["status"] == 400
            assert answer["error"].startswith(problem)
        # All symbols of a table at once.
        await client.ask({"op": "subscribe", "args": ["liquidation"]})
        assert [(await client.read())["filter"]["symbol"] for _ in range(3)] == simulated.symbols("bitmex")
        assert (await client.ask({"op": "unsubscribe", "args": ["trade:XBTUSD", "instrument:XBTUSD"]}))["success"]
        await client.read()
        await simulated.advance(2_000)
        assert not [message for message in await client.read_all() if message["table"] != "liquidation"]


async def test_binance_answers_by_id_and_names_streams_as_they_were_asked_for() -> None:
    simulated = stepped("binance", "binance-futures")
    async with simulated:
        async with connected(simulated, "binance-futures", "/market/stream?streams=btcusdt@markPrice") as client:
            # The book is at the other address.
            streams = ["btcusdt@ticker", "btcusdt@depth@0ms", "btcusdt@nothing", "NOTHING@ticker"]
            assert await client.ask({"method": "SUBSCRIBE", "params": streams, "id": 7}) == {"result": None, "id": 7}
            await simulated.advance(1_500)
            messages = await client.read_all()
            assert {message["stream"] for message in messages} == {"btcusdt@ticker", "btcusdt@markPrice"}
            listed = await client.ask({"method": "LIST_SUBSCRIPTIONS", "id": 8})
            assert listed == {"result": ["btcusdt@markPrice", *streams], "id": 8}
            await client.ask({"method": "UNSUBSCRIBE", "params": ["btcusdt@ticker"], "id": "x"})
            await simulated.advance(1_500)
            assert {message["stream"] for message in await client.read_all()} == {"btcusdt@markPrice"}
            assert (await client.ask({"method": "NOTHING", "id": 9}))["error"]["code"] == 2
            assert (await client.ask("{"))["error"]["code"] == 3
        async with connected(simulated, "binance-futures", "/public/stream?streams=btcusdt@depth@0ms/btcusdt@ticker") as client:
            await simulated.advance(1_500)
            assert {message["stream"] for message in await client.read_all()} == {"btcusdt@depth@0ms"}
        for exchange, path in (("binance-futures", "/stream"), ("binance", "/public/stream")):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="404"):
                async with connected(simulated, exchange, path):
                    pass
        async with connected(simulated, "binance", "/ws/btcusdt@trade?timeUnit=MICROSECOND") as client:
            await simulated.advance(1_000)
            trade = (await client.read_all())[0]
            assert (trade["e"], trade["s"]) == ("trade", "BTCUSDT")
            assert abs(trade["T"] - simulated.clock.now_us) < 2_000_000


async def test_binance_sends_away_who_does_not_answer_pings_or_asks_too_much() -> None:
    simulated = stepped("binance")
    async with simulated:
        async with connected(simulated, "binance", "/stream", autoping=False) as client:
            await simulated.advance(20_000)
            ping = await client.socket.receive(timeout=5)
            assert ping.type is aiohttp.WSMsgType.PING
            await client.socket.pong(ping.data)
            await until(lambda: simulated.open_connections("binance")[0].dialogue.heard_s == 20)
            await simulated.advance(59_000)
            assert not client.socket.closed
            await simulated.advance(2_000)
            while (message := await client.socket.receive(timeout=5)).type is aiohttp.WSMsgType.PING:
                pass
            assert message.type is aiohttp.WSMsgType.CLOSE
            assert client.socket.close_code == 1008
        async with connected(simulated, "binance", "/stream") as client:
            for number in range(6):
                await client.send({"method": "LIST_SUBSCRIPTIONS", "id": number})
            await client.closing()
            assert (client.received, client.socket.close_code) == (5, 1008)


async def test_binance_rest_refuses_what_it_does_not_know_and_counts_weights() -> None:
    simulated = stepped("binance", "binance-futures")
    async with simulated, aiohttp.ClientSession() as session:

        async def get(name: str, path: str) -> tuple[int, Any, Any]:
            async with session.get(simulated.urls[f"{name}-rest"] + path) as answer:
                return answer.status, await answer.json(), answer.headers

        status, depth, _ = await get("binance", "/api/v1/depth?symbol=BTCUSDT&limit=5")
        assert (status, len(depth["bids"]), len(depth["asks"])) == (200, 5, 5)
        status, interest, _ = await get("binance-futures", "/fapi/v1/openInterest?symbol=BTCUSDT")
        assert (status, interest["symbol"]) == (200, "BTCUSDT")
        assert float(interest["openInterest"]) > 0
        assert (await get("binance", "/api/v3/openInterest?symbol=BTCUSDT"))[0] == 404
        for query, code in (
            ("", -1102),
            ("?symbol=NOTHING", -1121),
            ("?symbol=btcusdt", -1121),
            ("?symbol=BTCUSDT&limit=x", -1130),
        ):
            status, problem, _ = await get("binance", f"/api/v3/depth{query}")
            assert (status, problem["code"]) == (400, code)
        _, info, headers = await get("binance-futures", "/fapi/v1/exchangeInfo")
        limit, used = info["rateLimits"][0]["limit"], int(headers["X-MBX-USED-WEIGHT-1M"])
        answers = [
            await get("binance-futures", "/fapi/v1/depth?symbol=BTCUSDT&limit=1000") for _ in range((limit - used) // 50 + 1)
        ]
        assert [status for status, _, _ in answers[-2:]] == [200, 429]
        assert answers[-1][2]["Retry-After"] == "60"
        await simulated.advance(60_000)
        assert (await get("binance-futures", "/fapi/v1/depth?symbol=BTCUSDT"))[0] == 200


async def test_coinbase_wants_a_subscription_at_once_and_a_signature_for_the_best() -> None:
    simulated = stepped("coinbase")
    async with simulated:
        async with connected(simulated, "coinbase", "") as client:
            await simulated.advance(5_100)
            await client.closing()
            assert client.socket.close_code == 1008
        async with connected(simulated, "coinbase", "/") as client:
            for channels, reason in (
                (["level2"], "level2, level3, and full channels now require authentication"),
                ([{"name": "matches", "product_ids": ["NO-NO"]}], "NO-NO is not a valid product"),
                (["nothing"], "nothing is not a valid channel"),
                (["matches"], "You need to specify at least one product ID for channel matches"),
            ):
                answer = await client.ask({"type": "subscribe", "channels": channels})
                assert answer == {"type": "error", "message": "Failed to subscribe", "reason": reason}
            request = {"type": "subscribe", "product_ids": ["BTC-USD"], "channels": ["matches", "heartbeat", "ticker"]}
            answer = await client.ask(request)
            assert [channel["name"] for channel in answer["channels"]] == ["matches", "heartbeat", "ticker"]
            last = await client.read()
            assert last["type"] == "last_match"
            await simulated.advance(1_500)
            messages = await client.read_all()
            assert {message["type"] for message in messages} == {"match", "heartbeat", "ticker"}
            first = next(message for message in messages if message["type"] == "match")
            assert first["trade_id"] == last["trade_id"] + 1


async def test_deribit_beats_and_asks_and_hangs_up_on_silence() -> None:
    simulated = stepped("deribit")
    async with simulated, connected(simulated, "deribit", "/ws/api/v2") as client:

        async def call(method: str, **parameters: Any) -> Any:
            return await client.ask({"jsonrpc": "2.0", "id": 5, "method": method, "params": parameters})

        assert (await call("public/set_heartbeat", interval=5))["error"]["code"] == -32602
        assert (await call("public/nothing"))["error"]["code"] == -32601
        assert (await call("public/subscribe", channels=["book.BTC-PERPETUAL.raw"]))["error"]["code"] == 13778
        assert (await call("private/subscribe", channels=["quote.BTC-PERPETUAL"]))["error"]["code"] == 13009
        for wrong in ("trades.NOTHING.100ms", "nothing.BTC-PERPETUAL.100ms", "trades.BTC-PERPETUAL"):
            assert (await call("public/subscribe", channels=[wrong]))["error"]["code"] == -32602
        channels = ["trades.BTC-PERPETUAL.100ms", "ticker.BTC-PERPETUAL.100ms", "deribit_price_index.btc_usd"]
        answer = await call("public/subscribe", channels=channels)
        assert (answer["id"], answer["result"]) == (5, channels)
        assert [(await client.read())["params"]["channel"] for _ in range(2)] == channels[1:]
        await simulated.advance(1_500)
        assert {message["params"]["channel"] for message in await client.read_all()} == set(channels)
        assert (await call("public/unsubscribe", channels=[*channels, "quote.X"]))["result"] == channels
        assert (await call("public/set_heartbeat", interval=10))["result"] == "ok"
        await simulated.advance(10_000)
        assert [message["params"]["type"] for message in await client.read_all()] == ["heartbeat", "test_request"]
        assert "version" in (await call("public/test"))["result"]
        await simulated.advance(20_100)
        await client.closing()
        assert client.socket.close_code == 1000


async def test_okex_knows_which_address_a_channel_has_and_pongs_in_plain_text() -> None:
    simulated = stepped("okex-swap", "okex-options", "okex-spreads")
    async with simulated:
        async with connected(simulated, "okex-swap", "/ws/v5/public") as client:

            async def subscribe(**argument: str) -> Any:
                return await client.ask({"op": "subscribe", "args": [argument]})

            assert await client.ask("ping") == "pong"
            assert (await subscribe(channel="trades-all", instId="BTC-USDT-SWAP"))["code"] == "60018"
            assert "doesn't exist" in (await subscribe(channel="trades", instId="NOTHING"))["msg"]
            assert (await subscribe(channel="books-l2-tbt", instId="BTC-USDT-SWAP"))["code"] == "60011"
            assert (await client.ask({"op": "nothing"}))["code"] == "60012"
            argument = {"channel": "funding-rate", "instId": "BTC-USDT-SWAP"}
            answer = await subscribe(**argument)
            assert (answer["event"], answer["arg"]) == ("subscribe", argument)
            assert (await client.read())["data"][0]["fundingRate"]
            await subscribe(channel="liquidation-orders", instType="SWAP")
            await subscribe(channel="index-tickers", instId="BTC-USDT")
            assert (await client.read())["data"][0]["instId"] == "BTC-USDT"
            subscribed = [argument, {"channel": "index-tickers", "instId": "BTC-USDT"}]
            for each in [*subscribed, {"channel": "liquidation-orders", "instType": "SWAP"}]:
                assert (await client.ask({"op": "unsubscribe", "args": [each]}))["event"] == "unsubscribe"
            await simulated.advance(31_000)
            await client.closing()
            assert client.socket.close_code == 4004
        async with connected(simulated, "okex-options", "/ws/v5/public") as client:
            await client.ask({"op": "subscribe", "args": [{"channel": "opt-summary", "instFamily": "BTC-USD"}]})
            assert (await client.read())["data"][0]["uly"] == "BTC-USD"
        async with connected(simulated, "okex-spreads", "/ws/v5/business") as client:
            symbol = simulated.symbols("okex-spreads")[0]
            arguments = [{"channel": channel, "sprdId": symbol} for channel in ("sprd-public-trades", "sprd-bbo-tbt")]
            await client.ask({"op": "subscribe", "args": arguments})
            await client.read()
            assert (await client.read())["data"][0]["bids"]


async def test_kraken_speaks_both_versions_and_beats_when_it_has_nothing_to_say() -> None:
    simulated = stepped("kraken")
    async with simulated:
        async with connected(simulated, "kraken", "/v2") as client:
            assert (await client.read())["channel"] == "status"
            pong = await client.ask({"method": "ping", "req_id": 3})
            assert (pong["method"], pong["req_id"]) == ("pong", 3)

            async def subscribe(**parameters: Any) -> Any:
                return await client.ask({"method": "subscribe", "params": parameters})

            assert "not supported" in (await subscribe(channel="trade", symbol=["NO/NO"]))["error"]
            assert "Channel" in (await subscribe(channel="nothing", symbol=["BTC/USD"]))["error"]
            assert "Depth" in (await subscribe(channel="book", symbol=["BTC/USD"], depth=7))["error"]
            assert (await subscribe(channel="trade", symbol=["BTC/USD"]))["success"]
            assert (await client.read())["type"] == "snapshot"
            assert (await subscribe(channel="ticker", symbol=["ETH/USD"], event_trigger="bbo"))["result"]["symbol"] == "ETH/USD"
            await simulated.advance(1_000)
            kinds = {(message["channel"], message["type"]) for message in await client.read_all()}
            assert kinds == {("trade", "update"), ("ticker", "update")}
        async with connected(simulated, "kraken", "") as client:
            assert (await client.read())["event"] == "systemStatus"
            assert await client.ask({"event": "ping", "reqid": 1}) == {"event": "pong", "reqid": 1}
            request = {"event": "subscribe", "pair": ["XBT/USD", "NO/NO"], "subscription": {"name": "spread"}}
            assert (await client.ask(request))["status"] == "subscribed"
            assert (await client.read())[-2:] == ["spread", "XBT/USD"]
            refused = await client.read()
            assert (refused["status"], refused["errorMessage"]) == ("error", "Currency pair not supported NO/NO")
        quiet = SimulatedExchanges(exchanges=["kraken"], speed=None, start_us=START_US, activity=0.001)
        async with quiet, connected(quiet, "kraken", "/v2") as client:
            await client.read()
            await client.ask({"method": "subscribe", "params": {"channel": "trade", "symbol": ["BTC/USD"]}})
            await quiet.advance(3_500)
            assert [message["channel"] for message in await client.read_all()].count("heartbeat") >= 2


async def test_bybit_has_a_path_for_each_market_and_pongs_in_json() -> None:
    simulated = stepped("bybit", "bybit-spot", "bybit-options")
    async with simulated:
        async with connected(simulated, "bybit", "/v5/public/linear") as client:
            pong = await client.ask({"op": "ping", "req_id": "1"})
            assert (pong["ret_msg"], pong["op"], pong["req_id"]) == ("pong", "ping", "1")
            for topic, problem in (
                ("nothing.BTCUSDT", "error:handler not found,topic:nothing.BTCUSDT"),
                ("publicTrade.NOTHING", "Invalid symbol :[publicTrade.NOTHING]"),
                ("publicTrade.BTCUSD", "Invalid symbol :[publicTrade.BTCUSD]"),
            ):
                answer = await client.ask({"op": "subscribe", "args": [topic]})
                assert (answer["success"], answer["ret_msg"]) == (False, problem)
            topics = [f"{channel}.BTCUSDT" for channel in ("tickers", "publicTrade", "orderbook.1", "allLiquidation")]
            assert (await client.ask({"op": "subscribe", "args": topics}))["success"]
            ticker = await client.read()
            assert (ticker["type"], "fundingRate" in ticker["data"]) == ("snapshot", True)
            assert (await client.read())["topic"] == "orderbook.1.BTCUSDT"
            await simulated.advance(1_500)
            assert {message["topic"] for message in await client.read_all()} >= set(topics[:3])
        async with connected(simulated, "bybit-spot", "/v5/public/spot") as client:
            many = [f"tickers.{number}" for number in range(11)]
            assert (await client.ask({"op": "subscribe", "args": many}))["ret_msg"] == "args size >10"
        async with connected(simulated, "bybit-options", "/v5/public/option") as client:
            assert (await client.ask({"op": "ping"}))["op"] == "pong"
            symbol = simulated.symbols("bybit-options")[0]
            request = {"op": "subscribe", "args": [f"tickers.{symbol}", "publicTrade.BTC"]}
            assert (await client.ask(request))["data"]["successTopics"] == request["args"]
            assert (await client.read())["data"]["symbol"] == symbol
            await simulated.advance(20_000)
            assert "publicTrade.BTC" in {message["topic"] for message in await client.read_all()}


@pytest.mark.parametrize("exchange", ["bitmex", "coinbase"])
async def test_messages_are_deflated_for_clients_that_ask_for_it(exchange: str) -> None:
    path, request = {
        "bitmex": ("/realtime", {"op": "subscribe", "args": ["orderBookL2:XBTUSD"]}),
        "coinbase": ("", {"type": "subscribe", "product_ids": ["BTC-USD"], "channels": ["level2_batch"]}),
    }[exchange]

    async def read(client: Client) -> list[Any]:
        await client.send(request)
        await client.read()
        await until(lambda: client.sent() >= 2)
        await simulated.advance(3_000)
        return await client.read_all()

    simulated = stepped(exchange)
    async with simulated, connected(simulated, exchange, path, compress=15) as client:
        assert client.socket.compress
        deflated = await read(client)
    simulated = stepped(exchange)
    async with simulated, connected(simulated, exchange, path) as client:
        assert not client.socket.compress
        assert await read(client) == deflated
        assert len(deflated) > 20


async def test_there_is_nothing_at_other_paths() -> None:
    async with SimulatedExchanges(exchanges=["bitmex"], speed=None) as simulated, aiohttp.ClientSession() as session:
        for path in ("/nothing", "/realtime/nothing", ""):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(simulated.urls["bitmex"] + path)
            assert caught.value.status == 404
        async with session.get(f"{simulated.control_url.removesuffix('/control')}/nothing/stream") as answer:
            assert answer.status == 404


async def test_a_client_that_leaves_is_forgotten() -> None:
    async with SimulatedExchanges(exchanges=["bitmex"]) as simulated:
        tasks = len(asyncio.all_tasks())
        for _ in range(5):
            async with connected(simulated, "bitmex", "/realtime?subscribe=trade:XBTUSD") as client:
                await client.read()
        await until(lambda: not simulated.connections)
        assert simulated.accepted == 5
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
