"""BitMEX: `{"op": "subscribe", "args": ["trade:XBTUSD"]}`, tables that start with a partial. https://www.bitmex.com/app/wsAPI"""

from __future__ import annotations

import re

from ...venues.bitmex import BitmexVenue
from ..misbehaviour import ErrorKind
from ._contract import Dialogue, Family, Frame, Json, as_list, parse, to_json

_REQUESTS_AN_HOUR = 40
_ERRORS: dict[ErrorKind, tuple[int, str, Json]] = {
    "rate_limit": (429, "Rate limit exceeded, retry in 2 seconds.", {"retryAfter": 2}),
    "auth": (401, "Signature not valid.", {}),
    "server": (503, "The system is currently overloaded. Please try again later.", {}),
}


class BitmexDialogue(Dialogue):
    """Messages other than the two pings are JSON."""

    deflate = True

    @staticmethod
    def serves(path: str) -> bool:
        return path == "/realtime"

    def greet(self) -> list[Frame]:
        welcome = {
            "info": "Welcome to the BitMEX Realtime API.",
            "version": "2.0.0",
            "timestamp": self.time,
            "docs": "https://www.bitmex.com/app/wsAPI",
            "heartbeatEnabled": False,
            "limit": {"remaining": _REQUESTS_AN_HOUR - 1},
        }
        asked = [name for name in self.query.get("subscribe", "").split(",") if name]
        return [to_json(welcome), *(self._subscribe(asked, {"op": "subscribe", "args": asked}) if asked else ())]

    def hear(self, text: str) -> list[Frame]:
        if text == "ping":
            return ["pong"]
        request = parse(text)
        if request is None:
            return [self._refuse(400, "Unexpected token in JSON.", {}, text)]
        operation, names = request.get("op"), as_list(request.get("args"))
        if operation == "subscribe":
            return self._subscribe(names, request)
        if operation == "unsubscribe":
            return self._unsubscribe(names, request)
        if operation in ("authKey", "authKeyExpires"):
            return [to_json({"success": True, "request": request})]
        return [self._refuse(400, f"Unknown operation: {operation}", {}, request)]

    def error(self, kind: ErrorKind, request: Json = None) -> list[Frame]:
        return [self._refuse(*_ERRORS[kind], request or {})]

    def _subscribe(self, names: list[Json], request: Json) -> list[Frame]:
        frames: list[Frame] = []
        for name in names:
            table, _, symbol = str(name).partition(":")
            if table not in self.venue.venue.channels:
                return [*frames, self._refuse(400, f"Unknown table: {table}", {}, request)]
            topics = self.venue.topics(table, symbol or None)
            if not topics:
                return [*frames, self._refuse(400, f"Unknown or expired symbol: {symbol}.", {}, request)]
            if name in self.subscriptions.keys:
                frames.append(self._refuse(400, f"You are already subscribed to this topic: {name}", {}, request))
                continue
            frames.append(to_json({"success": True, "subscribe": name, "request": request}))
            frames += self.subscriptions.subscribe(name, topics)
        return frames

    def _unsubscribe(self, names: list[Json], request: Json) -> list[Frame]:
        for name in names:
            self.subscriptions.unsubscribe(name)
        return [to_json({"success": True, "unsubscribe": name, "request": request}) for name in names]

    @staticmethod
    def _refuse(status: int, error: str, meta: Json, request: Json) -> str:
        return to_json({"status": status, "error": error, "meta": meta, "request": request})


FAMILIES = (Family(BitmexVenue(), BitmexDialogue, re.compile(rb'"timestamp":"([0-9][^"]+)"')),)
