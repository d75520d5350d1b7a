"""OKX, which was OKEx: spot, futures, perpetual swaps, options and spreads; and its sister OKCoin. https://www.okx.com/docs-v5/en/

Two generations of the API: `v3` until 2021-12-23, `v5` since; OKCoin changed on 2023-04-27. Within each, better channels took the
place of others at the dates below; a recording holds both for a while, so a date, not what is there, says which one is read.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from ...filters import Filter
from ...messages import UNSET
from .._exchange import About, Exchange, Version
from .._feed import LiveApi
from .._mapper import Json
from . import spreads, v3, v5
from .feed import OkexFeed

_V5_SINCE = "2021-12-23T00:00:00.000Z"
_OKCOIN_V5_SINCE = "2023-04-27T00:00:00.000Z"


def _trade() -> tuple[Version, ...]:
    return (
        Version(v3.OkexV3TradeMapper, _V5_SINCE),
        Version(v5.OkexV5TradeMapper, "2023-10-19T00:00:00.000Z"),
        Version(v5.OkexV5AllTradesMapper),
    )


def _book_change(every_change_since: str) -> tuple[Version, ...]:
    return (
        Version(v3.OkexV3DepthMapper, every_change_since),
        Version(v3.OkexV3BookChangeMapper, _V5_SINCE),
        Version(v5.OkexV5BookChangeMapper, "2023-02-25T00:00:00.000Z"),
        Version(v5.OkexV5PublicBookChangeMapper, "2023-03-09T00:00:00.000Z"),
        Version(v5.OkexV5BookChangeMapper, "2026-05-21T00:00:00.000Z"),
        Version(v5.OkexV5PublicBookChangeMapper),
    )


def _book_ticker() -> tuple[Version, ...]:
    return (
        Version(v3.OkexV3BookTickerMapper, _V5_SINCE),
        Version(v5.OkexV5BookTickerMapper, "2022-05-06T00:00:00.000Z"),
        Version(v5.OkexV5BestMapper),
    )


def _derivative_ticker(until_v5: type[v3.OkexV3DerivativeTickerMapper]) -> tuple[Version, ...]:
    return (
        Version(until_v5, _V5_SINCE),
        Version(v5.OkexV5UsdIndexTickerMapper, "2023-04-10T08:40:00.000Z"),
        Version(v5.OkexV5DerivativeTickerMapper),
    )


_LIQUIDATION = (Version(v3.OkexV3LiquidationMapper, _V5_SINCE), Version(v5.OkexV5LiquidationMapper))


def read_subscription(message: Json, date_us: int, *, channels: Collection[str]) -> list[Filter] | None:
    """`{"op": "subscribe", "args": […]}` of `"spot/trade:BTC-USDT"` (v3), `{"channel": "trades", "instId": "BTC-USDT"}` (v5)."""
    if message.get("op") != "subscribe":
        return None
    filters = [_to_filter(arg) for arg in message.get("args", ())]
    return [item for item in filters if item.channel in channels]  # candles and account channels were not recorded


def _to_filter(arg: Any) -> Filter:
    if isinstance(arg, str):
        channel, _, symbol = arg.partition(":")
    else:
        channel = arg.get("channel", "")
        symbol = arg.get("instId") or arg.get("sprdId")
        if channel == "opt-summary":
            # Of a family of options, which was known by its underlying before.
            symbol = arg.get("instFamily") or arg.get("uly") or symbol
        # By type of instrument, family or currency: recordings are by instrument, and hold all of them.
    return Filter(channel, [symbol] if symbol else UNSET)


def _exchange(
    name: str,
    channels: str,
    mappers: dict[str, tuple[Version, ...]],
    *,
    docs: str = "https://www.okx.com/docs-v5/en/",
    socket_url: str = "wss://ws.okx.com:8443",
) -> Exchange:
    names = tuple(channels.split())
    subscriptions = partial(read_subscription, channels=frozenset(names))
    return Exchange(name, docs, names, mappers, subscriptions, live=LiveApi(OkexFeed, socket_url))


_V5_CHANNELS = """
    trades trades-all books-l2-tbt bbo-tbt books tickers status instruments public-struc-block-trades public-block-trades
