"""Kraken, both versions: `{"event": "subscribe", …}` at / (v1), `{"method": "subscribe", …}` at /v2.
https://docs.kraken.com/api/docs/guides/spot-ws-intro

Where a subscribed client got nothing for a second, it gets a heartbeat.
"""

from __future__ import annotations

import re

from ....messages import to_timestamp
from ...venues.kraken import DEPTHS, KrakenVenue
from ..misbehaviour import ErrorKind
from ._contract import Dialogue, Family, Frame, Json, as_list, parse, to_json

_HEARTBEAT_S = 1.0
_DEFAULT_DEPTH = 10
_ERRORS: dict[ErrorKind, str] = {
    "rate_limit": "Exceeded msg rate",
    "auth": "EAuth:Invalid key",
    "server": "EService:Unavailable",
}


class KrakenDialogue(Dialogue):
    """One class for both: the path says which."""

    @staticmethod
    def serves(path: str) -> bool:
        return path in ("/", "/v2")

    def greet(self) -> list[Frame]:
        if self._old:
            status: Json = {"connectionID": 10_000, "event": "systemStatus", "status": "online", "version": "1.9.6"}
        else:
            data = {"version": "2.0.10", "system": "online", "api_version": "v2", "connection_id": 10_000}
            status = {"channel": "status", "type": "update", "data": [data]}
        return [to_json(status)]

    def hear(self, text: str) -> list[Frame]:
        request = parse(text)
        if request is None:
            return [
                to_json({"event": "error", "errorMessage": "Malformed request"} if self._old else _refusal("Malformed request"))
            ]
        return self._hear_old(request) if self._old else self._hear_new(request)

    def error(self, kind: ErrorKind, request: Json = None) -> list[Frame]:
        if self._old:
            return [self._status("error", request or {}, errorMessage=_ERRORS[kind])]
        return [to_json(_refusal(_ERRORS[kind], request))]

    def tick(self) -> list[Frame]:
        if self.subscriptions.keys and self.timer_s - self.sent_s >= _HEARTBEAT_S:
            return ['{"event":"heartbeat"}' if self._old else '{"channel":"heartbeat"}']
        return []

    @property
    def _old(self) -> bool:
        return self.path == "/"

    def _hear_old(self, request: Json) -> list[Frame]:
        event, identity = request.get("event"), {"reqid": request["reqid"]} if "reqid" in request else {}
        if event == "ping":
            return [to_json({"event": "pong", **identity})]
        if event not in ("subscribe", "unsubscribe"):
            return [self._status("error", request, errorMessage="Unsupported event")]
        asked = request.get("subscription") or {}
        name, depth = asked.get("name"), asked.get("depth", _DEFAULT_DEPTH)
        frames: list[Frame] = []
        for pair in as_list(request.get("pair")):
            topics = self.venue.topics(f"v1/{name}-{depth}" if name == "book" else f"v1/{name}", pair)
            if name == "book" and depth not in DEPTHS:
                frames.append(self._status("error", request, pair=pair, errorMessage="Subscription depth not supported"))
            elif name not in ("book", "trade", "spread", "ticker"):
                frames.append(self._status("error", request, pair=pair, errorMessage="Subscription name invalid"))
            elif not topics:
                frames.append(self._status("error", request, pair=pair, errorMessage=f"Currency pair not supported {pair}"))
            elif event == "unsubscribe":
                self.subscriptions.unsubscribe((name, pair))
                frames.append(self._status("unsubscribed", request, pair=pair))
            else:
                called = f"{name}-{depth}" if name == "book" else name
                frames.append(self._status("subscribed", request, pair=pair, channelID=depth, channelName=called))
                frames += self.subscriptions.subscribe((name, pair), topics, last=name in ("spread", "ticker"))
        return frames

    def _status(self, status: str, request: Json, **fields: Json) -> str:
        identity = {"reqid": request["reqid"]} if "reqid" in request else {}
        asked = {"subscription": request.get("subscription")}
        return to_json({"event": "subscriptionStatus", "status": status, **fields, **identity, **asked})

    def _hear_new(self, request: Json) -> list[Frame]:
        method, parameters = request.get("method"), request.get("params") or {}
        if method == "ping":
            return [to_json({"method": "pong", **_identity(request), **self._times()})]
        if method not in ("subscribe", "unsubscribe"):
            return [to_json(_refusal("Method not found", request))]
        name, depth = str(parameters.get("channel")), parameters.get("depth", _DEFAULT_DEPTH)
        trigger = parameters.get("event_trigger", "trades")
        channel = {"book": f"v2/book-{depth}", "ticker": f"v2/ticker-{trigger}"}.get(name, f"v2/{name}")
        if channel not in self.venue.venue.live_channels:
            problem = f"Depth not supported: {depth}" if name == "book" else f"Channel not supported: {name}"
            return [to_json(_refusal(problem, request, channel=name))]
        frames: list[Frame] = []
        for symbol in as_list(parameters.get("symbol")):
            topics = self.venue.topics(channel, symbol)
            told = {"channel": name, "symbol": symbol} | ({"depth": depth} if name == "book" else {})
            if not topics:
                frames.append(to_json(_refusal(f"Currency pair not supported {symbol}", request, symbol=symbol)))
                continue
            answer = {"method": method, "result": told, "success": True, **self._times(), **_identity(request)}
            if method == "unsubscribe":
                self.subscriptions.unsubscribe((name, symbol))
                frames.append(to_json(answer))
                continue
            answer["result"] = told | {"snapshot": parameters.get("snapshot", True)}
            opened = self.subscriptions.subscribe((name, symbol), topics, last=name == "ticker")
            frames += [to_json(answer), *(opened if parameters.get("snapshot", True) else ())]
        return frames

    def _times(self) -> Json:
        now_us = self.venue.now_us
        return {"time_in": to_timestamp(now_us), "time_out": to_timestamp(now_us + 40)}


def _identity(request: Json) -> Json:
    return {"req_id": request["req_id"]} if request and "req_id" in request else {}


def _refusal(problem: str, request: Json = None, **fields: Json) -> Json:
    method = (request or {}).get("method", "subscribe")
    return {"error": problem, "method": method, "success": False, **fields, **_identity(request)}


# Times of v1 are seconds with six decimals; no size or price is written so.
_TIMES = re.compile(rb'"(?:timestamp":")?([0-9]{10}[.][0-9]{6}|[0-9]{4}-[0-9T:.-]+Z)"')
FAMILIES = (Family(KrakenVenue(), KrakenDialogue, _TIMES),)
