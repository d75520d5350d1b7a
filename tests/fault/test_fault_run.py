"""A small fault run on files, a short soak, what they are made of, and an audit that sees what is off."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import Event, Tally
from tardis_machine.eventbus.ledger import Ledger, LedgerSession, to_session_end
from tests.contract.bus_under_test import BusUnderTest, Delivered
from tests.contract.buses.file import FileUnderTest
from tests.contract.buses.redis import RedisUnderTest
from tests.contract.sample_messages import sample_messages
from tests.fault.audit import Audit
from tests.fault.plan import Strike, make_plan
from tests.fault.run import OF_MACHINE, FaultRun
from tests.fault.samples import Round, Sample, grown
from tests.fault.small_disk import SmallDisk
from tests.fault.stepping_clock import SteppingClock, why_no_clock
from tests.fault.traffic import Answer

ALL = ("gone", "restart", "hang", "cut", "partial")
OWN = ("kill worker", "full disk")


@pytest.mark.timeout(300)
def test_files_lose_nothing_while_their_disk_goes_and_the_machine_is_struck_and_killed(tmp_path: Path) -> None:
    bus = FileUnderTest(tmp_path / "bus")
    bus.folder.mkdir()
    run = FaultRun(
        [bus],
        tmp_path,
        events=5_000,
        seed=3,
        faults_each=1,
        kills=1,
        longest_s=0.5,
        minutes=1,
        slow_readers=50,
        live_activity=1.0,
        say=lambda _: None,
    )
    outcome = run.run()
    assert outcome.problems == []
    assert not outcome.cannot
    assert outcome.injected == {("file", "gone"): 1} | {("machine", fault): 1 for fault in OF_MACHINE}
    assert outcome.machine_kills == 1
    assert outcome.slow_readers == 50
    audit = outcome.audits["file"]
    assert audit.handed_out.total() >= 5_000
    assert audit.ledger == audit.seen
    assert audit.ledger.total() > audit.handed_out.total()
    assert not audit.lost.total() + audit.out_of_order.total()
    assert 0 < outcome.live_trades <= len(audit.live_trades) + audit.live_ahead
    # How many sessions a kill finds under way depends on how fast the machine is: tests/integration/test_publisher_crash.py cuts one.
    assert audit.incomplete < audit.sessions


@pytest.mark.timeout(300)
def test_a_short_soak_of_two_buses_at_once_stays_flat(tmp_path: Path) -> None:
    with ExitStack() as stack:
        buses: list[BusUnderTest] = []
        for kind in (FileUnderTest, RedisUnderTest):
            folder = tmp_path / kind.prefix
            folder.mkdir()
            buses.append(kind(folder))
            stack.callback(buses[-1].close)
        run = FaultRun(
            buses,
            tmp_path,
            events=0,
            seed=5,
            soak_s=0,
            longest_s=0.1,
            minutes=1,
            slow_readers=50,
            lines_a_second=2000,
            say=lambda _: None,
        )
        outcome = run.run()
    # How flat it stays is seen in a long soak: in seconds, what is held still settles.
    assert [problem for problem in outcome.problems if "grew" not in problem] == []
    assert outcome.machine_kills == 1
    assert [number for number, *_ in outcome.rounds] == [1, 2]
    assert all(low <= high for _, *ends in outcome.rounds for low, high in zip(*ends, strict=True))
    assert [audit.ledger for audit in outcome.audits.values()] == [audit.seen for audit in outcome.audits.values()]


def test_what_rises_from_round_to_round_is_seen() -> None:
    low, high = Sample(100, 200, 40, 3), Sample(900, 900, 900, 9)
    assert grown([Round(1, low, high), Round(2, low, low), Round(3, Sample(126, 284, 52, 4), high)]) == []
    leaking = Round(3, Sample(127, 285, 53, 5), high)
    assert [text.partition(" from")[0] for text in grown([Round(1, low, high), leaking])] == [
        "memory mb grew",
        "processes mb grew",
        "descriptors grew",
        "processes grew",
    ]
    assert "too short" in grown([Round(1, low, high)])[0]


def test_a_plan_is_drawn_from_its_seed_and_has_every_fault_that_can_be() -> None:
    def planned(seed: int, **buses: tuple[Any, ...]) -> list[Strike]:
        return make_plan(seed, buses, OWN, each=10, kills=5, longest_s=2)

    plan = planned(7, one=ALL, other=("gone", "throttle"))
    assert plan == planned(7, one=ALL, other=("gone", "throttle"))
    assert plan != planned(8, one=ALL, other=("gone", "throttle"))
    assert Counter((strike.bus, strike.fault) for strike in plan) == {
        **{("one", fault): 10 for fault in ("restart", "hang", "cut")},
        **{("other", fault): 10 for fault in ("gone", "throttle")},
        **dict.fromkeys([(None, "kill worker"), (None, "full disk")], 5),
    }
    killed = [strike for strike in plan if strike.kills_machine_after_s is not None]
    assert len(killed) == 5
    assert all(strike.bus is not None and strike.fault != "throttle" for strike in killed)
    assert Counter(strike.fault for strike in make_plan(7, {}, each=10, kills=5, longest_s=2)) == {"kill": 5}


WRITES = """
import sys
for _ in sys.stdin:
    try:
        with open(sys.argv[1], "ab", buffering=0) as file:
            file.write(bytes(102_400))  # whole pages, so that none is left half full
        print("written", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@pytest.mark.parametrize("may_mount", [True, False])
def test_a_small_disk_is_full_and_then_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, may_mount: bool) -> None:
    if not may_mount:
        monkeypatch.setenv("PATH", "")
    disk = SmallDisk(tmp_path / "disk", 2**20)
    command = [sys.executable, "-c", WRITES, str(tmp_path / "disk" / "file")]
    with closing(disk), subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:

        def write() -> str:
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write("\n")
            program.stdin.flush()
            return program.stdout.readline().strip()

        assert write() == "written"
        disk.fill(program.pid)
        assert write() == ("No space left on device" if "mounted for it" in disk.how else "File too large")
        disk.empty(program.pid)
        assert write() == "written"
        program.communicate()
        monkeypatch.undo()
    assert may_mount or "no disk may be mounted" in disk.how


