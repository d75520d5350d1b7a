"""What one request of a client may ask for.

Invariant: a request that passed asks for an amount of work that is known before it begins. Each limit has an option of its own name,
and who is refused is told it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import OptionsError

__all__ = ["RequestLimits", "option_of"]


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most that is allowed, for each request of an array; see the options of the same names."""

    max_request_bytes: int
    max_merged_requests: int
    max_filters: int
    max_symbols: int
    max_data_types: int
    max_snapshot_levels: int
    max_subscription_bytes: int
    max_subscriptions: int

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> RequestLimits:
        """Those of a server."""
        return cls(**{name: settings[name] for name in cls.__struct_fields__})

    def check(self, limit: str, count: int, field: str, what: str) -> None:
        """Raises where there are more than that limit allows; `what` names them."""
        most = getattr(self, limit)
        if count > most:
            raise OptionsError(f"{field}: expected at most {most} {what}, got {count}; {option_of(limit)} allows more", field)


def option_of(limit: str) -> str:
    """The option that raises a limit."""
    return f"the server's --{limit.replace('_', '-')}"
