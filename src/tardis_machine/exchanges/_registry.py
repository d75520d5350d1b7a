"""The registry of exchanges: which there are, and the module that each is in.

Invariant: a module is imported, and what it declares is validated, only when one of its exchanges is asked for; names need no import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module

from ..brief import brief
from ..errors import OptionsError
from ._exchange import About, Exchange, validate

__all__ = ["EXCHANGES", "EXCHANGE_MODULES", "Registry", "exchange_named"]

EXCHANGE_MODULES: Mapping[str, str] = {
    "ascendex": "ascendex",
    "aster": "aster",
    "aster-futures": "aster",
    "binance": "binance",
    "binance-us": "binance",
    "binance-jersey": "binance",
    "binance-futures": "binance",
    "binance-delivery": "binance",
    "binance-dex": "binance_dex",
    "binance-european-options": "binance_european_options",
    "bitfinex": "bitfinex",
    "bitfinex-derivatives": "bitfinex",
    "bitflyer": "bitflyer",
    "bitget": "bitget",
    "bitget-futures": "bitget",
    "bitmex": "bitmex",
    "bitnomial": "bitnomial",
    "bitstamp": "bitstamp",
    "blockchain-com": "blockchain_com",
    "bullish": "bullish",
    "bybit": "bybit",
    "bybit-spot": "bybit",
    "bybit-options": "bybit",
    "coinbase": "coinbase",
    "coinbase-international": "coinbase_international",
    "coinflex": "coinflex",
    "crypto-com": "crypto_com",
    "cryptofacilities": "cryptofacilities",
    "delta": "delta",
    "deribit": "deribit",
    "dydx": "dydx",
    "dydx-v4": "dydx",
    "ftx": "ftx",
    "ftx-us": "ftx",
    "gate-io": "gate_io",
    "gate-io-futures": "gate_io",
    "gemini": "gemini",
    "hitbtc": "hitbtc",
    "huobi": "huobi",
    "huobi-dm": "huobi",
    "huobi-dm-swap": "huobi",
    "huobi-dm-linear-swap": "huobi",
    "huobi-dm-options": "huobi",
    "hyperliquid": "hyperliquid",
    "kraken": "kraken",
    "kucoin": "kucoin",
    "kucoin-futures": "kucoin",
    "lighter": "lighter",
    "mexc": "mexc",
    "mexc-futures": "mexc",
    "okcoin": "okex",
    "okex": "okex",
    "okex-futures": "okex",
    "okex-swap": "okex",
    "okex-options": "okex",
    "okex-spreads": "okex",
    "phemex": "phemex",
    "poloniex": "poloniex",
    "polymarket": "polymarket",
    "mango": "serum",
    "serum": "serum",
    "star-atlas": "serum",
    "upbit": "upbit",
    "woo-x": "woo_x",
}
"""Name to module of this package; an exchange is added with one line here. A module has `EXCHANGES: tuple[Exchange, ...]`
and `ABOUT: dict[str, About]`."""


class Registry(Mapping[str, Exchange]):
    """Exchanges by name, in the order of the table. Names are known at once; the exchange is loaded when it is looked up."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        self._loaded: dict[str, Exchange] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __getitem__(self, name: str) -> Exchange:
        if name not in self._loaded:
            self._load(self._modules[name])
        return self._loaded[name]

    def _load(self, module: str) -> None:
        family = import_module(f".{module}", __package__)
        declared: tuple[Exchange, ...] = family.EXCHANGES
        for exchange in declared:
            validate(exchange)
        names = sorted(exchange.name for exchange in declared)
        registered = sorted(name for name, place in self._modules.items() if place == module)
        if names != registered:
            raise ValueError(
                f"the module {module} declares {', '.join(names)}, but the registry has {', '.join(registered)} for it"
            )
        about: Mapping[str, About] = family.ABOUT
        if sorted(about) != names:
            raise ValueError(f"the module {module} declares {', '.join(names)}, but is ABOUT {', '.join(sorted(about))}")
        self._loaded.update({exchange.name: replace(exchange, about=about[exchange.name]) for exchange in declared})


EXCHANGES = Registry(EXCHANGE_MODULES)
"""Every exchange by name; to iterate over its values loads them all."""


def exchange_named(name: object) -> Exchange:
    """The exchange of that name; OptionsError where there is none, as the name is a user's."""
    if isinstance(name, str) and name in EXCHANGES:
        return EXCHANGES[name]
    raise OptionsError(f"exchange: expected one of {', '.join(sorted(EXCHANGES))}, got {brief(name)}", "exchange")
