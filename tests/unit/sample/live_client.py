"""A raw client of the simulated exchanges: speaks as each exchange's documents say, rebuilds books with nothing of ours in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import aiohttp

from tardis_machine.sample.live import SimulatedExchanges
from tests.unit.sample.readers import READERS, Books, Json, OkexBooks

TIMEOUT_S = 5.0


class Client:
    """One connection to one simulated exchange."""

    def __init__(self, simulated: SimulatedExchanges, exchange: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.simulated = simulated
        self.exchange = exchange
        self.socket = socket
        self.received = 0
        self.identity = simulated.open_connections(exchange)[-1].identity

    async def send(self, request: Json) -> None:
        await self.socket.send_str(request if isinstance(request, str) else json.dumps(request))

    async def read(self) -> Json:
        """The next message; text that is no JSON as it is."""
        text = await self.socket.receive_str(timeout=TIMEOUT_S)
        self.received += 1
        try:
            return json.loads(text)
        except ValueError:
            return text

    async def ask(self, request: Json) -> Json:
        await self.send(request)
        return await self.read()

    async def read_all(self) -> list[Json]:
        """All that was sent on this connection and not read yet."""
        return [await self.read() for _ in range(self.sent() - self.received)]

    def sent(self) -> int:
        return sum(each.connection == self.identity for each in self.simulated.sent)

    async def closing(self) -> tuple[aiohttp.WSMsgType, Any]:
        """What ends the connection, past all messages."""
        while True:
            message = await self.socket.receive(timeout=TIMEOUT_S)
            if message.type is not aiohttp.WSMsgType.TEXT:
                return message.type, message.data
            self.received += 1


@asynccontextmanager
async def connected(simulated: SimulatedExchanges, exchange: str, path: str, **options: Any) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(simulated.urls[exchange] + path, **options)
        async with socket:
            await until(lambda: simulated.open_connections(exchange))
            yield Client(simulated, exchange, socket)


async def until(condition: Any) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.001)


class KrakenBooks(Books):
    """Cuts its books to the depth it asked for, and checks every checksum."""

    def __init__(self, depth: int = 1000, decimals: tuple[int, int] = (1, 8)) -> None:
        super().__init__()
        self.depth = depth
        self.price_decimals, self.size_decimals = decimals

    def take(self, message: Json) -> None:
        if isinstance(message, dict) and message.get("channel") == "book":
            for book in message["data"]:
                sides = [[(level["price"], level["qty"]) for level in book[side]] for side in ("bids", "asks")]
                self._apply(book["symbol"], message["type"] == "snapshot", sides, book["checksum"])
        elif isinstance(message, list) and message[-2].startswith("book"):
            told = {name: levels for part in message[1:-2] for name, levels in part.items()}
            snapshot = "as" in told
            names = ("bs", "as") if snapshot else ("b", "a")
            sides = [[(float(price), float(size)) for price, size, *_ in told.get(name, ())] for name in names]
            self._apply(message[-1], snapshot, sides, None if snapshot else int(told["c"]))

    def _apply(self, symbol: str, snapshot: bool, sides: list[list[tuple[float, float]]], checksum: int | None) -> None:
        if snapshot:
            self.start(symbol)
        for bid, side in zip((True, False), sides, strict=True):
            for price, amount in side:
                self.set(symbol, bid, price, amount)
            kept = sorted((self.bids if bid else self.asks)[symbol].items(), reverse=bid)[: self.depth]
            (self.bids if bid else self.asks)[symbol] = dict(kept)
        self.check(symbol)
        if checksum is not None:
            assert checksum == self.checksum(symbol), "a wrong checksum"

    def checksum(self, symbol: str) -> int:
        best = sorted(self.asks[symbol].items())[:10] + sorted(self.bids[symbol].items(), reverse=True)[:10]
        text = "".join(
            f"{price:.{self.price_decimals}f}".replace(".", "").lstrip("0")
            + f"{amount:.{self.size_decimals}f}".replace(".", "").lstrip("0")
            for price, amount in best
        )
        return crc32(text.encode())


class BybitBooks(Books):
    """Every update is the next in number."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, int] = {}

    def take(self, message: Json) -> None:
        if not str(message.get("topic", "")).startswith("orderbook."):
            return
        data = message["data"]
        symbol = data["s"]
        if message["type"] == "snapshot":
            self.start(symbol)
        else:
            assert data["u"] == self.last[symbol] + 1, "a gap in update ids"
        self.last[symbol] = data["u"]
        for name, bid in (("b", True), ("a", False)):
            for price, amount in data[name]:
                self.set(symbol, bid, float(price), float(amount))
        self.check(symbol)


class SpreadBooks(Books):
    """The five best levels, whole each time."""

    def take(self, message: Json) -> None:
        if message.get("arg", {}).get("channel") == "sprd-books5" and "data" in message:
            self.start(message["arg"]["sprdId"])
            for name, bid in (("bids", True), ("asks", False)):
                for price, amount, _ in message["data"][0][name]:
                    self.set(message["arg"]["sprdId"], bid, float(price), float(amount))


def reader_of(exchange: str, channel: str) -> Books:
    """The reader of an exchange's books."""
    if exchange.startswith("bybit"):
        return BybitBooks()
    if exchange == "okex-spreads":
        return SpreadBooks()
    if exchange == "kraken":
        return KrakenBooks(int(channel.rpartition("-")[2]), (5 if channel.startswith("v1") else 1, 8))
    if exchange.startswith("okex"):
        return OkexBooks(channel)
    return READERS[exchange]()  # type: ignore[no-any-return]
