"""What the conformance suite must know of a bus to test it: how to make it, to read it back by other means, and to break it.

A new bus brings one subclass of this, in `tests/contract/buses/<prefix>.py`: the suite, the fault run, `tests.with_bus` and the
benchmarks find it there by the registry of buses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from tardis_machine.eventbus import plan_bus
from tardis_machine.eventbus.publisher import BusPlan
from tardis_machine.settings import from_keywords
from tardis_machine.settings.buses import bus_options

Fault = Literal["gone", "restart", "hang", "cut", "partial", "throttle", "error", "some", "expired"]
ALL_FAULTS: tuple[Fault, ...] = ("gone", "restart", "hang", "cut", "partial")
"""gone: not there, then there again. restart: killed and started anew, keeping what it confirmed. hang: there, but answers nothing,
for longer than the bus waits. cut: connections break, the service stays. partial: it refuses what goes to the destination that was
made last, and takes the rest.

Beside these, which every service has or can't have, there are those that some answer with: throttle: too much at once. error: it
is broken inside. some: of a call it refuses some records. expired: credentials are no longer good."""


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
    own_faults: ClassVar[Sequence[Fault]] = ()
    """What it can answer with instead of working; the fault run injects these too."""
    carries_key: ClassVar[bool] = True
    """Whether a consumer sees the key."""
    in_order: ClassVar[Mapping[str, Any]] = {}
    """Options with which it keeps order for a key through every fault, where by default it gives that up for speed."""
    key_option: ClassVar[str] = "key-template"
    """The option that makes it."""
    burst: ClassVar[int] = 60
    """How many messages come at once while a fault lasts; fewer where the service is a slow one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def at_speed(cls, folder: Path) -> BusUnderTest:
        """In front of a service that is set up for many events at once, where the suite needs another."""
        return cls(folder)

    @abstractmethod
    def keywords(self) -> dict[str, Any]:
        """The options that make it work, as `TardisMachine(kafka={…})` takes them; its base destination is there."""

    def direct_keywords(self) -> dict[str, Any]:
        """The same with nothing of the tests between the bus and its service, for benchmarks."""
        return self.keywords()

    @abstractmethod
    def destination_option(self) -> tuple[str, str]:
        """The option that routes payload cases, and the base destination."""

    @abstractmethod
    def new_destination(self, name: str) -> str:
        """A further destination, made where the service needs that."""

    @abstractmethod
    def read_back(self) -> list[Delivered]:
        """All records that the service has, those of one destination and key in the order of their arrival."""

    def each_record(self) -> Iterator[Delivered]:
        """The same one by one, for runs of more records than a list should hold."""
        yield from self.read_back()

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

    def flags(self, **keywords: Any) -> list[str]:
        """The bus with further options, for a command line."""
        by_name = {name: option for option in bus_options(self.prefix) for name in option.names}
        flags = []
        for keyword, value in (self.keywords() | keywords).items():
            option = by_name[f"{self.prefix}-{keyword.replace('_', '-')}"]
            flags.append(f"{option.flag}={option.text_of(value)}")
        return flags


def load_bus(prefix: str) -> type[BusUnderTest]:
    """The class that `tests.contract.buses.<prefix>` has for it; not one that is derived from it there."""
    module = import_module(f"tests.contract.buses.{prefix}")
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, BusUnderTest)]
    own = [kind for kind in kinds if kind.__module__ == module.__name__ and kind.prefix == prefix]
    [found] = [kind for kind in own if not any(base in own for base in kind.__bases__)]
    return found
