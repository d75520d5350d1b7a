"""One fault run, from the first request to the verdict: so many faults of each kind, or rounds of them for so long.

Invariant: what was begun is ended, brokers included, however the run ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tardis_machine.eventbus.dead_letters import dead_letter_files
from tests.closed_sessions import read_closed_sessions
from tests.contract.bus_under_test import BusUnderTest
from tests.fault.audit import Audit
from tests.fault.live_traffic import LiveTraffic, SimulatedMarkets
from tests.fault.machine import MachineUnderFault
from tests.fault.plan import MachineFault, Strike, make_plan
from tests.fault.samples import Round, grown
from tests.fault.slow_readers import SlowReaders
from tests.fault.traffic import CLIENTS, Traffic, fill

__all__ = ["OF_MACHINE", "FaultRun", "Outcome"]

QUEUE_BYTES = 16 * 2**20
DRAIN_S = 900.0
NOTHING_S = 300.0
LEAST_ROUNDS = 2
"""Of a soak, after the one to warm up: two can be compared."""
OF_MACHINE: Sequence[MachineFault] = ("kill worker", "kill live", "descriptors", "full disk", "clock back")


@dataclass
class Outcome:
    """What came of it."""

    audits: Mapping[str, Audit]
    """By bus."""
    injected: Counter[tuple[str, str]]
    """By bus, or `machine`, and fault."""
    machine_kills: int
    idle_mb: float
    peak_mb: float
    limit_mb: float
    rounds: Sequence[Round]
    """Of a soak; without the one to warm up."""
    slow_readers: int
    """The most of them that were there at a time."""
    live_trades: int
    """That clients got."""
    disk: str
    """What full meant."""
    cannot: Mapping[str, str]
    """What of the machine's faults can't be had here, and why."""
    problems: list[str]
    seconds: float


class FaultRun:
    """Replays and live streams through a machine to buses, under faults."""

    def __init__(
        self,
        buses: Sequence[BusUnderTest],
        folder: Path,
        *,
        events: int,
        seed: int,
        faults_each: int = 10,
        kills: int = 5,
        longest_s: float = 6.0,
        minutes: int = 4,
        slow_readers: int = 1000,
        soak_s: float | None = None,
        lines_a_second: float = 400.0,
        live_activity: float = 0.1,
        say: Callable[[str], None] = print,
    ) -> None:
        """With `soak_s` each fault comes once a round, and one round after the other until that time is over; `events` and numbers of
        faults then do not matter. The machine is killed in the first round alone, as what it holds is then to stay flat."""
        self._buses = {bus.prefix: bus for bus in buses}
        self._folder = folder
        self._events = events
        self._seed = seed
        # Of history; requests are for parts of it.
        self._minutes = minutes
        self._each, self._kills = faults_each, kills
        self._longest_s = longest_s
        self._soak_s = soak_s
        self._lines_a_second = lines_a_second
        self._slow_readers = slow_readers
        self._live_activity = live_activity
        self._say = say
        self._injected: Counter[tuple[str, str]] = Counter()

    def run(self) -> Outcome:
        """Blocks until it is over."""
        began = time.monotonic()
        with ExitStack() as stack:
            cache_dir = self._folder / "cache"
            fill(cache_dir, self._minutes)
            markets = SimulatedMarkets(self._seed, self._live_activity)
            stack.callback(markets.close)
            machine = MachineUnderFault(
                list(self._buses.values()),
                self._folder,
                cache_dir,
                queue_bytes=QUEUE_BYTES,
                drain_s=DRAIN_S,
                slow_readers=self._slow_readers,
                exchange_urls=markets.urls,
                seed=self._seed,
            )
            stack.callback(machine.close)
            machine.start()
            traffic, live, slow, exit_code = self._load(machine)
            self._say("reading the buses")
            audits = {}
            for prefix, bus in self._buses.items():
                audits[prefix] = audit = Audit()
                audit.consume(bus.each_record())
                audit.compare(read_closed_sessions(machine.sessions_dir(prefix)), traffic.answers, live.trades)
            rounds = machine.samples.rounds() if self._soak_s is not None else []
            problems = [f"{prefix}: {problem}" for prefix, audit in audits.items() for problem in audit.problems]
            problems += [
                f"{prefix}: {audit.unheard_ends} whole answers have sessions that are not complete, after {machine.kills} kills"
                for prefix, audit in audits.items()
                if audit.unheard_ends > CLIENTS * machine.kills
            ]
            problems += [*self._problems(machine, exit_code), *(grown(rounds) if self._soak_s is not None else ())]
            return Outcome(
                audits,
                self._injected,
                machine.kills,
                machine.idle_mb,
                machine.samples.peak_mb,
                machine.limit_mb,
                rounds,
                slow.most,
                len(live.trades),
                machine.disk.how,
                machine.cannot,
                problems,
                time.monotonic() - began,
            )

    def _load(self, machine: MachineUnderFault) -> tuple[Traffic, LiveTraffic, SlowReaders, int | None]:
        """Clients come, faults strike, clients leave, the machine drains; with its exit code."""
        pace = self._lines_a_second
        if self._soak_s is None:
            pace = self._events / sum(strike.takes_s for strike in self._plan(machine))
        traffic = Traffic(machine.port, seed=self._seed, minutes=self._minutes, lines_a_second=pace)
        live = LiveTraffic(machine.port, self._seed)
        slow = SlowReaders(machine.port, self._slow_readers, self._minutes)
        with ExitStack() as clients:
            for each in (traffic, live, slow):
                each.start()
                clients.callback(each.stop)
            if self._soak_s is None:
                self._strike_all(machine, traffic, slow, self._plan(machine), "")
                while traffic.received < self._events:
                    time.sleep(0.1)
                # On a fast machine all is over before a live client had come back from the last fault.
                self._await(lambda: bool(live.trades), "no live trade was handed out")
            else:
                until = time.monotonic() + self._soak_s
                while time.monotonic() < until or machine.samples.round <= LEAST_ROUNDS:
                    name = f"round {machine.samples.round}: " if machine.samples.round else "to warm up: "
                    self._strike_all(machine, traffic, slow, self._plan(machine, machine.samples.round), name)
                    machine.samples.round += 1
            machine.samples.stop()
        self._say(f"draining: {traffic.received:,} lines and {live.received:,} live messages were handed out")
        return traffic, live, slow, machine.end()

    def _plan(self, machine: MachineUnderFault, number: int | None = None) -> list[Strike]:
        """All of a run, or those of one round."""
        buses = {prefix: (*bus.faults, *bus.own_faults) for prefix, bus in self._buses.items()}
        own = [fault for fault in OF_MACHINE if fault not in machine.cannot]
        each, kills = (self._each, self._kills) if number is None else (1, int(number == 0))
        return make_plan(self._seed + (number or 0), buses, own, each=each, kills=kills, longest_s=self._longest_s)

    def _strike_all(
        self,
        machine: MachineUnderFault,
        traffic: Traffic,
        slow: SlowReaders,
        plan: Sequence[Strike],
        name: str,
    ) -> None:
        for number, strike in enumerate(plan, 1):
            # A fault of a machine that does nothing is none: it starts, and its workers do.
            self._await_lines(traffic)
            kills = machine.kills
            self._strike(machine, strike)
            if machine.kills != kills:
                slow.come_again()
            done = f"{traffic.received:,} lines handed out, {machine.samples.peak_mb:.0f} MB at most"
            self._say(f"{name}{number}/{len(plan)} {strike.bus or 'machine'} {strike.fault}: {done}")

    def _await_lines(self, traffic: Traffic) -> None:
        before = traffic.received
        self._await(lambda: traffic.received > before, "no line was handed out")

    def _await(self, come: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + NOTHING_S
        while not come():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{otherwise} for {NOTHING_S:.0f} s")
            time.sleep(0.05)

    def _strike(self, machine: MachineUnderFault, strike: Strike) -> None:
        time.sleep(strike.wait_s)
        self._injected[strike.bus or "machine", strike.fault] += 1
        if strike.bus is None:
            machine.strike(strike.fault)  # type: ignore[arg-type]
        else:
            self._buses[strike.bus].inject(strike.fault)  # type: ignore[arg-type]
        killed_s = 0.0
        if strike.kills_machine_after_s is not None:
            time.sleep(strike.kills_machine_after_s)
            before = time.monotonic()
            machine.strike("kill")
            killed_s = strike.kills_machine_after_s + time.monotonic() - before
        time.sleep(max(0.0, strike.lasts_s - killed_s))
        if strike.bus is None:
            machine.heal(strike.fault)  # type: ignore[arg-type]
        else:
            self._buses[strike.bus].heal()

    def _problems(self, machine: MachineUnderFault, exit_code: int | None) -> list[str]:
        """What the audit of events does not see."""
        problems = []
        if exit_code != 0:
            ended = "did not end in time" if exit_code is None else f"ended with exit code {exit_code}"
            problems.append(f"the machine {ended}; see {machine.log}")
        if machine.samples.peak_mb > machine.limit_mb:
            problems.append(f"the machine held {machine.samples.peak_mb:.0f} MB, more than {machine.limit_mb:.0f} MB")
        for prefix in self._buses:
            if left := list(machine.sessions_dir(prefix).glob("session-*.json")):
                problems.append(f"{prefix}: {len(left)} sessions are not closed")
            if letters := dead_letter_files(machine.dead_letter_dir / prefix):
                problems.append(f"{prefix}: there are dead letters in {letters[0]}")
        if "Traceback" in (log := machine.log.read_text()) or "events are lost" in log:
            problems.append(f"there is an error in {machine.log}")
        return problems