TELLS_TIME = "import sys, time\nfor _ in sys.stdin: print(time.time_ns(), time.monotonic_ns(), flush=True)"


def test_a_clock_steps_back_for_one_program_alone(tmp_path: Path) -> None:
    assert why_no_clock() is None
    clock = SteppingClock(tmp_path)
    before_ns = time.time_ns()
    with subprocess.Popen(
        [sys.executable, "-c", TELLS_TIME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | clock.environ,
    ) as program:

        def tell() -> list[int]:
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write("\n")
            program.stdin.flush()
            return [int(word) for word in program.stdout.readline().split()]

        first, first_mono = tell()
        clock.step(-3600)
        second, second_mono = tell()
        program.communicate()
    assert 0 <= first - before_ns < 60e9
    assert 0 <= second + 3600 * 10**9 - first < 60e9
    assert 0 <= second_mono - first_mono < 60e9
    assert 0 <= time.time_ns() - before_ns < 60e9


class Case:
    """What an audit looks at."""

    def __init__(self, folder: Path) -> None:
        encoder = BronzeEncoder(session_id="s1", origin="replay", meta={"request_id": "r1"})
        events = encoder.encode(sample_messages(60))
        ledger = Ledger(folder)
        ledger.start("s1", "source", "replay", {"request_id": "r1"}, 1)
        by_stream: dict[int, list[Event]] = {}
        for event in events:
            by_stream.setdefault(id(event.stream), []).append(event)
        ledger.add([Tally(share) for share in by_stream.values()], 2)
        session = ledger.end("s1", complete=True, reason="", now_us=3)
        assert session is not None
        self.session: LedgerSession = session
        self.lines = Counter(event.stream.payload_case for event in events)
        self.events = [*events, *encoder.encode_session_end(to_session_end(session))]
        self.is_complete = True

    def audit(self) -> Audit:
        audit = Audit()
        audit.consume(Delivered("events", "key", {}, event.value) for event in self.events)
        audit.compare([self.session], [Answer("r1", self.lines, self.is_complete)])
        return audit


def of_one_case(case: Case) -> list[int]:
    """The places of all trades of one symbol."""
    first = next(event for event in case.events if event.stream.payload_case == "trade")
    return [place for place, event in enumerate(case.events) if event.stream == first.stream]


def lose(case: Case) -> None:
    del case.events[of_one_case(case)[-1]]


def lose_the_end(case: Case) -> None:
    del case.events[-1]


def swap(case: Case) -> None:
    one, other, *_ = of_one_case(case)
    case.events[one], case.events[other] = case.events[other], case.events[one]


def repeat_something_else(case: Case) -> None:
    stranger = BronzeEncoder(session_id="s1", origin="replay", meta={"request_id": "r1"}).encode(sample_messages(200)[100:])
    case.events.append(next(event for event in stranger if event.stream.payload_case == "trade"))


def invent(case: Case) -> None:
    case.events += BronzeEncoder(session_id="s2", origin="replay").encode(sample_messages(1))


def hand_out_more(case: Case) -> None:
    case.lines["trade"] += 1
    case.is_complete = False


@pytest.mark.parametrize(
    ("spoil", "says", "lost", "out_of_order"),
    [
        (lose, "the ledger has", 1, 0),
        (lose_the_end, "its end on the bus is not the ledger on disk", 1, 0),
        (swap, "did not come in its turn", 0, 2),
        (repeat_something_else, "came twice, and differs", 0, 0),
        (invent, "is on the bus and in no ledger", 0, 0),
        (hand_out_more, "r1 got", 0, 0),
    ],
)
def test_the_audit_sees_what_is_off(
    tmp_path: Path, spoil: Callable[[Case], None], says: str, lost: int, out_of_order: int
) -> None:
    case = Case(tmp_path)
    assert case.audit().problems == []
    spoil(case)
    audit = case.audit()
    assert any(says in problem for problem in audit.problems), audit.problems
    assert (audit.lost.total(), audit.out_of_order.total()) == (lost, out_of_order)


@pytest.mark.parametrize("was_cut", [True, False])
def test_a_live_trade_that_a_client_got_is_missed_unless_its_session_was_cut(tmp_path: Path, *, was_cut: bool) -> None:
    case = Case(tmp_path)
    exchange = case.session.entries[0].exchange
    case.session.origin, case.session.complete = "realtime", not was_cut
    audit = Audit()
    audit.consume(Delivered("events", "key", {}, event.value) for event in case.events)
    audit.compare([case.session], [], {(exchange, "X", "1")})
    assert (audit.live_ahead, any("live trades" in problem for problem in audit.problems)) == (int(was_cut), not was_cut)


@pytest.mark.parametrize("all_is_there", [True, False])
def test_a_whole_answer_of_a_session_that_was_not_closed_in_time_is_counted(tmp_path: Path, *, all_is_there: bool) -> None:
    case = Case(tmp_path)
    case.session.complete = False
    case.events[-1:] = BronzeEncoder(session_id="s1", origin="replay", meta={"request_id": "r1"}).encode_session_end(
        to_session_end(case.session)
    )
    case.lines["trade"] -= not all_is_there
    audit = case.audit()
    assert (audit.unheard_ends, audit.problems == []) == (int(all_is_there), all_is_there)


def test_a_resend_is_a_repeat_and_no_problem(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.events = case.events[:40] + case.events[20:] + case.events[-1:]
    audit = case.audit()
    assert audit.problems == []
    assert audit.repeated.total() == 21
    assert audit.repeated["session_end"] == 1
