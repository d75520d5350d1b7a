"""OKX live, the API of today (v5). https://www.okx.com/docs-v5/en/#overview-websocket

Invariant: a book begins with its snapshot, and every update names the one before it (`prevSeqId`).
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from ...filters import Filter
from .._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, in_batches, kind_of_error, to_frame
from .._mapper import Json
from .._signing import sign

# Every trade, and spreads, have an address of their own.
_BUSINESS = ("trades-all", "sprd-")
# The recorder fetched these: nobody sends them.
_FETCHED = "liquidations"
_CREDENTIALS = _KEY, _SECRET, _PASSPHRASE = ("OKX_API_KEY", "OKX_API_SECRET_KEY", "OKX_API_PASSPHRASE")
# The account may hear every change of a book; it asks for trades at the public address.
_FLAGS = _VIP_5, _COLO, _PUBLIC_TRADES = ("OKX_API_VIP_5", "OKX_API_COLO", "OKX_USE_TRADES_CHANNEL")
_TOO_FREQUENT = "60014"
_PONG = "pong"


class OkexFeed(Feed):
    """Answers `{"event": "subscribe", "arg": …}` or `{"event": "error", "code": …, "msg": …}`. It closes what is silent for 30 s:
    `ping` is answered with `pong`, neither of them JSON. Who has an account logs in first, and hears more of books."""

    credential_names = _CREDENTIALS
    account_flags = _FLAGS
    # A call may have 64 KB, and there may be 480 of them in an hour.
    max_subscriptions = 2000
    subscribe_interval_s = 0.4

    @classmethod
    def split(cls, exchange: str, filters: Sequence[Filter]) -> list[Sequence[Filter]]:
        business = [item for item in filters if item.channel.startswith(_BUSINESS)]
        public = [item for item in filters if not item.channel.startswith((*_BUSINESS, _FETCHED))]
        return [some for some in (public, business) if some]

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        is_business = self._live_channel(self.filters[0].channel).startswith(_BUSINESS)
        return Handshake(f"/ws/v5/{'business' if is_business else 'public'}")

    def subscribe(self, now_us: int) -> list[str]:
        arguments = {
            to_frame(argument): argument
            for item in self.filters
            for argument in (_argument(self._live_channel(item.channel), symbol) for symbol in self.symbols(item))
        }
        subscriptions = [{"op": "subscribe", "args": some} for some in in_batches(list(arguments.values()), 100)]
        return [to_frame(call) for call in (*self._login(now_us // 1_000_000), *subscriptions)]

    def _live_channel(self, channel: str) -> str:
        """What an account like this one asks for; mappers take all of them."""
        if channel == "trades-all" and _PUBLIC_TRADES in self.credentials:
            return "trades"
        if channel != "books" or not (_KEY in self.credentials or _COLO in self.credentials):
            return channel
        return "books-l2-tbt" if _COLO in self.credentials or _VIP_5 in self.credentials else "books50-l2-tbt"

    def _login(self, now_s: int) -> list[Json]:
        if _KEY not in self.credentials:
            return []
        key, secret, passphrase = (self.credentials.get(name, "") for name in _CREDENTIALS)
        signature = sign(secret.encode(), f"{now_s}GET/users/self/verify")
        return [{"op": "login", "args": [{"apiKey": key, "passphrase": passphrase, "timestamp": str(now_s), "sign": signature}]}]

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
