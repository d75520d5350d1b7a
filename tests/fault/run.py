"""One fault run, from the first request to the verdict.

Invariant: what was begun is ended, broker included, however the run ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tardis_machine.eventbus.dead_letters import dead_letter_files
from tests.closed_sessions import read_closed_sessions
from tests.contract.bus_under_test import BusUnderTest
from tests.fault.audit import Audit
from tests.fault.machine import MachineUnderFault
from tests.fault.plan import Strike, make_plan
from tests.fault.traffic import Traffic, fill

__all__ = ["FaultRun", "Outcome"]

QUEUE_BYTES = 16 * 2**20
DRAIN_S = 600.0
NO_LINES_S = 60.0


@dataclass
class Outcome:
    """What came of it."""

    audit: Audit
    injected: Counter[str]
    machine_kills: int
    idle_mb: float
    peak_mb: float
    limit_mb: float
    problems: list[str]
    seconds: float


class FaultRun:
    """Replays through a machine to a bus, with as many faults of each kind as asked for."""

    def __init__(
        self,
        bus: BusUnderTest,
        folder: Path,
        *,
        events: int,
        seed: int,
        faults_each: int = 10,
        kills: int = 5,
        longest_s: float = 6.0,
        minutes: int = 4,
        say: Callable[[str], None] = print,
    ) -> None:
        self._bus = bus
        self._folder = folder
        self._events = events
        self._seed = seed
        # Of history; requests are for parts of it.
        self._minutes = minutes
        self._plan = make_plan(seed, (*bus.faults, *bus.own_faults), each=faults_each, kills=kills, longest_s=longest_s)
        self._say = say
        self._injected: Counter[str] = Counter()

    def run(self) -> Outcome:
        """Blocks until it is over."""
        cache_dir = self._folder / "cache"
        fill(cache_dir, self._minutes)
        machine = MachineUnderFault(self._bus, self._folder, cache_dir, queue_bytes=QUEUE_BYTES, drain_s=DRAIN_S)
        began = time.monotonic()
        try:
            machine.start()
            planned_s = sum(strike.takes_s for strike in self._plan)
            traffic = Traffic(machine.port, seed=self._seed, minutes=self._minutes, lines_a_second=self._events / planned_s)
            traffic.start()
            try:
                for number, strike in enumerate(self._plan, 1):
                    # A fault of a machine that does nothing is none: it starts, and its workers do.
                    self._await_lines(traffic)
                    self._strike(machine, strike)
                    self._say(f"{number}/{len(self._plan)} {strike.fault or 'machine'}: {traffic.received:,} lines handed out")
                while traffic.received < self._events:
                    time.sleep(0.1)
            finally:
                traffic.stop()
            self._say(f"draining: {traffic.received:,} lines were handed out")
            exit_code = machine.end()
        finally:
            machine.stop()
        self._say("reading the bus")
        audit = Audit()
        audit.consume(self._bus.each_record())
        audit.compare(read_closed_sessions(machine.sessions_dir), traffic.answers)
        return Outcome(
            audit,
            self._injected,
            machine.kills,
            machine.idle_mb,
            machine.peak_mb,
            machine.limit_mb,
            [*audit.problems, *self._problems(machine, exit_code)],
            time.monotonic() - began,
        )

    def _await_lines(self, traffic: Traffic) -> None:
        before, deadline = traffic.received, time.monotonic() + NO_LINES_S
        while traffic.received == before:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no line was handed out for {NO_LINES_S:.0f} s")
            time.sleep(0.05)

    def _strike(self, machine: MachineUnderFault, strike: Strike) -> None:
        time.sleep(strike.wait_s)
        if strike.fault is not None:
            self._bus.inject(strike.fault)
            self._injected[strike.fault] += 1
        killed_s = 0.0
        if strike.kills_machine_after_s is not None:
            time.sleep(strike.kills_machine_after_s)
            before = time.monotonic()
            machine.kill()
            machine.start()
            killed_s = strike.kills_machine_after_s + time.monotonic() - before
        time.sleep(max(0.0, strike.lasts_s - killed_s))
        if strike.fault is not None:
            self._bus.heal()

    def _problems(self, machine: MachineUnderFault, exit_code: int) -> list[str]:
        """What the audit of events does not see."""
        problems = []
        if exit_code:
            problems.append(f"the machine ended with exit code {exit_code}; see {machine.log}")
        if machine.peak_mb > machine.limit_mb:
            problems.append(f"the machine held {machine.peak_mb:.0f} MB, more than {machine.limit_mb:.0f} MB")
        if left := list(machine.sessions_dir.glob("session-*.json")):
            problems.append(f"{len(left)} sessions are not closed")
        if letters := dead_letter_files(machine.dead_letter_dir):
            problems.append(f"there are dead letters in {letters[0]}")
        if "Traceback" in (log := machine.log.read_text()) or "events are lost" in log:
            problems.append(f"there is an error in {machine.log}")
        return problems
