"""What is done to the broker and to the machine, and when: drawn once from a seed.

Invariant: the same seed gives the same plan; every fault that the bus can have is in it as often as asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.contract.bus_under_test import ALL_FAULTS, Fault

__all__ = ["Strike", "make_plan"]

# What is struck; where nothing can be restarted, the service goes and comes back.
STRUCK: tuple[Fault, ...] = ("restart", "hang", "cut")


@dataclass(frozen=True)
class Strike:
    """One fault of the broker, or none where `fault` is None."""

    wait_s: float
    """Before it."""
    fault: Fault | None
    lasts_s: float
    kills_machine_after_s: float | None = None
    """The machine itself is killed and started again, that long into it."""

    @property
    def takes_s(self) -> float:
        """At least."""
        return self.wait_s + self.lasts_s


def make_plan(seed: int, possible: Sequence[Fault], *, each: int, kills: int, longest_s: float) -> list[Strike]:
    """Strikes in random order; some kill the machine in their midst."""
    random = Random(seed)
    chosen = [fault for fault in STRUCK if fault in possible] or [fault for fault in possible if fault == "gone"]
    chosen += [fault for fault in possible if fault not in ALL_FAULTS]
    faults: list[Fault | None] = [fault for fault in chosen for _ in range(each)]
    random.shuffle(faults)
    faults += [None] * max(0, kills - sum(fault in ALL_FAULTS for fault in faults))
    # A machine may rightly refuse to start while its service says no; while that is only away, it may not.
    away = [number for number, fault in enumerate(faults) if fault is None or fault in ALL_FAULTS]
    killed_in = set(random.sample(away, kills))
    plan = []
    for number, fault in enumerate(faults):
        lasts_s = 0.0 if fault is None else random.uniform(0.05, longest_s)
        kill_after_s = random.uniform(0, lasts_s) if number in killed_in else None
        plan.append(Strike(random.uniform(0.3, 1 + longest_s / 3), fault, lasts_s, kill_after_s))
    return plan
