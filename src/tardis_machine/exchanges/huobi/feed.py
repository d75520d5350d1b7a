"""Huobi live. Frames are gzip, and channels are at several addresses of a market.

Markets are asked with `{"id": "1", "sub": "market.btcusdt.bbo"}`, notifications with `{"op": "sub", "cid": "1", "topic":
"public.BTC-USD.funding_rate"}`. Both kinds of address ping, and want each ping answered. Open interest is polled.

Invariant: pure, as every feed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from ...filters import Filter
from .._feed import (
    Action,
    BookStep,
    Credentials,
    Feed,
    FeedError,
    Fetch,
    FrameKind,
    Handshake,
    Heard,
    kind_of_error,
    to_frame,
)
from .._joined_book_gate import JoinedBookGate
from .._mapper import Json
from .._parsing import text_of
from .derivatives import ALIASES
from .envelope import with_long_ids
from .market import KEPT_CHANGES, MBP_RULES

__all__ = ["HuobiFeed"]


class _Market(NamedTuple):
    """What differs between Huobi's markets."""

    path: str
    """Of trades and books."""
    depth: str
    """Which `depth` is asked for."""
    notifications_path: str = ""
    open_interest_path: str = ""


_MARKETS = {
    "huobi": _Market("/ws", ".step0"),
    "huobi-dm": _Market("/ws", ".size_150.high_freq", "/notification", "/api/v1/contract_open_interest"),
    "huobi-dm-swap": _Market("/swap-ws", ".size_150.high_freq", "/swap-notification", "/swap-api/v1/swap_open_interest"),
    "huobi-dm-linear-swap": _Market(
        "/linear-swap-ws", ".size_150.high_freq", "/linear-swap-notification", "/linear-swap-api/v1/swap_open_interest"
    ),
}
_MARKET_CHANNELS = ("depth", "detail", "trade", "bbo")
_NOTIFICATIONS = ("funding_rate", "liquidation_orders", "contract_info")
_OTHER_PATHS = {"mbp": "/feed", "basis": "/ws_index", "open_interest": "/ws_index"}
# What follows the name of a channel, beside that of depth.
_SUFFIXES = {"trade": ".detail", "mbp": ".400", "basis": ".1min.close"}
_OPEN_INTEREST_EVERY_S = 4.0
_CONTRACT_TYPES = {alias: kind for kind, alias in ALIASES.items()}


def _path_of(exchange: str, channel: str) -> str:
    """The address of a channel; empty where it is not live."""
    market = _MARKETS[exchange]
    if channel in _MARKET_CHANNELS:
        return market.path
    # Open interest goes with the basis, which has no more to do: both make one ticker.
    return market.notifications_path if channel in _NOTIFICATIONS else _OTHER_PATHS.get(channel, "")


class _MbpGate(JoinedBookGate):
    """Books whose snapshots are asked for. The mapper takes the snapshot and all that follows as they are, so this is more strict:

    what a snapshot holds does not pass after it, and the changes that it lacks must be among those that the mapper kept.
    """

    def __init__(self) -> None:
        # A snapshot may be older than the subscription: the first that comes before any change is not believed.
        super().__init__(MBP_RULES, patience=1)
        self.missing: dict[str, None] = {}
        """Topics of the books that were asked for and have no snapshot yet."""

    def fits(self, book: str, number: int | None) -> bool:
        """See JoinedBookGate. One that was asked for twice fits once."""
        if book not in self.missing or number is None:
            return False
        waiting = self._waiting.get(book)
        later = [step for step in waiting.updates if step.number > number] if waiting is not None else []
        if len(later) > KEPT_CHANGES or (later and later[0].previous != number) or not super().fits(book, number):
            return False
        del self.missing[book]
        return True

    def take(self, step: BookStep) -> FrameKind:
        """See JoinedBookGate."""
        kind = super().take(step)
        is_held = not step.is_snapshot and step.book in self._waiting and step.book not in self.missing
        return FrameKind.EARLY if is_held and kind is FrameKind.DATA else kind


