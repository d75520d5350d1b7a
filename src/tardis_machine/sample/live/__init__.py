"""Simulated exchanges: WebSocket and REST servers that speak each family's live protocol, and misbehave on command.

    async with SimulatedExchanges(seed=1, exchanges=["bitmex"]) as simulated:
        simulated.urls                                      # {"bitmex": "ws://127.0.0.1:…/bitmex"}, as `exchange_urls` takes them
        simulated.misbehave("bitmex", Silence(seconds=30))
        simulated.true_book("bitmex", "XBTUSD")             # what a client must have by now

`python -m tardis_machine.sample.live --port 9000` serves them on their own, with a control address for other processes.
"""

from .misbehaviour import (
    ClockSkew,
    Close,
    DropUpdates,
    ErrorFrame,
    Garbage,
    HalfFrame,
    Misbehaviour,
    Refuse,
    Reset,
    Silence,
    Snapshot,
)
from .server import SentMessage, SimulatedExchanges

__all__ = [
    "ClockSkew",
    "Close",
    "DropUpdates",
    "ErrorFrame",
    "Garbage",
    "HalfFrame",
    "Misbehaviour",
    "Refuse",
    "Reset",
    "SentMessage",
    "Silence",
    "SimulatedExchanges",
    "Snapshot",
]
