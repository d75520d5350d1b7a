"""Binance: streams `btcusdt@depth@100ms` in the URL or by SUBSCRIBE, books that start with a snapshot over REST.
https://developers.binance.com/docs/binance-spot-api-docs/web-socket-streams

A stream that there is none of is subscribed to without a complaint, as there, and stays silent. So does one of binance-futures that is
at its other address: trades and books are at /public, all else is at /market.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from ...venues._contract import SECOND
from ...venues.binance import BinanceVenue, rest_depth, rest_open_interest
from ..broadcast import Render, Topic
from ..misbehaviour import ErrorKind
from ..subscriptions import Subscriptions
from ..venue import LiveVenue
from ._contract import Dialogue, Family, Frame, Hangup, Json, Ping, Rest, RestAnswer, as_list, parse, to_json

_ERRORS: dict[ErrorKind, tuple[int, str]] = {
    "rate_limit": (-1003, "Too many requests; please use the websocket for live updates to avoid polling the API."),
    "auth": (-2014, "API-key format invalid."),
    "server": (-1001, "Internal error; unable to process your request. Please try again."),
}
_PATH = re.compile(r"/(stream|ws)(/.*)?")
_PUBLIC_CHANNELS = ("trade", "depth", "bookTicker")
_SENT_AS = {"depth": "depth@100ms", "markPrice": "markPrice@1s", "indexPrice": "indexPrice@1s"}
# What clients ask for, by the channel they get. A book has one pace, whatever was asked for.
_CHANNELS = {
    name: name for name in ("trade", "aggTrade", "depth", "bookTicker", "ticker", "markPrice", "indexPrice", "forceOrder")
}
_CHANNELS |= {name: channel for channel, name in _SENT_AS.items()} | {"depth@0ms": "depth"}
_CLOCKS = re.compile(rb'"[ETOC]":[0-9]{13}')
_DATA = b'"data":'


class BinanceDialogue(Dialogue):
    """Combined streams wear their name; raw ones (/ws) come bare."""

    def __init__(self, subscriptions: Subscriptions, path: str, query: Mapping[str, str]) -> None:
        super().__init__(subscriptions, path, query)
        self._derivatives = self.venue.name in ("binance-futures", "binance-delivery")
        self._bare = "/ws" in path
        self._microseconds = query.get("timeUnit", "").lower() == "microsecond"
        self._asked_s: list[float] = []
        self._pinged_s = self.opened_s

    @staticmethod
    def serves(path: str) -> bool:
        return _PATH.fullmatch(path) is not None

    def greet(self) -> list[Frame]:
        named = self.query.get("streams", "") if not self._bare else self.path.partition("/ws")[2].removeprefix("/")
        for stream in filter(None, named.split("/")):
            self._subscribe(stream)
        return []

    def hear(self, text: str) -> list[Frame]:
        now_s = self.venue.clock.real_s
        self._asked_s = [asked_s for asked_s in self._asked_s if asked_s > now_s - 1.0] + [now_s]
        if len(self._asked_s) > (10 if self._derivatives else 5):
            return [Hangup(1008, "Too many requests")]
        request = parse(text)
        if request is None:
            return [self._refuse(3, "Invalid JSON: expected value at line 1 column 1", None)]
        method, names, identity = request.get("method"), as_list(request.get("params")), request.get("id")
        if not all(isinstance(name, str) for name in names):
            return [self._refuse(2, "Invalid request: property 'params' must be an array of strings", identity)]
        if method == "SUBSCRIBE":
            for name in names:
                self._subscribe(name)
        elif method == "UNSUBSCRIBE":
            for name in names:
                self.subscriptions.unsubscribe(name)
        elif method == "LIST_SUBSCRIPTIONS":
            return [to_json({"result": self.subscriptions.keys, "id": identity})]
        else:
            return [self._refuse(2, f"Invalid request: unknown variant `{method}`", identity)]
        return [to_json({"result": None, "id": identity})]

    def error(self, kind: ErrorKind, request: Json = None) -> list[Frame]:
        return [self._refuse(*_ERRORS[kind], (request or {}).get("id"))]

    def tick(self) -> list[Frame]:
        every_s, patience_s = (180.0, 600.0) if self._derivatives else (20.0, 60.0)
        if self._pinged_s > self.heard_s and self.timer_s - self.heard_s > patience_s:
            return [Hangup(1008, "Pong timeout")]
        if self.timer_s - self._pinged_s >= every_s:
            self._pinged_s = self.timer_s
            return [Ping(str(self.venue.now_us // 1_000).encode())]
        return []

    def _is_here(self, channel: str) -> bool:
        return True

    def _subscribe(self, stream: str) -> None:
        symbol, _, name = stream.partition("@")
        channel = _CHANNELS.get(name, "")
        topics = [Topic(channel, symbol)] if channel == "indexPrice" else self.venue.topics(channel, symbol)
        if not self._is_here(channel):
            topics = []
        self.subscriptions.subscribe(stream, topics, render=self._render(f"{symbol}@{_SENT_AS.get(channel, channel)}", stream))

    def _render(self, sent: str, stream: str) -> Render | None:
        if sent == stream and not self._bare and not self._microseconds:
            return None
        return partial(_rendered, f'"{sent}"'.encode(), b"" if self._bare else f'"{stream}"'.encode(), self._microseconds)

    def _refuse(self, code: int, message: str, identity: Json) -> str:
        if self._derivatives:
            return to_json({"id": identity, "error": {"code": code, "msg": message}})
        return to_json({"error": {"code": code, "msg": message}, "id": identity})


class BinanceFuturesDialogue(BinanceDialogue):
    """Two addresses, each with channels of its own."""

    @staticmethod
    def serves(path: str) -> bool:
        return path.startswith(("/public/", "/market/")) and _PATH.fullmatch(path[len("/public") :]) is not None

    def _is_here(self, channel: str) -> bool:
        return (channel in _PUBLIC_CHANNELS) == self.path.startswith("/public")


def _rendered(sent: bytes, asked: bytes, microseconds: bool, message: bytes) -> bytes:
    message = message.replace(sent, asked, 1) if asked else message[message.index(_DATA) + len(_DATA) : -1]
    return _CLOCKS.sub(rb"\g<0>000", message) if microseconds else message


_WEIGHTS = {"binance-us": 1_200, "binance-futures": 2_400, "binance-delivery": 2_400}
_SPOT_WEIGHT = 6_000
_REST = re.compile(r"/(?:api|fapi|dapi)/v[13]/(\w+)")


class BinanceRest(Rest):
    """Requests have weights, which are counted by the minute."""

    def __init__(self, venue: LiveVenue) -> None:
        super().__init__(venue)
        self._limit = _WEIGHTS.get(venue.name, _SPOT_WEIGHT)
        self._minute = 0
        self._used = 0

    def answer(self, path: str, query: Mapping[str, str]) -> RestAnswer:
        minute = int(self.venue.clock.timer_s) // 60
        if minute != self._minute:
            self._minute, self._used = minute, 0
        named = _REST.fullmatch(path)
        name = named[1] if named else ""
        self._used += _weight(name, query)
        if self._used > self._limit:
            banned = self._used > 2 * self._limit
            headers = {"Retry-After": str(60 - int(self.venue.clock.timer_s) % 60)}
            return self._refuse(418 if banned else 429, *_ERRORS["rate_limit"], headers)
        if name == "depth":
            return self._depth(query)
        if name == "openInterest" and "openInterest" in self.venue.venue.channels:
            return self._open_interest(query)
        if name == "exchangeInfo":
            return self._exchange_info()
        if name in ("ping", "time"):
            return self._send("{}" if name == "ping" else f'{{"serverTime":{self.venue.now_us // 1_000}}}')
        return self._refuse(404, 0, "Path not found.")

    def _depth(self, query: Mapping[str, str]) -> RestAnswer:
        topics = self._topics(query)
        limit = query.get("limit", "100")
        if isinstance(topics, RestAnswer):
            return topics
        if not limit.isdigit() or not 0 < int(limit) <= 5_000:
            return self._refuse(400, -1130, "Data sent for parameter 'limit' is not valid.")
        instrument, wrong = topics[0].instrument, self.venue.faults.take_snapshot()
        assert instrument is not None
        at = self.venue.clock.position - int(wrong.old_s * SECOND)
        return self._send(rest_depth(self.venue.broadcast.minute(instrument, at), at, int(limit)), wrong.late_s)

    def _open_interest(self, query: Mapping[str, str]) -> RestAnswer:
        topics = self._topics(query)
        if isinstance(topics, RestAnswer):
            return topics
        assert topics[0].instrument is not None
        market, second = self.venue.broadcast.market, self.venue.clock.position // SECOND
        return self._send(rest_open_interest(market, topics[0].instrument, second))

    def _exchange_info(self) -> RestAnswer:
        symbols = [{"symbol": topic.symbol.upper(), "status": "TRADING"} for topic in self.venue.topics("trade")]
        limits = [{"rateLimitType": "REQUEST_WEIGHT", "interval": "MINUTE", "intervalNum": 1, "limit": self._limit}]
        known = {"timezone": "UTC", "serverTime": self.venue.now_us // 1_000, "rateLimits": limits, "symbols": symbols}
        return self._send(to_json(known))

    def _topics(self, query: Mapping[str, str]) -> list[Topic] | RestAnswer:
        if "symbol" not in query:
            return self._refuse(400, -1102, "Mandatory parameter 'symbol' was not sent, was empty/null, or malformed.")
        topics = self.venue.topics("depth", query["symbol"].lower()) if query["symbol"].isupper() else []
        return topics or self._refuse(400, -1121, "Invalid symbol.")

    def _send(self, body: str, late_s: float = 0.0) -> RestAnswer:
        message = self.venue.skewed(body.encode()).decode()
        return RestAnswer(message, headers={"X-MBX-USED-WEIGHT-1M": str(self._used)}, late_s=late_s)

    def _refuse(self, status: int, code: int, message: str, headers: Mapping[str, str] | None = None) -> RestAnswer:
        return RestAnswer(to_json({"code": code, "msg": message}), status, headers or {})


def _weight(name: str, query: Mapping[str, str]) -> int:
    if name != "depth":
        return 20 if name == "exchangeInfo" else 1
    limit = query.get("limit", "100")
    return 5 if not limit.isdigit() or int(limit) <= 100 else 25 if int(limit) <= 500 else 50


_TIMES = re.compile(rb'"(?:E|T|C|time|serverTime)":([0-9]{13,16})')
FAMILIES = tuple(
    Family(BinanceVenue(name), BinanceFuturesDialogue if name == "binance-futures" else BinanceDialogue, _TIMES, BinanceRest)
    for name in ("binance", "binance-us", "binance-jersey", "binance-futures", "binance-delivery")
)