class HuobiFeed(Feed):
    """Answers `{"id": "1", "status": "ok", "subbed": …}`, and `{"op": "sub", "err-code": 0, …}` at the address of notifications.

    A spot book has changes alone. Its snapshot is asked for as soon as the subscription is answered, and again with each ping until
    one comes that fits: a change names the number of the one before it. Books of derivatives begin with their snapshot, and their
    versions have no hole.
    """

    subscribe_interval_s = 0.05

    def __init__(self, exchange: str, filters: Sequence[Filter], credentials: Credentials | None = None) -> None:
        super().__init__(exchange, filters, credentials)
        self._market = _MARKETS[exchange]
        self._mbp = _MbpGate()
        if filters and filters[0].channel == "mbp":
            self.books = self._mbp

    @classmethod
    def split(cls, exchange: str, filters: Sequence[Filter]) -> list[Sequence[Filter]]:
        by_path: dict[str, list[Filter]] = {}
        for item in filters:
            if path := _path_of(exchange, item.channel):
                by_path.setdefault(path, []).append(item)
        return list(by_path.values())

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake(_path_of(self.exchange, self.filters[0].channel))

    def subscribe(self, now_us: int) -> list[Action]:
        self._mbp.missing = dict.fromkeys(self._topics("mbp"))
        actions: list[Action] = []
        for channel in dict.fromkeys(item.channel for item in self.filters):
            if channel == "open_interest":
                actions += map(self._open_interest, self._symbols_of(channel))
            elif channel in _NOTIFICATIONS:
                actions += [
                    to_frame({"op": "sub", "cid": "1", "topic": f"public.{symbol}.{channel}"})
                    for symbol in self._symbols_of(channel)
                ]
            else:
                actions += map(_subscription, self._topics(channel))
        return actions

    def _symbols_of(self, channel: str) -> list[str]:
        """Each once: the exchange complains of what is asked for twice."""
        return list(dict.fromkeys(symbol for item in self.filters if item.channel == channel for symbol in self.symbols(item)))

    def _topics(self, channel: str) -> list[str]:
        suffix = self._market.depth if channel == "depth" else _SUFFIXES.get(channel, "")
        return [f"market.{symbol}.{channel}{suffix}" for symbol in self._symbols_of(channel)]

    def _open_interest(self, symbol: str) -> Fetch:
        coin, _, alias = symbol.partition("_")
        kind = _CONTRACT_TYPES.get(alias)
        query = f"contract_code={symbol}" if kind is None else f"symbol={coin}&contract_type={kind}"
        channel = f"market.{symbol}.open_interest"

        def to_messages(body: bytes) -> list[bytes]:
            answer = orjson.loads(body)
            if answer.get("status") != "ok":
                return []  # a contract that is being settled has none for a while
            return [orjson.dumps({"ch": channel, "generated": True, "data": answer["data"], "ts": answer["ts"]})]

        return Fetch(channel, f"{self._market.open_interest_path}?{query}", to_messages, _OPEN_INTEREST_EVERY_S)

    @staticmethod
    def decode(raw: bytes) -> Json:
        return orjson.loads(with_long_ids(raw))

    def classify(self, message: Json) -> Heard:
        channel = message.get("ch")
        if channel is not None:
            if channel.endswith(".high_freq"):
                tick = message["tick"]
                return BookStep(channel, tick["event"] == "snapshot", tick["version"], tick["version"] - 1)
            if ".mbp." in channel:
                tick = message["tick"]
                return BookStep(channel, False, tick["seqNum"], tick["prevSeqNum"])
            return FrameKind.DATA
        operation = message.get("op")
        if operation == "notify":
            return FrameKind.DATA
        if "ping" in message or operation == "ping":
            return FrameKind.HEARTBEAT
        if message.get("status") == "error" or operation in ("error", "close") or message.get("err-code", 0) != 0:
            return FrameKind.ERROR
        book = message.get("data") if "rep" in message else None
        return FrameKind.ANSWER if book is None else BookStep(message["rep"], True, book["seqNum"])

    def error(self, message: Json) -> FeedError:
        """`{"status": "error", "err-code": "bad-request", "err-msg": "invalid symbol nope", …}`; `op` is `close` before it hangs up."""
        is_final = message.get("op") == "close"
        said = " ".join(text_of(message[name]) for name in ("err-code", "err-msg") if message.get(name))
        details = said or ("the exchange closes the connection" if is_final else "an error without details")
        return FeedError(kind_of_error(details), details, is_final)

    def reply(self, message: Json, now_us: int) -> list[str]:
        if "ping" in message:
            return [to_frame({"pong": message["ping"]}), *map(_request, self._mbp.missing)]
        if message.get("op") == "ping":
            return [to_frame({"op": "pong", "ts": message.get("ts")})]
        topic = message.get("subbed")
        return [_request(topic)] if topic in self._mbp.missing else []


def _subscription(topic: str) -> str:
    asked = {"id": "1", "sub": topic}
    return to_frame(asked | {"data_type": "incremental"} if topic.endswith(".high_freq") else asked)


def _request(topic: str) -> str:
    """What asks for a snapshot."""
    return to_frame({"id": "1", "req": topic})
