"""Deribit: JSON-RPC over a WebSocket, channels `book.BTC-PERPETUAL.100ms`. https://docs.deribit.com

A heartbeat that a client asked for comes in pairs: one that says the exchange is there, one that asks whether the client is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from ...venues.deribit import DeribitVenue
from ..broadcast import Render, Topic
from ..misbehaviour import ErrorKind
from ..subscriptions import Subscriptions
from ._contract import Dialogue, Family, Frame, Hangup, Json, as_list, parse, to_json

_ERRORS: dict[ErrorKind, tuple[int, str]] = {
    "rate_limit": (10028, "too_many_requests"),
    "auth": (13004, "invalid_credentials"),
    "server": (11094, "internal_server_error"),
}
_LEAST_HEARTBEAT_S = 10
_INTERVALS = ("raw", "100ms")
_WITH_INTERVALS = ("book", "trades", "ticker", "perpetual")
_INDEX = "deribit_price_index"


class DeribitDialogue(Dialogue):
    """Raw channels are for clients that have authenticated."""

    def __init__(self, subscriptions: Subscriptions, path: str, query: Mapping[str, str]) -> None:
        super().__init__(subscriptions, path, query)
        self._known = False
        self._heartbeat_s = 0.0
        self._beaten_s = self.opened_s
        # When the client was asked whether it is there, until it says so.
        self._asked_s: float | None = None

    @staticmethod
    def serves(path: str) -> bool:
        return path == "/ws/api/v2"

    def hear(self, text: str) -> list[Frame]:
        request = parse(text)
        if request is None:
            return [self._refuse(-32700, "Parse error", None)]
        method, parameters = request.get("method"), request.get("params") or {}
        if method in ("public/subscribe", "private/subscribe"):
            return self._subscribe(as_list(parameters.get("channels")), request)
        if method in ("public/unsubscribe", "private/unsubscribe"):
            ended = [channel for channel in as_list(parameters.get("channels")) if self.subscriptions.unsubscribe(channel)]
            return [self._answer(ended, request)]
        if method == "public/set_heartbeat":
            return self._set_heartbeat(parameters.get("interval"), request)
        if method == "public/disable_heartbeat":
            self._heartbeat_s, self._asked_s = 0.0, None
            return [self._answer("ok", request)]
        if method == "public/test":
            self._asked_s = None
            return [self._answer({"version": "1.2.26"}, request)]
        if method == "public/auth":
            self._known = True
            token = {"token_type": "bearer", "expires_in": 900, "scope": "connection", "access_token": "simulated"}
            return [self._answer(token, request)]
        if method == "public/get_time":
            return [self._answer(self.venue.now_us // 1_000, request)]
        return [self._refuse(-32601, "Method not found", request)]

    def error(self, kind: ErrorKind, request: Json = None) -> list[Frame]:
        return [self._refuse(*_ERRORS[kind], request)]

    def tick(self) -> list[Frame]:
        if not self._heartbeat_s:
            return []
        if self._asked_s is not None and self.timer_s - self._asked_s > self._heartbeat_s:
            return [Hangup(1000, "No answer to test_request")]
        if self.timer_s - self._beaten_s < self._heartbeat_s:
            return []
        self._beaten_s = self.timer_s
        self._asked_s = self._asked_s if self._asked_s is not None else self.timer_s
        kinds = ("heartbeat", "test_request")
        return [to_json({"jsonrpc": "2.0", "method": "heartbeat", "params": {"type": kind}}) for kind in kinds]

    def _subscribe(self, channels: list[Json], request: Json) -> list[Frame]:
        if request["method"].startswith("private") and not self._known:
            return [self._refuse(13009, "unauthorized", request)]
        if not self._known and any(str(channel).endswith(".raw") for channel in channels):
            return [self._refuse(13778, "raw_subscriptions_not_available_for_unauthorized", request)]
        read = {str(channel): self._read(str(channel)) for channel in channels}
        if not channels or not all(topics for topics, _ in read.values()):
            return [self._refuse(-32602, "Invalid params", request, {"reason": "wrong format", "param": "channels"})]
        frames: list[Frame] = [self._answer(list(read), request)]
        for channel, (topics, render) in read.items():
            last = topics[0].channel not in (*self.venue.venue.book_channels, "trades")
            frames += self.subscriptions.subscribe(channel, topics, render=render, last=last)
        return frames

    def _read(self, channel: str) -> tuple[list[Topic], Render | None]:
        """What a channel's name asks for, and how its messages get that name."""
        kind, _, symbol = channel.partition(".")
        if kind == _INDEX:
            return [Topic(kind, symbol)], None
        if kind not in _WITH_INTERVALS:
            return self.venue.topics(kind, symbol) if kind == "quote" else [], None
        symbol, _, interval = symbol.rpartition(".")
        if interval not in _INTERVALS:
            return [], None
        if kind == "book":
            return self.venue.topics(kind if interval == "raw" else f"{kind}.{interval}", symbol), None
        sent = f'"{kind}.{symbol}.raw"'.encode()
        return self.venue.topics(kind, symbol), None if interval == "raw" else partial(_renamed, sent, f'"{channel}"'.encode())

    def _set_heartbeat(self, interval: Json, request: Json) -> list[Frame]:
        if not isinstance(interval, int) or interval < _LEAST_HEARTBEAT_S:
            data = {"reason": f"must be at least {_LEAST_HEARTBEAT_S}", "param": "interval"}
            return [self._refuse(-32602, "Invalid params", request, data)]
        self._heartbeat_s, self._beaten_s, self._asked_s = float(interval), self.timer_s, None
        return [self._answer("ok", request)]

    def _answer(self, result: Json, request: Json) -> str:
        return to_json({"jsonrpc": "2.0", "id": request.get("id"), "result": result, **self._times()})

    def _refuse(self, code: int, message: str, request: Json, data: Json = None) -> str:
        error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        identity = {} if request is None else {"id": request.get("id")}
        return to_json({"jsonrpc": "2.0", **identity, "error": error, **self._times()})

    def _times(self) -> Json:
        now_us = self.venue.now_us
        return {"usIn": now_us, "usOut": now_us + 90, "usDiff": 90, "testnet": False}


def _renamed(sent: bytes, asked: bytes, message: bytes) -> bytes:
    return message.replace(sent, asked, 1)


FAMILIES = (Family(DeribitVenue(), DeribitDialogue, re.compile(rb'"timestamp":([0-9]{13})')),)
