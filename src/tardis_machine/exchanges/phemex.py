"""Phemex. https://phemex-docs.github.io/

A message is known by the field that it has: `{"book": {"asks": [], "bids": [[87950000, 46385]]}, "symbol": "BTCUSD", "type":
"incremental", "timestamp": 1585526459126872850}`. Prices and amounts are integers: of spot, 1e8 times as large; elsewhere only prices,
1e4 times. Perpetuals in USDT and USDC have channels of their own (`_p`), where numbers are text. Times are nanoseconds, read as doubles.

Symbols are spelled in both cases (`sBTCUSDT` is spot, `u1000BONKUSDT` a perpetual) and told in upper case. Users may type them so too:
which names that begin with S are perpetuals must be known. `sequence` counts for many books at once, so that it shows no gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from ..filters import Filter
from ..messages import UNSET, BookChange, BookLevel, DerivativeTicker, Trade, to_timestamp
from ._exchange import About, Exchange, Version
from ._feed import BookStep, Feed, FeedError, FrameKind, Handshake, Heard, LiveApi, kind_of_error, to_frame
from ._mapper import Json, Mapper
from ._parsing import levels, text_of, to_number, verbatim
from ._ticker import TickerMapper

_CHANNELS = ("book", "orderbook_p", "trades", "trades_p", "market24h", "spot_market24h", "perp_market24h_pack_p")
# Spot OL/USDT, which in upper case would be the perpetual SOLUSDT.
_LEFT_OUT = "sOLUSDT"

# How perpetuals begin that begin with S; all else that does is spot.
_PERPETUALS_IN_S = tuple(
    """
    SOLUSD SUSHIUSD SNXUSD SANDUSD SRMUSD SKLUSD SXPUSD STORJUSD SFPUSD STGUSD SLPUUSD SPELLUSD SSVUSDT SSVUSD STXUSD SUIUSD
    STMXUSD SEIUSD STRUSD STPTUSD SNTUSD STEEMUSD SUPERUSD SLERFUSD SAGAUSD SYNUSD SYSUSD SUNUSD SUNDOGUSD SCRUSD SANTOSUSD
    SAFEUSD SWELLUSD SCRTUSD SPXUSD SWARMSUSD SONICUSD SHELLUSD SIRENUSD SERAPHUSD STOUSD SIGNUSD STICKMANUSD SYRUPUSD SXTUSD
    SKYAIUSD SCAUSD SAROSUSD SOONUSD SOPHUSD SKATEUSD SQDUSD SLPUSD STRAXUSD STRKUSD SOLVUSD SPKUSDT SAHARAUSDT SOLAMIUSDT
    SAPIENUSDT SOMIUSDT SKYUSDT STBLUSDT STABLEUSDT SENTUSDT SPORTFUNUSDT SKRUSDT SPACEUSDT SPACEXUSDT STARUSDT SOXLUSDT SPCXUSDT
    SAMSUNGUSDT SKHYNIXUSDT SLXUSDT SPX500USDT STXXUSDT SPYXUSDT SP500USDT SNDKUSDT SKHYUSDT SMCIUSDT SONYUSDT SQQQUSDT STRCUSDT
    """.split()  # noqa: SIM905 - as literals they would fill the file
)
# The perpetual of the coin S: many a spot symbol begins so.
_PERPETUAL_OF_S = "SUSDT"
# Perpetuals that were traded for a short while, and have the channels of those in USDT.
_PILOTS = frozenset(
    """
    ANGLERFISHPUSD BNBCARDPUSD BNBXBTPUSD BUTTCOINPUSD CRYPTOAIPUSD CTDPUSD DOGEAIPUSD FULLSENDPUSD GHIBLIPUSD GREED3PUSD IMGPUSD
    MCPOSPUSD PAINPUSD PERRYPUSD SIRENPUSD TITCOINPUSD TOLYPUSD WILDNOUTPUSD
    """.split()  # noqa: SIM905 - as literals they would fill the file
)
_DIGITS = tuple("0123456789")


def _is_perpetual(symbol: str) -> bool:
    """Of a symbol as it was typed. What ends in a digit is a future."""
    if symbol.endswith(_DIGITS) or symbol.startswith("s"):
        return False
    return not symbol.startswith("S") or symbol == _PERPETUAL_OF_S or symbol.startswith(_PERPETUALS_IN_S)


def _spelled(symbol: str) -> str:
    """`SBTCUSDT` is sBTCUSDT, `U1000BONKUSDT` u1000BONKUSDT; all else is as typed."""
    if symbol in _PILOTS:
        return symbol
    is_spot = symbol.startswith("S") and not symbol.endswith(_DIGITS) and not _is_perpetual(symbol)
    if is_spot or symbol.startswith("U100") or symbol == "CETHUSD":
        return symbol[0].lower() + symbol[1:]
    return symbol


def _has_own_channels(symbol: str) -> bool:
    """Whether it is of those whose channels end in `_p`."""
    spelled = _spelled(symbol)
    return spelled in _PILOTS or (_is_perpetual(symbol) and spelled.endswith(("USDT", "USDC")))


class PhemexMapper(Mapper):
    """What these mappers share: the first of their channels has integers, the second has text, and a symbol is in one of them."""

    def filters(self, symbols: Sequence[str] | None) -> list[Filter]:
        integers, texts = self.channels
        if not symbols:
            return [Filter(integers), Filter(texts)]
        of_texts = [_spelled(symbol) for symbol in symbols if _has_own_channels(symbol)]
        of_integers = [_spelled(symbol) for symbol in symbols if not _has_own_channels(symbol)]
        return [Filter(channel, some) for channel, some in ((texts, of_texts), (integers, of_integers)) if some]


def _timestamp_from_ns(value: Any) -> str | None:
    """Nanoseconds, divided as a double, which shows: a double does not hold them all."""
    micros = (float(value) if type(value) is int else to_number(value)) / 1000.0
    return to_timestamp(math.floor(micros)) if -_LAST_US <= micros <= _LAST_US else None


_LAST_US = 8.64e18  # as far from 1970 as a JavaScript date goes


def _scaled(value: Any, scale: float) -> float:
    """A number that is written `scale` times as large; what is no number is NaN."""
    if type(value) is not int:
        value = to_number(value)
        if math.isnan(value):
            return math.nan
    return to_number(value / scale)


class PhemexTradeMapper(PhemexMapper):
    channels = ("trades", "trades_p")

    def accepts(self, message: Json) -> bool:
        # A snapshot is of the past.
        return message.get("type") == "incremental" and ("trades" in message or "trades_p" in message)

    def map(self, message: Json, local_timestamp: str) -> Iterator[Trade]:
        symbol = message.get("symbol")
        if symbol == _LEFT_OUT:
            return
        is_scaled = "trades" in message
        for row in message["trades" if is_scaled else "trades_p"]:
            time, side, price, amount = row if len(row) == 4 else _fields(row, 4)
            if is_scaled:
                price_scale, amount_scale = _scales(symbol)
                price, amount = _scaled(price, price_scale), _scaled(amount, amount_scale)
            else:
                price, amount = to_number(price), to_number(amount)
            yield Trade(
                symbol.upper(),
                self.exchange,
                UNSET,
                price,
                amount,
                "buy" if side == "Buy" else "sell",
                _timestamp_from_ns(time),
                local_timestamp,
            )


def _fields(row: Sequence[Any], count: int) -> Sequence[Any]:
    """The first fields of a row, which may have fewer."""
    return [*row, *(UNSET,) * count][:count]


@lru_cache(maxsize=10_000)
def _scales(symbol: str) -> tuple[float, float]:
    """Of prices and of amounts."""
    return (1e8, 1e8) if symbol.startswith("s") else (1e4, 1.0)


class PhemexBookChangeMapper(PhemexMapper):
    channels = ("book", "orderbook_p")

    def accepts(self, message: Json) -> bool:
        return "book" in message or "orderbook_p" in message

    def map(self, message: Json, local_timestamp: str) -> list[BookChange]:
        symbol = message.get("symbol")
        if symbol == _LEFT_OUT:
            return []
        if "book" in message:
            book = message["book"]
            bids, asks = _integer_levels(book["bids"], symbol), _integer_levels(book["asks"], symbol)
        else:
            book = message["orderbook_p"]
            bids, asks = levels(book["bids"]), levels(book["asks"])
        return [
            BookChange(
                symbol.upper(),
                self.exchange,
                message.get("type") == "snapshot",
                bids,
                asks,
                _timestamp_from_ns(message.get("timestamp", UNSET)),
                local_timestamp,
            )
        ]


def _integer_levels(pairs: Sequence[Sequence[Any]], symbol: str) -> list[BookLevel]:
    price_scale, amount_scale = _scales(symbol)
    return [BookLevel(_scaled(pair[0], price_scale), _scaled(pair[1], amount_scale)) for pair in pairs]


class PhemexDerivativeTickerMapper(PhemexMapper, TickerMapper):
    """One derivative a message, or a pack of them: `{"method": "perp_market24h_pack_p.update", "data": [["BTCUSDT", …], …]}`."""

    channels = ("market24h", "perp_market24h_pack_p")

    def accepts(self, message: Json) -> bool:
        return "market24h" in message or message.get("method") == "perp_market24h_pack_p.update"

    def map(self, message: Json, local_timestamp: str) -> Iterator[DerivativeTicker]:
        timestamp = _timestamp_from_ns(message.get("timestamp", UNSET))
        if "market24h" in message:
            row = message["market24h"]
            ticker = self.tickers[row.get("symbol", UNSET)]
            ticker.update_funding_rate(_scaled(row.get("fundingRate", UNSET), 1e8))
            ticker.update_predicted_funding_rate(_scaled(row.get("predFundingRate", UNSET), 1e8))
            ticker.update_index_price(_scaled(row.get("indexPrice", UNSET), 1e4))
            ticker.update_mark_price(_scaled(row.get("markPrice", UNSET), 1e4))
            ticker.update_open_interest(verbatim(row.get("openInterest", UNSET)))
            ticker.update_last_price(_scaled(row.get("close", UNSET), 1e4))
            ticker.update_timestamp(timestamp)
            if ticker.has_changed:
                yield ticker.to_message(local_timestamp)
            return
        for fields in message["data"]:
            symbol, _, _, _, last, _, _, interest, index, mark, funding, predicted = _fields(fields, 12)
            ticker = self.tickers[symbol]
            ticker.update_funding_rate(to_number(funding))
            ticker.update_predicted_funding_rate(to_number(predicted))
            ticker.update_index_price(to_number(index))
            ticker.update_mark_price(to_number(mark))
            ticker.update_open_interest(to_number(interest))
            ticker.update_last_price(to_number(last))
            ticker.update_timestamp(timestamp)
            if ticker.has_changed:
                yield ticker.to_message(local_timestamp)


# The methods that ask for channels of another name, and the channels that are one for all symbols.
_METHODS = {"book": "orderbook", "trades": "trade", "trades_p": "trade_p"}
_CHANNELS_OF = {_METHODS.get(channel, channel): channel for channel in _CHANNELS}
_OF_ALL_SYMBOLS = frozenset(("market24h", "spot_market24h", "perp_market24h_pack_p"))


def read_subscription(message: Json, date_us: int) -> list[Filter] | None:
    """`{"id": 1, "method": "orderbook.subscribe", "params": ["BTCUSD"]}`. Behind the symbol may stand how deep the book is to be."""
    if "method" not in message:
        return None
    name, _, verb = str(message["method"]).partition(".")
    if verb != "subscribe" or name not in _CHANNELS_OF:
        return []  # a ping; candles and accounts were not recorded
    channel, params = _CHANNELS_OF[name], message.get("params")
    return [Filter(channel) if params is None else Filter(channel, [one for one in params if isinstance(one, str)])]


class PhemexFeed(Feed):
    """Answers `{"id": 1, "error": null, "result": {"status": "success"}}`, or with an error in it. It sends a book's snapshot, and again
    every minute, and closes what says nothing for 30 seconds."""

    # It takes 101.
    max_subscriptions = 100
    subscribe_interval_s = 0.1
    needs_symbols = False

    def handshake(self, access: bytes | None, now_us: int) -> Handshake:
        return Handshake("/")

    def subscribe(self, now_us: int) -> list[str]:
        frames: list[str] = []
        for item in self.filters:
            symbols = () if item.channel in _OF_ALL_SYMBOLS or item.symbols is UNSET else dict.fromkeys(item.symbols)
            method = f"{_METHODS.get(item.channel, item.channel)}.subscribe"
            for params in [[symbol] for symbol in symbols] or [[]]:
                frames.append(to_frame({"id": len(frames), "method": method, "params": params}))
        return frames

    def ping(self, now_us: int) -> str:
        return to_frame({"id": 0, "method": "server.ping", "params": []})

    def classify(self, message: Json) -> Heard:
        if "book" in message or "orderbook_p" in message:
            return BookStep(message["symbol"], message["type"] == "snapshot")
        if "sequence" in message or "timestamp" in message:
            return FrameKind.DATA
        if message.get("error") is not None:
            return FrameKind.ERROR
        return FrameKind.HEARTBEAT if message.get("result") == "pong" else FrameKind.ANSWER

    def error(self, message: Json) -> FeedError:
        error = message["error"]
        details = f"{error.get('code', '')} {error.get('message', '')}".strip() if isinstance(error, dict) else text_of(error)
        return FeedError(kind_of_error(details), details or "an error without details")


EXCHANGES = (
    Exchange(
        name="phemex",
        docs="https://phemex-docs.github.io/",
        channels=_CHANNELS,
        mappers={
            "trade": (Version(PhemexTradeMapper),),
            "book_change": (Version(PhemexBookChangeMapper),),
            "derivative_ticker": (Version(PhemexDerivativeTickerMapper),),
        },
        subscriptions=read_subscription,
        live=LiveApi(PhemexFeed, "wss://ws.phemex.com"),
    ),
)

ABOUT = {
    "phemex": About(
        "30 levels a side",
        "Prices are scaled integers but for perpetuals in USDT and USDC; which names that begin with S are perpetuals must be known.",
    ),
}
