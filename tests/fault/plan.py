"""What is done to brokers and to the machine, and when: drawn once from a seed.

Invariant: the same seed gives the same plan; every fault that can be had is in it as often as asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tests.contract.bus_under_test import ALL_FAULTS, Fault

__all__ = ["MachineFault", "Strike", "make_plan"]

MachineFault = Literal["kill", "kill worker", "kill live", "descriptors", "full disk", "clock back"]
"""kill: -9, and started again on the same spool and port. kill worker, kill live: -9 to one of its processes. descriptors: it may open
nothing more. full disk: under spool and ledger. clock back: the time of day, by up to an hour, and it stays so."""

# What is struck; where nothing can be restarted, the service goes and comes back.
STRUCK: tuple[Fault, ...] = ("restart", "hang", "cut")
AT_ONCE: tuple[MachineFault, ...] = ("kill", "kill worker", "kill live", "clock back")
"""Over as soon as they are done."""


@dataclass(frozen=True)
class Strike:
    """One fault, of a broker or of the machine."""

    wait_s: float
    """Before it."""
    bus: str | None
    """By its prefix; None: it is the machine's."""
    fault: Fault | MachineFault
    lasts_s: float
    kills_machine_after_s: float | None = None
    """The machine itself is killed and started again, that long into it."""

    @property
    def takes_s(self) -> float:
        """At least."""
        return self.wait_s + self.lasts_s


def make_plan(
    seed: int,
    buses: Mapping[str, Sequence[Fault]],
    machine: Sequence[MachineFault] = (),
    *,
    each: int,
    kills: int,
    longest_s: float,
) -> list[Strike]:
    """Strikes in random order: so many of each of the buses' faults, and of each of the machine's as many as it is killed in the midst of
    some, or at least one."""
    random = Random(seed)
    chosen: list[tuple[str | None, Fault | MachineFault]] = [
        (bus, fault) for bus, possible in buses.items() for fault in _struck(possible) for _ in range(each)
    ]
    chosen += [(None, fault) for fault in machine for _ in range(max(1, kills))]
    random.shuffle(chosen)
    # A machine may rightly refuse to start while its service says no; while that is only away, it may not.
    away = [number for number, (bus, fault) in enumerate(chosen) if bus is not None and fault in ALL_FAULTS]
    killed_in = set(random.sample(away, min(kills, len(away))))
    chosen += [(None, "kill")] * (kills - len(killed_in))
    plan = []
    for number, (bus, fault) in enumerate(chosen):
        lasts_s = 0.0 if fault in AT_ONCE else random.uniform(0.05, longest_s)
        kill_after_s = random.uniform(0, lasts_s) if number in killed_in else None
        plan.append(Strike(0.1 + random.uniform(0.05, 0.5) * longest_s, bus, fault, lasts_s, kill_after_s))
    return plan


def _struck(possible: Sequence[Fault]) -> list[Fault]:
    chosen = [fault for fault in STRUCK if fault in possible] or [fault for fault in possible if fault == "gone"]
    return chosen + [fault for fault in possible if fault not in ALL_FAULTS]
