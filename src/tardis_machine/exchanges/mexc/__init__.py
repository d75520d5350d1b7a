"""MEXC: spot, whose messages are Protobuf, and futures. https://www.mexc.com/api-docs/

Both build books from a REST snapshot and the updates around it, by their versions.
"""

from __future__ import annotations

from .._exchange import About, Exchange, Version
from .._feed import LiveApi
from . import futures, spot

EXCHANGES = (
    Exchange(
        name="mexc",
        docs="https://www.mexc.com/api-docs/spot-v3/websocket-market-streams",
        channels=spot.CHANNELS,
        mappers={
            "trade": (Version(spot.MexcTradeMapper),),
            "book_change": (Version(spot.MexcBookChangeMapper),),
            "book_ticker": (Version(spot.MexcBookTickerMapper),),
        },
        subscriptions=spot.read_subscription,
        live=LiveApi(spot.MexcFeed, "wss://wbs-api.mexc.com", "https://api.mexc.com"),
    ),
    Exchange(
        name="mexc-futures",
        docs="https://www.mexc.com/api-docs/futures/websocket-api",
        channels=futures.CHANNELS,
        mappers={
            "trade": (Version(futures.MexcFuturesTradeMapper),),
            "book_change": (Version(futures.MexcFuturesBookChangeMapper),),
            "derivative_ticker": (Version(futures.MexcFuturesDerivativeTickerMapper),),
        },
        subscriptions=futures.read_subscription,
        live=LiveApi(futures.MexcFuturesFeed, "wss://contract.mexc.com", "https://contract.mexc.com"),
    ),
)

ABOUT = {
    "mexc": About(
        "5,000 levels a side from a snapshot over REST, then every change", "Live frames are Protobuf, recorded as JSON."
    ),
    "mexc-futures": About("5,000 levels a side from a snapshot over REST, then every change", "Amounts are contracts."),
}
