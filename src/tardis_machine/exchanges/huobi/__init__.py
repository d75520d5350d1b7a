"""Huobi, now HTX: spot, futures, swaps of both margins, and the options of 2021. https://www.htx.com/en-us/opend/newApiPages/

A message names its channel, which names the symbol: `{"ch": "market.btcusdt.trade.detail", "ts": 1572911088789, "tick": {…}}`. What was
polled has `data` for `tick`. Funding and liquidations are notifications, which name a topic. Numbers are JSON numbers, times
milliseconds. Spot books were whole (`depth`) before 2020-07-03; since then they are changes (`mbp`) and snapshots that are asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from ...filters import Filter
from .._exchange import About, Exchange, Version
from .._feed import LiveApi
from .._mapper import Json
from . import derivatives, market, options
from .envelope import with_long_ids
from .feed import HuobiFeed


def read_subscription(message: Json, date_us: int, *, channels: Collection[str]) -> list[Filter] | None:
    """`{"sub": "market.btcusdt.depth.step0", "id": "id2"}`; notifications are no part of it."""
    if "sub" not in message:
        return None
    topic = message["sub"]
    parts = topic.split(".") if isinstance(topic, str) else []
    # Candles were not recorded.
    return [Filter(parts[2], [parts[1]])] if len(parts) > 2 and parts[2] in channels else []


def _exchange(name: str, docs: str, channels: str, mappers: Mapping[str, tuple[Version, ...]], live: LiveApi | None) -> Exchange:
    names = tuple(channels.split())
    subscriptions = partial(read_subscription, channels=frozenset(names))
    return Exchange(name, docs, names, mappers, subscriptions, live=live, prepare=with_long_ids)


_TRADE = (Version(market.HuobiTradeMapper),)
_BOOK_CHANGE = (Version(market.HuobiBookChangeMapper),)
_BOOK_TICKER = (Version(market.HuobiBookTickerMapper),)
_DERIVATIVES = (
    "depth detail trade bbo basis liquidation_orders contract_info open_interest elite_account_ratio elite_position_ratio"
)
_DERIVATIVES_LIVE = LiveApi(HuobiFeed, "wss://api.hbdm.com", "https://api.hbdm.com")
_SWAPS = {
    "trade": _TRADE,
    "book_change": _BOOK_CHANGE,
    "derivative_ticker": (Version(derivatives.HuobiSwapTickerMapper),),
    "liquidation": (Version(derivatives.HuobiLiquidationMapper),),
    "book_ticker": _BOOK_TICKER,
}

EXCHANGES = (
    _exchange(
        "huobi",
        "https://huobiapi.github.io/docs/spot/v1/en/",
        "depth detail trade bbo mbp etp mbp.20",
        {
            "trade": _TRADE,
            "book_change": (
                Version(market.HuobiBookChangeMapper, "2020-07-03T00:00:00.000Z"),
                Version(market.HuobiMbpBookChangeMapper),
            ),
            "book_ticker": _BOOK_TICKER,
        },
        LiveApi(HuobiFeed, "wss://api-aws.huobi.pro"),
    ),
    _exchange(
        "huobi-dm",
        "https://huobiapi.github.io/docs/dm/v1/en/",
        _DERIVATIVES,
        {
            "trade": _TRADE,
            "book_change": _BOOK_CHANGE,
            "derivative_ticker": (Version(derivatives.HuobiDerivativeTickerMapper),),
            "liquidation": (Version(derivatives.HuobiFuturesLiquidationMapper),),
            "book_ticker": _BOOK_TICKER,
        },
        _DERIVATIVES_LIVE,
    ),
    _exchange(
        "huobi-dm-swap",
        "https://huobiapi.github.io/docs/coin_margined_swap/v1/en/",
        f"{_DERIVATIVES} funding_rate",
        _SWAPS,
        _DERIVATIVES_LIVE,
    ),
    _exchange(
        "huobi-dm-linear-swap",
        "https://huobiapi.github.io/docs/usdt_swap/v1/en/",
        f"{_DERIVATIVES} funding_rate",
        _SWAPS,
        _DERIVATIVES_LIVE,
    ),
    # Its options were delisted in June 2021.
    _exchange(
        "huobi-dm-options",
        "https://huobiapi.github.io/docs/option/v1/en/",
        "trade detail depth bbo open_interest option_market_index option_index",
        {
            "trade": _TRADE,
            "book_change": _BOOK_CHANGE,
            "option_summary": (Version(options.HuobiOptionSummaryMapper),),
        },
        None,
    ),
)

ABOUT = {
    "huobi": About(
        "400 levels a side, by changes and a snapshot that is asked for; whole before 2020-07-03",
        "Ids of trades have more digits than a double holds: all are kept.",
    ),
    "huobi-dm": About(
        "150 levels a side", "A future goes by its alias (BTC_CW); liquidations wait for the message that tells it."
    ),
    "huobi-dm-swap": About(
        "150 levels a side", "Prices and funding of a ticker are heard at two addresses; open interest is polled."
    ),
    "huobi-dm-linear-swap": About(
        "150 levels a side", "Prices and funding of a ticker are heard at two addresses; open interest is polled."
    ),
    "huobi-dm-options": About(
        "what the venue sent", "Delisted after some months; its summaries join three channels.", closed="2021-06-26"
    ),
}
