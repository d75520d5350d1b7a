"""Bybit v5: `{"op": "subscribe", "args": ["orderbook.50.BTCUSDT"]}`, a path for each market, pings as JSON.
https://bybit-exchange.github.io/docs/v5/ws/connect
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...venues.bybit import BybitVenue
from ..broadcast import Topic
from ..misbehaviour import ErrorKind
from ..subscriptions import Subscriptions
from ._contract import Dialogue, Family, Frame, Hangup, Json, as_list, parse, to_json

_PATHS = {"/v5/public/linear": "bybit", "/v5/public/inverse": "bybit", "/v5/public/spot": "bybit-spot"}
_PATHS["/v5/public/option"] = "bybit-options"
_MOST_SPOT_TOPICS = 10
_PATIENCE_S = 600.0
_ERRORS: dict[ErrorKind, str] = {
    "rate_limit": "Too many visits. Exceeded the API Rate Limit.",
    "auth": "error:Request not authorized",
    "server": "error:Internal system error",
}


class BybitDialogue(Dialogue):
    """Of contracts, linear ones live at one path and inverse ones at another."""

    def __init__(self, subscriptions: Subscriptions, path: str, query: Mapping[str, str]) -> None:
        super().__init__(subscriptions, path, query)
        self._options = path.endswith("/option")
        self._identity = f"simulated-{self.venue.next_identity()}"

    @staticmethod
    def serves(path: str) -> bool:
        return path in _PATHS

    def hear(self, text: str) -> list[Frame]:
        request = parse(text)
        if request is None:
            return [self._answer(False, "error:invalid json", {})]
        operation = request.get("op")
        if operation == "ping":
            if self._options:
                return [to_json({"args": [str(self.venue.now_us // 1_000)], "op": "pong"})]
            return [self._answer(True, "pong", request)]
        names = as_list(request.get("args"))
        if operation == "unsubscribe":
            for name in names:
                self.subscriptions.unsubscribe(name)
            return [self._answer(True, "", request)]
        if operation != "subscribe":
            return [self._answer(False, f"error:unknown op:{operation}", request)]
        if self.path.endswith("/spot") and len(names) > _MOST_SPOT_TOPICS:
            return [self._answer(False, f"args size >{_MOST_SPOT_TOPICS}", request)]
        return self._subscribe(names, request)

    def error(self, kind: ErrorKind, request: Json = None) -> list[Frame]:
        return [self._answer(False, _ERRORS[kind], request or {"op": "subscribe"})]

    def tick(self) -> list[Frame]:
        return [Hangup(1000, "Idle")] if self.timer_s - self.heard_s > _PATIENCE_S else []

    def _subscribe(self, names: list[Json], request: Json) -> list[Frame]:
        read = {str(name): self._read(str(name)) for name in names}
        for name, topics in read.items():
            if topics is None:
                return [self._answer(False, f"error:handler not found,topic:{name}", request)]
            if not topics:
                return [self._answer(False, f"Invalid symbol :[{name}]", request)]
        frames: list[Frame] = [self._answer(True, "subscribe", request)]
        for name, topics in read.items():
            frames += self.subscriptions.subscribe(name, topics or [], last=self._starts_with_last(name))
        return frames

    def _starts_with_last(self, name: str) -> bool:
        """What says all each time is sent at once."""
        return name.startswith("orderbook.1.") or (name.startswith("tickers") and self.path.endswith(("spot", "option")))

    def _read(self, name: str) -> list[Topic] | None:
        """None: there is no such channel; empty: it has no such symbol here."""
        if _PATHS[self.path] != self.venue.name:
            return []
        channels = [each for each in self.venue.venue.live_channels if name.startswith(f"{each}.")]
        if not channels:
            return None
        symbol = name.removeprefix(f"{channels[0]}.")
        if self._options and channels[0] == "publicTrade":
            return [topic for topic in self.venue.topics(channels[0]) if topic.symbol.startswith(f"{symbol}-")]
        return [topic for topic in self.venue.topics(channels[0], symbol) if self._is_traded_here(topic)]

    def _is_traded_here(self, topic: Topic) -> bool:
        assert topic.instrument is not None
        return topic.instrument.settled_in_asset == self.path.endswith("/inverse")

    def _answer(self, success: bool, message: str, request: Json) -> str:
        identity = {"req_id": request.get("req_id", "")}
        if self._options and request.get("op") == "subscribe":
            names = as_list(request.get("args"))
            topics = {"failTopics": [] if success else names, "successTopics": names if success else []}
            return to_json({"success": success, "conn_id": self._identity, "data": topics, "type": "COMMAND_RESP"})
        return to_json(
            {"success": success, "ret_msg": message, "conn_id": self._identity, **identity, "op": request.get("op", "")}
        )


_TIMES = re.compile(rb'"(?:ts|cts|T)":([0-9]{13})')
FAMILIES = tuple(Family(BybitVenue(name), BybitDialogue, _TIMES) for name in ("bybit", "bybit-spot", "bybit-options"))
