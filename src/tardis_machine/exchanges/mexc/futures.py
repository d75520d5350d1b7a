"""MEXC futures. https://www.mexc.com/api-docs/futures/websocket-api

A message names its channel and symbol: `{"channel": "push.deal", "symbol": "BTC_USDT", "ts": 1755487578276, "data": [{"p": 115309.8,
"v": 55, "T": 2, "t": 1755487578276, "i": "13064218826"}]}`. Numbers are JSON numbers, amounts are contracts. An update of a book has
the version that it makes, or the first and the last where it is made of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...filters import Filter
from ...messages import UNSET, BookChange, DerivativeTicker, Trade
from .._feed import Action, BookStep, FeedError, FrameKind, Handshake, Heard, kind_of_error, to_frame
from .._joined_book import JoinedBookMapper, JoinRules
from .._mapper import Json, Mapper
from .._parsing import text_of, timestamp_from_ms, verbatim
from .._ticker import TickerMapper
from .snapshots import SnapshotFeed

CHANNELS = (
    "push.deal",
    "push.depth",
    "push.depth.snapshot",
    "push.ticker",
    "push.index.price",
    "push.fair.price",
    "push.funding.rate",
    "push.contract",
)


class MexcFuturesTradeMapper(Mapper):
    channels = ("push.deal",)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") == "push.deal"

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol = message.get("symbol", UNSET)
        for deal in message["data"]:
            yield Trade(
                symbol,
                self.exchange,
                deal.get("i", UNSET),
                verbatim(deal.get("p", UNSET)),
                verbatim(deal.get("v", UNSET)),
                "buy" if deal.get("T") == 1 else "sell",
                timestamp_from_ms(deal.get("t", UNSET)),
                local_timestamp,
            )


class MexcFuturesBookChangeMapper(JoinedBookMapper):
    channels = ("push.depth", "push.depth.snapshot")
    rules = JoinRules(as_sent=True, moves_on=True)

    def accepts(self, message: Json) -> bool:
        return message.get("channel") in ("push.depth", "push.depth.snapshot")

    def map(self, message: Json, local_timestamp: str) -> Sequence[BookChange]:
        symbol, data = message.get("symbol", UNSET), message["data"]
        version, bids, asks = data.get("version", UNSET), data["bids"], data["asks"]
        if message.get("generated") is True:
            timestamp = timestamp_from_ms(data.get("timestamp", UNSET))
            return self.join_snapshot(symbol, version, bids, asks, timestamp, local_timestamp)
        first, last = data.get("begin") or version, data.get("end") or version
        timestamp = timestamp_from_ms(message.get("ts", UNSET))
        return self.join_update(symbol, first, last, UNSET, bids, asks, timestamp, local_timestamp)


class MexcFuturesDerivativeTickerMapper(TickerMapper):
    """Funding is noted, and told with the next ticker; the rate in the ticker itself is another one."""

    channels = ("push.ticker", "push.funding.rate")

    def accepts(self, message: Json) -> bool:
        return message.get("channel") in ("push.ticker", "push.funding.rate")

    def map(self, message: Json, local_timestamp: str) -> Sequence[DerivativeTicker]:
        ticker, data = self.tickers[message.get("symbol", UNSET)], message["data"]
        if message["channel"] == "push.funding.rate":
            ticker.update_funding_rate(verbatim(data.get("rate")))
            if "nextSettleTime" in data:
                ticker.update_funding_timestamp(timestamp_from_ms(data["nextSettleTime"]))
            return ()
        ticker.update_last_price(verbatim(data.get("lastPrice")))
        ticker.update_open_interest(verbatim(data.get("holdVol")))
        ticker.update_index_price(verbatim(data.get("indexPrice")))
        ticker.update_mark_price(verbatim(data.get("fairPrice")))
        ticker.update_timestamp(timestamp_from_ms(data.get("timestamp", UNSET)))
        return (ticker.to_message(local_timestamp),) if ticker.has_changed else ()


# What clients call the channels that are sent; those of snapshots are fetched.
_METHODS = {f"sub.{channel.removeprefix('push.')}": channel for channel in CHANNELS if channel != "push.depth.snapshot"}


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"method": "sub.deal", "param": {"symbol": "BTC_USDT"}}`."""
    channel = _METHODS.get(message.get("method"))
    if channel is None:
        return None
    symbol = (message.get("param") or {}).get("symbol")
    return [Filter(channel, [symbol] if symbol else [])]


class MexcFuturesFeed(SnapshotFeed):
    """Answers `{"channel": "rs.sub.deal", "data": "success", …}` or `{"channel": "rs.error", "data": "…", …}`."""

    rules = MexcFuturesBookChangeMapper.rules

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/edge")

    def subscribe(self, now_us: int) -> list[Action]:
        frames: list[Action] = []
        snapshots: list[Action] = []
        for item in self.filters:
            channel = item.channel
            method = f"sub.{channel.removeprefix('push.')}"
            if channel == "push.contract":  # one for all symbols
                frames.append(to_frame({"method": method}))
            elif channel != "push.depth.snapshot":
                symbols = list(dict.fromkeys(self.symbols(item)))
                frames += [to_frame({"method": method, "param": {"symbol": symbol}, "gzip": False}) for symbol in symbols]
                if channel == "push.depth":
                    snapshots += [self.fetch_snapshot(one, f"/api/v1/contract/depth/{one}?limit=5000") for one in symbols]
        return [*frames, *snapshots]

    def ping(self, now_us: int) -> str:
        return to_frame({"method": "ping"})

    def classify(self, message: Json) -> Heard:
        channel = message.get("channel") or ""
        if channel == "push.depth":
            return _book_step(message["symbol"], message["data"])
        if channel.startswith("push."):
            return FrameKind.DATA
        if channel == "pong":
            return FrameKind.HEARTBEAT
        is_error = channel == "rs.error" or message.get("success") is False or "error" in message
        return FrameKind.ERROR if is_error else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        said = next((message[name] for name in ("data", "message", "error") if message.get(name)), "an error without details")
        details = text_of(said)
        return FeedError(kind_of_error(details), details)

    def read_snapshot(self, symbol: str, answer: Json) -> tuple[int, Json] | None:
        data = answer.get("data")
        if answer.get("success") is not True or answer.get("code") != 0 or type(data) is not dict:
            return None
        version = data.get("version")
        if type(version) is not int or version < 0 or type(data.get("asks")) is not list or type(data.get("bids")) is not list:
            return None
        snapshot = {name: data[name] for name in ("cts", "asks", "bids", "timestamp", "version") if name in data}
        return version, {"channel": "push.depth.snapshot", "symbol": symbol, "generated": True, "data": snapshot}


def _book_step(symbol: str, data: Json) -> BookStep:
    first, last = data.get("begin"), data.get("end")
    if first and last:
        return BookStep(symbol, False, last, first - 1, first)
    # Without these the version alone does not tell how many were put together.
    return BookStep(symbol, False, data["version"])
