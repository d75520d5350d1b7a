"""Which account a live feed speaks for: credentials that were given, or those of the environment.

Invariant: a feed gets the credentials that it names and no others, and no secret among them reaches a log.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import OptionsError
from ..exchanges import EXCHANGES, Credentials, LiveApi, exchange_named
from ..telemetry import hide

__all__ = ["check_credentials", "conceal", "find_credentials"]


def check_credentials(given: Mapping[str, str]) -> Mapping[str, str]:
    """The same; OptionsError where a name is that of no exchange's credential."""
    if given:
        known = {name for exchange in EXCHANGES.values() for name in _names(exchange.live)}
        for name in given:
            if name not in known:
                raise OptionsError(f"exchange-credentials: expected {', '.join(sorted(known))}, got {name!r}")
    return given


def find_credentials(exchange: str, given: Mapping[str, str]) -> Credentials:
    """What the exchange's feed can use: what was given, else what the environment has."""
    names = _names(exchange_named(exchange).live)
    credentials = Credentials({name: value for name in names if (value := given.get(name) or os.environ.get(name))})
    conceal(exchange, credentials)
    return credentials


def conceal(exchange: str, credentials: Credentials) -> None:
    """Keeps the secrets among them out of the logs of this process."""
    live = exchange_named(exchange).live
    if live is not None:
        hide(*(credentials[name] for name in live.feed.credential_names if name in credentials))


def _names(live: LiveApi | None) -> tuple[str, ...]:
    return () if live is None else (*live.feed.credential_names, *live.feed.account_flags)
