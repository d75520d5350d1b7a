"""A small fault run on files, and an audit that sees what is off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import Event, Tally
from tardis_machine.eventbus.ledger import Ledger, LedgerSession, to_session_end
from tests.contract.bus_under_test import Delivered
from tests.contract.buses.file import FileUnderTest
from tests.contract.sample_messages import sample_messages
from tests.fault.audit import Audit
from tests.fault.plan import make_plan
from tests.fault.run import FaultRun
from tests.fault.traffic import Answer


@pytest.mark.timeout(300)
def test_files_lose_nothing_while_their_disk_goes_and_the_machine_is_killed(tmp_path: Path) -> None:
    bus = FileUnderTest(tmp_path / "bus")
    bus.folder.mkdir()
    run = FaultRun(bus, tmp_path, events=20_000, seed=3, faults_each=3, kills=2, longest_s=1.0, minutes=1, say=lambda _: None)
    outcome = run.run()
    assert outcome.problems == []
    assert outcome.injected == {"gone": 3}
    assert outcome.machine_kills == 2
    audit = outcome.audit
    assert audit.handed_out.total() >= 20_000
    assert audit.ledger == audit.seen
    assert audit.ledger.total() > audit.handed_out.total()
    assert not audit.lost.total() + audit.out_of_order.total()
    # How many sessions a kill finds under way depends on how fast the machine is: tests/integration/test_publisher_crash.py cuts one.
    assert audit.incomplete < audit.sessions


def test_a_plan_is_drawn_from_its_seed_and_has_every_fault_that_can_be() -> None:
    plan = make_plan(7, ("gone", "restart", "hang", "cut", "partial"), each=10, kills=5, longest_s=2)
    assert plan == make_plan(7, ("gone", "restart", "hang", "cut", "partial"), each=10, kills=5, longest_s=2)
    assert plan != make_plan(8, ("gone", "restart", "hang", "cut", "partial"), each=10, kills=5, longest_s=2)
    assert Counter(strike.fault for strike in plan) == {"restart": 10, "hang": 10, "cut": 10}
    assert sum(strike.kills_machine_after_s is not None for strike in plan) == 5
    assert Counter(strike.fault for strike in make_plan(7, (), each=10, kills=5, longest_s=2)) == {None: 5}


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


def test_a_resend_is_a_repeat_and_no_problem(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.events = case.events[:40] + case.events[20:] + case.events[-1:]
    audit = case.audit()
    assert audit.problems == []
    assert audit.repeated.total() == 21
    assert audit.repeated["session_end"] == 1
