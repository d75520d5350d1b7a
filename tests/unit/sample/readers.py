"""Rebuilds books from raw lines as each exchange documents it: the judge of what the sample says, with nothing of ours in it.

Invariant: a gap in sequence numbers, a wrong checksum or a book that crosses fails, unless the line before it was empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from zlib import crc32

Json = Any


class Books:
    """The books of one exchange by symbol, each side price to amount; `feed` takes raw data, minute after minute."""

    channels: tuple[str, ...]
    """All that a book needs."""

    def __init__(self) -> None:
        self.bids: dict[str, dict[float, float]] = {}
        self.asks: dict[str, dict[float, float]] = {}
        self.snapshots = 0

    def feed(self, data: bytes) -> None:
        for line in data.decode().split("\n")[:-1]:
            if line:
                self.take(json.loads(line[29:]))
            else:
                self.__init__()  # type: ignore[misc]

    def take(self, message: Json) -> None:
        raise NotImplementedError

    def start(self, symbol: str) -> None:
        self.bids[symbol], self.asks[symbol] = {}, {}
        self.snapshots += 1

    def set(self, symbol: str, bid: bool, price: float, amount: float) -> None:
        side = (self.bids if bid else self.asks)[symbol]
        if amount:
            side[price] = amount
        else:
            side.pop(price, None)

    def check(self, symbol: str) -> None:
        if self.bids[symbol] and self.asks[symbol]:
            assert max(self.bids[symbol]) < min(self.asks[symbol]), f"{symbol} crosses"


class BitmexBooks(Books):
    channels = ("orderBookL2",)

    def __init__(self) -> None:
        super().__init__()
        self.prices: dict[int, float] = {}

    def take(self, message: Json) -> None:
        if message.get("table") != "orderBookL2":
            return
        action = message["action"]
        if action == "partial":
            self.start(message["filter"]["symbol"])
        for row in message["data"]:
            symbol, bid = row["symbol"], row["side"] == "Buy"
            side = (self.bids if bid else self.asks).get(symbol)
            if side is None:
                continue
            if "price" in row:
                self.prices[row["id"]] = row["price"]
            price = self.prices[row["id"]]
            assert (price in side) == (action in ("update", "delete")), f"{action} of {price}"
            self.set(symbol, bid, price, row.get("size", 0))
        # A move of the market deletes in one message and inserts in the next: in between a side may be short, never crossed.
        if message["data"] and message["data"][0]["symbol"] in self.bids:
            self.check(message["data"][0]["symbol"])


class BinanceBooks(Books):
    channels = ("depth", "depthSnapshot")

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, list[Json]] = {}
        self.last: dict[str, int] = {}
        self.snapshot: dict[str, int] = {}

    def take(self, message: Json) -> None:
        symbol, _, channel = message["stream"].partition("@")
        data = message["data"]
        if channel == "depthSnapshot":
            if symbol in self.bids:
                return
            self.start(symbol)
            self.snapshot[symbol] = data["lastUpdateId"]
            for price, amount in data["bids"]:
                self.set(symbol, True, float(price), float(amount))
            for price, amount in data["asks"]:
                self.set(symbol, False, float(price), float(amount))
            for update in self.waiting.pop(symbol, []):
                self.update(symbol, update)
        elif channel.startswith("depth"):
            if symbol in self.last:
                assert data["U"] == self.last[symbol] + 1, "a gap in update ids"
                assert data.get("pu", self.last[symbol]) == self.last[symbol]
            self.last[symbol] = data["u"]
            if symbol in self.bids:
                self.update(symbol, data)
            else:
                self.waiting.setdefault(symbol, []).append(data)

    def update(self, symbol: str, data: Json) -> None:
        snapshot = self.snapshot.get(symbol)
        if snapshot is not None:
            futures = "pu" in data
            if data["u"] < snapshot or (not futures and data["u"] == snapshot):
                return
            assert data["U"] <= snapshot + (0 if futures else 1) <= data["u"], "the snapshot falls between no two updates"
            del self.snapshot[symbol]
        for name, bid in (("b", True), ("a", False)):
            for price, amount in data[name]:
                self.set(symbol, bid, float(price), float(amount))
        self.check(symbol)


class CoinbaseBooks(Books):
    channels = ("snapshot", "l2update")

    def take(self, message: Json) -> None:
        if message["type"] == "snapshot":
            symbol = message["product_id"]
            self.start(symbol)
            for name, bid in (("bids", True), ("asks", False)):
                for price, amount in message[name]:
                    self.set(symbol, bid, float(price), float(amount))
        elif message["type"] == "l2update" and message["product_id"] in self.bids:
            for side, price, amount in message["changes"]:
                self.set(message["product_id"], side == "buy", float(price), float(amount))
            self.check(message["product_id"])


class DeribitBooks(Books):
    channels = ("book",)

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, int] = {}

    def take(self, message: Json) -> None:
        if not message["params"]["channel"].startswith("book."):
            return
        data = message["params"]["data"]
        symbol = data["instrument_name"]
        if data["type"] == "snapshot":
            assert "prev_change_id" not in data
            self.start(symbol)
        elif symbol not in self.bids:
            return
        else:
            assert data["prev_change_id"] == self.last[symbol], "a gap in change ids"
        self.last[symbol] = data["change_id"]
        for name, bid in (("bids", True), ("asks", False)):
            side = (self.bids if bid else self.asks)[symbol]
            for action, price, amount in data[name]:
                assert (price in side) == (action != "new"), f"{action} of {price}"
                assert (amount == 0) == (action == "delete")
                self.set(symbol, bid, price, amount)
        self.check(symbol)


class OkexBooks(Books):
    def __init__(self, channel: str = "books-l2-tbt") -> None:
        super().__init__()
        self.channel = channel
        self.channels = (channel,)
        self.messages = 0
        self.last: dict[str, int] = {}
        self.texts: dict[str, tuple[dict[str, str], dict[str, str]]] = {}

    def feed(self, data: bytes) -> None:
        for line in data.decode().split("\n")[:-1]:
            if line:
                self.take(json.loads(line[29:]))
            else:
                self.__init__(self.channel)  # type: ignore[misc]

    def take(self, message: Json) -> None:
        if "event" in message or "action" not in message:
            return
        if message.get("arg", {}).get("channel", message.get("table")) != self.channel:
            return
        data = message["data"][0]
        symbol = message["arg"]["instId"] if "arg" in message else data["instrument_id"]
        if message["action"] in ("snapshot", "partial"):
            self.start(symbol)
            self.texts[symbol] = ({}, {})
        elif symbol not in self.bids:
            return
        elif "prevSeqId" in data:
            assert data["prevSeqId"] == self.last[symbol], "a gap in sequence ids"
        self.last[symbol] = data.get("seqId", 0)
        for name, bid in (("bids", True), ("asks", False)):
            for price, amount, _, _ in data[name]:
                self.set(symbol, bid, float(price), float(amount))
                texts = self.texts[symbol][bid]
                if float(amount):
                    texts[price] = amount
                else:
                    texts.pop(price, None)
        self.check(symbol)
        # One in sixteen is enough, and sixteen times as fast.
        self.messages += 1
        if self.messages % 16 == 0:
            assert data["checksum"] == self.checksum(symbol), "a wrong checksum"

    def checksum(self, symbol: str) -> int:
        asks, bids = self.texts[symbol]
        best_bids = sorted(bids.items(), key=lambda level: -float(level[0]))[:25]
        best_asks = sorted(asks.items(), key=lambda level: float(level[0]))[:25]
        text = ":".join(_alternate(best_bids, best_asks))
        unsigned = crc32(text.encode())
        return unsigned - 2**32 if unsigned >= 2**31 else unsigned


def _alternate(bids: list[tuple[str, str]], asks: list[tuple[str, str]]) -> Iterator[str]:
    for place in range(25):
        for side in (bids, asks):
            if place < len(side):
                yield from side[place]


READERS: dict[str, Any] = {
    "bitmex": BitmexBooks,
    "binance": BinanceBooks,
    "binance-us": BinanceBooks,
    "binance-jersey": BinanceBooks,
    "binance-futures": BinanceBooks,
    "binance-delivery": BinanceBooks,
    "coinbase": CoinbaseBooks,
    "deribit": DeribitBooks,
    "okex": OkexBooks,
    "okex-swap": OkexBooks,
    "okex-futures": OkexBooks,
    "okex-options": OkexBooks,
}
"""Of every exchange whose books are kept by updates."""
