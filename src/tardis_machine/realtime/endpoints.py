"""Where exchanges are: their own addresses, or those of a proxy or a stand-in.

Invariant: an override takes the place of an exchange's base alone; path and query are the feed's.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from ..errors import OptionsError
from ..exchanges import EXCHANGES, Handshake, LiveApi

__all__ = ["check_urls", "rest_url", "socket_url"]

_REST = "-rest"


def check_urls(urls: Mapping[str, str]) -> dict[str, str]:
    """The overrides, `bitmex` for a WebSocket and `binance-rest` for REST; OptionsError where one is none."""
    for name, url in urls.items():
        is_rest = name.endswith(_REST)
        exchange, schemes = name.removesuffix(_REST), ("http", "https") if is_rest else ("ws", "wss")
        known = EXCHANGES.get(exchange)
        if known is None or known.live is None:
            raise OptionsError(f"exchange-urls: expected an exchange that has live data, with or without -rest, got {name!r}")
        if is_rest and not known.live.rest_url:
            raise OptionsError(f"exchange-urls: live data of {exchange} uses no REST API, so {name!r} has no effect")
        parts = urlsplit(url)
        if parts.scheme not in schemes or not parts.hostname:
            raise OptionsError(
                f"exchange-urls: expected a URL that starts with {schemes[0]}:// or {schemes[1]}:// for {name}, got {url!r}"
            )
    return dict(urls)


def socket_url(exchange: str, live: LiveApi, handshake: Handshake, urls: Mapping[str, str]) -> str:
    """What a feed connects to."""
    return urls.get(exchange, handshake.base_url or live.socket_url).rstrip("/") + handshake.path


def rest_url(exchange: str, live: LiveApi, path: str, urls: Mapping[str, str]) -> str:
    """What a feed fetches from."""
    return urls.get(f"{exchange}{_REST}", live.rest_url).rstrip("/") + path
