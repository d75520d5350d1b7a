"""OKX live, the API of today (v5). https://www.okx.com/docs-v5/en/#overview-websocket

Invariant: a book begins with its snapshot, and every update names the one before it (`prevSeqId`).
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from ...filters import Filter
from .._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, in_batches, kind_of_error, to_frame
from .._mapper import Json

# Every trade, and spreads, have an address of their own.
_BUSINESS = ("trades-all", "sprd-")
# The recorder fetched these: nobody sends them.
_FETCHED = "liquidations"
_TOO_FREQUENT = "60014"
_PONG = "pong"


class OkexFeed(Feed):
    """Answers `{"event": "subscribe", "arg": …}` or `{"event": "error", "code": …, "msg": …}`. It closes what is silent for 30 s:
    `ping` is answered with `pong`, neither of them JSON."""

    # A call may have 64 KB, and there may be 480 of them in an hour.
    max_subscriptions = 2000
    subscribe_interval_s = 0.4

    @classmethod
    def split(cls, exchange: str, filters: Sequence[Filter]) -> list[Sequence[Filter]]:
        business = [item for item in filters if item.channel.startswith(_BUSINESS)]
        public = [item for item in filters if not item.channel.startswith((*_BUSINESS, _FETCHED))]
        return [some for some in (public, business) if some]

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake(f"/ws/v5/{'business' if self.filters[0].channel.startswith(_BUSINESS) else 'public'}")

    def subscribe(self, now_us: int) -> list[str]:
        arguments = {
            to_frame(argument): argument
            for item in self.filters
            for argument in (_argument(item.channel, symbol) for symbol in self.symbols(item))
        }
        return [to_frame({"op": "subscribe", "args": some}) for some in in_batches(list(arguments.values()), 100)]

    def ping(self, now_us: int) -> str:
        return "ping"

    @staticmethod
    def decode(raw: bytes) -> Json:
        return _PONG if raw == b"pong" else orjson.loads(raw)

    def classify(self, message: Json) -> Heard:
        if message is _PONG:
            return FrameKind.HEARTBEAT
        if "action" in message:
            rows = message["data"]
            return _book_step(message, rows[0]) if len(rows) == 1 else [_book_step(message, row) for row in rows]
        event = message.get("event")
        if event is not None:
            return FrameKind.ERROR if event == "error" else FrameKind.ANSWER
        return FrameKind.DATA if "data" in message else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        details = f"{message.get('code', '')} {message.get('msg', '')}".strip()
        return FeedError("rate_limit" if message.get("code") == _TOO_FREQUENT else kind_of_error(details), details)


def _argument(channel: str, symbol: str) -> dict[str, str]:
    if channel == "liquidation-orders":
        return {"channel": channel, "instType": "SWAP" if symbol.endswith("SWAP") else "FUTURES"}
    if channel == "opt-summary":
        return {"channel": channel, "instFamily": symbol}
    return {"channel": channel, "sprdId" if channel.startswith("sprd-") else "instId": symbol}


def _book_step(message: Json, data: Json) -> BookStep:
    arg = message["arg"]
    book = f"{arg['channel']} {arg['instId']}"
    return BookStep(book, message["action"] == "snapshot", data.get("seqId", 0), data.get("prevSeqId"))