"""
_INFORMATION = "index/ticker system/status information/sentiment information/long_short_ratio information/margin"
_CONTRACTS = """
    open-interest mark-price funding-rate price-limit index-tickers liquidations liquidation-orders taker-volume
    taker-volume-contract long-short-account-ratio long-short-account-ratio-contract
    long-short-account-ratio-contract-top-trader long-short-position-ratio-contract-top-trader
"""

EXCHANGES = (
    _exchange(
        "okex",
        f"spot/trade spot/depth spot/depth_l2_tbt spot/ticker system/status margin/interest_rate {_V5_CHANNELS} "
        "interest-rate-loan-quota vip-interest-rate-loan-quota taker-volume liquidations loan-ratio",
        {"trade": _trade(), "book_change": _book_change("2020-04-10T00:00:00.000Z"), "book_ticker": _book_ticker()},
    ),
    _exchange(
        "okex-futures",
        "futures/trade futures/depth futures/depth_l2_tbt futures/ticker futures/mark_price futures/liquidation "
        f"{_INFORMATION} {_V5_CHANNELS} {_CONTRACTS} estimated-price",
        {
            "trade": _trade(),
            "book_change": _book_change("2019-12-05T00:00:00.000Z"),
            "derivative_ticker": _derivative_ticker(v3.OkexV3DerivativeTickerMapper),
            "liquidation": _LIQUIDATION,
            "book_ticker": _book_ticker(),
        },
    ),
    _exchange(
        "okex-swap",
        "swap/trade swap/depth swap/depth_l2_tbt swap/ticker swap/funding_rate swap/mark_price swap/liquidation "
        f"{_INFORMATION} {_V5_CHANNELS} {_CONTRACTS}",
        {
            "trade": _trade(),
            "book_change": _book_change("2020-02-08T00:00:00.000Z"),
            "derivative_ticker": _derivative_ticker(v3.OkexV3SwapTickerMapper),
            "liquidation": _LIQUIDATION,
            "book_ticker": _book_ticker(),
        },
    ),
    _exchange(
        "okex-options",
        "option/trade option/trades option/depth option/depth_l2_tbt option/ticker option/summary option/instruments "
        f"index/ticker system/status {_V5_CHANNELS} opt-summary option-trades index-tickers open-interest mark-price "
        "price-limit estimated-price",
        {
            "trade": _trade(),
            "book_change": _book_change("2020-02-08T00:00:00.000Z"),
            "option_summary": (Version(v3.OkexV3OptionSummaryMapper, _V5_SINCE), Version(v5.OkexV5OptionSummaryMapper)),
            "book_ticker": _book_ticker(),
        },
    ),
    _exchange(
        "okex-spreads",
        "sprd-public-trades sprd-bbo-tbt sprd-books5 sprd-tickers",
        {
            "trade": (Version(spreads.OkexSpreadTradeMapper),),
            "book_change": (Version(spreads.OkexSpreadBookChangeMapper),),
            "book_ticker": (Version(spreads.OkexSpreadBookTickerMapper),),
        },
    ),
    _exchange(
        "okcoin",
        "spot/trade spot/depth spot/depth_l2_tbt spot/ticker system/status trades books bbo-tbt tickers",
        {
            "trade": (Version(v3.OkexV3TradeMapper, _OKCOIN_V5_SINCE), Version(v5.OkexV5TradeMapper)),
            "book_change": (
                Version(v3.OkexV3DepthMapper, "2020-02-13T00:00:00.000Z"),
                Version(v3.OkexV3BookChangeMapper, _OKCOIN_V5_SINCE),
                Version(v5.OkexV5PublicBookChangeMapper),
            ),
            "book_ticker": (Version(v3.OkexV3BookTickerMapper, _OKCOIN_V5_SINCE), Version(v5.OkexV5BestMapper)),
        },
        docs="https://www.okcoin.com/docs-v5/en/",
        socket_url="wss://real.okcoin.com:8443",
    ),
)

ABOUT = {
    "okcoin": About("what the venue sends: snapshot and changes", "OKX's sister: its channels with dates of their own."),
    "okex": About(
        "400 levels a side",
        "OKX; an account's credentials open better channels of the book.",
    ),
    "okex-futures": About("400 levels a side", "As okex; delivery futures."),
    "okex-swap": About("400 levels a side", "As okex; perpetual swaps."),
    "okex-options": About("400 levels a side", "As okex; summaries join the greeks, the ticker, open interest and mark price."),
    "okex-spreads": About("what the venue sends", "Pairs of instruments that are traded as one; at an address of its own."),
}
