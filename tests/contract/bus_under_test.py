"""What the conformance suite must know of a bus to test it: how to make it, to read it back by other means, and to break it.

A new bus brings one subclass of this, and one class `TestItsName(BusConformance)` whose fixture `bus` gives it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from tardis_machine.eventbus import plan_bus
from tardis_machine.eventbus.publisher import BusPlan
from tardis_machine.settings import from_keywords

Fault = Literal["gone", "restart", "hang", "cut", "partial"]
ALL_FAULTS: tuple[Fault, ...] = ("gone", "restart", "hang", "cut", "partial")
"""gone: not there, then there again. restart: killed and started anew, keeping what it confirmed. hang: there, but answers nothing,
for longer than the bus waits. cut: connections break, the service stays. partial: it refuses what goes to the destination that was
made last, and takes the rest."""


class Delivered(msgspec.Struct):
    """A record as an independent consumer sees it."""

    destination: str
    key: str
    headers: dict[str, str]
    value: bytes


class Misconfiguration(msgspec.Struct):
    """Options that are wrong, and what the error must say; `keywords` replace those that work."""

    keywords: Mapping[str, Any]
    says: str
    """A regular expression."""


class BusUnderTest(ABC):
    """One bus in front of its real service, for one test."""

    prefix: ClassVar[str]
    """As its options begin."""
    faults: ClassVar[Sequence[Fault]]
    """What can be done to its service."""
    cannot: ClassVar[Mapping[Fault, str]]
    """What can't, and why."""
    carries_key: ClassVar[bool] = True
    """Whether a consumer sees the key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def keywords(self) -> dict[str, Any]:
        """The options that make it work, as `TardisMachine(kafka={…})` takes them; its base destination is there."""

    @abstractmethod
    def destination_option(self) -> tuple[str, str]:
        """The option that routes payload cases, and the base destination."""

    @abstractmethod
    def new_destination(self, name: str) -> str:
        """A further destination, made where the service needs that."""

    @abstractmethod
    def read_back(self) -> list[Delivered]:
        """All records that the service has, those of one destination and key in the order of their arrival."""

    @abstractmethod
    def inject(self, fault: Fault) -> None:
        """Begins a fault."""

    @abstractmethod
    def heal(self) -> None:
        """Ends it."""

    @abstractmethod
    def misconfigurations(self) -> Sequence[Misconfiguration]:
        """What must be refused at the start, by name."""

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """Ends what the test began."""

    def plan(self, **keywords: Any) -> BusPlan:
        """The bus with further options, through the settings as a user's would go."""
        given = {
            **self.keywords(),
            "dead-letter-dir": self.folder / "dead-letters",
            "max-batch-delay-ms": 20,
            "retry-backoff-ms": 20,
            "retry-backoff-max-ms": 200,
            **keywords,
        }
        settings = from_keywords({self.prefix: given}, {})
        return plan_bus(self.prefix, settings.for_bus(self.prefix))
