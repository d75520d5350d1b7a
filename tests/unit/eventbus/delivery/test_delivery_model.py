"""The delivery against a model of a bus, a disk and a process that fail in every way.

After every step the places of all records are looked up in the delivery itself and in the model's disk: every accepted record
must be in exactly one, the books must say so, and no lane may have been overtaken. A seed that fails is run again with `-k`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from random import Random

import pytest

from tardis_machine.errors import TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus.contract import Failure, Limits, Record
from tardis_machine.eventbus.delivery import Delivery
from tardis_machine.eventbus.delivery.disk_work import Loaded, Spill, Undeliverable
from tardis_machine.eventbus.delivery.in_flight import Batch
from tardis_machine.eventbus.delivery.memory import memory_of
from tardis_machine.eventbus.policy import Policy
from tests.unit.eventbus.events import cases_of, is_balanced, make_record, make_route


class Group:
    """Records at one span of the model's disk."""

    def __init__(self, segment: int, position: int, records: list[Record]) -> None:
        self.segment = segment
        self.position = position
        self.records = records

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.position


class Disk:
    """A spool that survives the delivery."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.unread: list[Group] = []
        self.last_segment = 0

    def append(self, records: Sequence[Record], *, new_segment: bool) -> Group:
        if new_segment or not self.last_segment:
            self.last_segment += 2
        return self._add(self.last_segment, records)

    def insert(self, after_segment: int | None, records: Sequence[Record]) -> None:
        """What a shutdown leaves; a session's end is by itself when it is read back."""
        if after_segment is None:
            self.last_segment += 2
        for is_end, group in groupby(records, key=lambda record: record.route.payload_case == "session_end"):
            for part in [[record] for record in group] if is_end else [list(group)]:
                self._add(self.last_segment if after_segment is None else after_segment + 1, part)

    def _add(self, segment: int, records: Sequence[Record]) -> Group:
        position = 1 + max((group.position for group in self.groups if group.segment == segment), default=-1)
        group = Group(segment, position, list(records))
        self.groups.append(group)
        return group

    def reopen(self) -> int:
        self.groups.sort(key=lambda group: group.place)
        self.unread = list(self.groups)
        last = max((group.segment for group in self.groups), default=0)
        self.last_segment = last + last % 2
        return sum(len(group.records) for group in self.groups)


class World:
    """A delivery with all that it touches; every choice is made by one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.limits = Limits(
            batch_records=100,
            batch_bytes=10_000,
            record_bytes=1_000,
            keeps_order_in_batch=random.random() < 0.7,
            concurrent_sends=random.choice([1, 2, 3]),
            keeps_order_across_sends=random.random() < 0.5,
        )
        self.policy = Policy(
            batch_records=random.choice([1, 3, 6, 20]),
            batch_bytes=600,
            batch_delay_s=1.0,
            queue_bytes=random.choice([1, 5, 20, 100]) * 300,
            overflow=random.choice(["spool", "spool", "block", "drop"]),
            write_ahead=random.random() < 0.3,
            max_retries=random.choice([0, 1, 3]),
            max_refusals=random.choice([1, 5, 1000]),
        )
        # How often things go wrong in this world, from hardly to mostly.
        self.misfortune = random.choice([0.05, 0.3, 0.7])
        self.lanes = random.choice([["a"], ["a", "b", "c"], [f"l{number}" for number in range(10)]])
        self.disk = Disk()
        self.now = 0.0
        self.sequences = dict.fromkeys(self.lanes, 0)
        self.records: dict[int, Record] = {}
        self.accepted: set[int] = set()
        # What the bus has, in the order it came.
        self.stored: list[Record] = []
        self.confirmed: set[int] = set()
        self.dead_lettered: set[int] = set()
        self.dropped: set[int] = set()
        # Given up; where a process dies before they are dead letters, the next one tries them again, after others of their lane.
        self.condemned: set[int] = set()
        # In memory only when the process died: by design.
        self.lost: set[int] = set()
        self.session = 0
        self.open_session: set[int] = set()
        self.ended_sessions: dict[str, set[int]] = {}
        # Those whose end is in the ledger on disk.
        self.in_ledger: set[str] = set()
        self.boot(0)

    def boot(self, carried: int) -> None:
        self.delivery = Delivery(self.policy, self.limits, self.random.random)
        self.delivery.carry(carried, self.disk.last_segment)
        self.earlier = (len(self.confirmed), len(self.dead_lettered), len(self.dropped))
        self.flights: list[Batch] = []
        self.spill: Spill | None = None
        self.load = 0
        self.undeliverable: list[Undeliverable] = []
        self.is_writing_ledger = False
        self.refused_in_a_row = 0

    def step(self) -> None:
        steps = [
            (self.publish, 20),
            (self.end_session, 1),
            (self.publish_oversize, 1),
            (self.wait, 8),
            (self.connect, 8),
            (self.send, 15),
            (self.answer, 15),
            (self.write_spool, 10),
            (self.read_spool, 10),
            (self.write_dead_letters, 5),
            (self.write_ledger, 5),
            (self.clean_up, 2),
            (self.restart, 0.3),
        ]
        self.random.choices([step for step, _ in steps], [weight for _, weight in steps])[0]()

    def fails(self) -> bool:
        return self.random.random() < self.misfortune

    def publish(self) -> None:
        records = []
        for lane in self.random.choices(self.lanes, k=self.random.choice([1, 5, 30])):
            size = self.random.choice([1, 50, 200, 700])
            records.append(make_record(make_route(lane, session=f"s{self.session}"), self.sequences[lane], size))
            self.sequences[lane] += 1
        self.hand_over(records, None)
        self.open_session |= identities(records)

    def end_session(self) -> None:
        session = f"s{self.session}"
        self.ended_sessions[session] = self.open_session
        self.open_session = set()
        self.hand_over([make_record(make_route("", "session_end", session), self.session)], session)
        self.session += 1

    def hand_over(self, records: list[Record], ends_session: str | None) -> None:
        self.records |= {id(record.event): record for record in records}
        self.accepted |= identities(records)
        if self.delivery.offer(records, size_of(records), self.now, cases_of(records), ends_session) is None:
            self.delivery.drop(records, self.now)
            self.dropped |= identities(records)

    def publish_oversize(self) -> None:
        records = [make_record(make_route(self.lanes[0]), self.sequences[self.lanes[0]])]
        self.sequences[self.lanes[0]] += 1
        self.records |= {id(record.event): record for record in records}
        self.accepted |= identities(records)
        self.delivery.refuse(records, "too large", self.now)

    def wait(self) -> None:
        self.now += self.random.choice([0.1, 1.0, 40.0])

    def connect(self) -> None:
        if self.delivery.wants_connect(self.now):
            if self.fails():
                self.delivery.connect_failed(TransientDeliveryError("refused"), self.now)
            else:
                self.delivery.connect_succeeded(self.limits)

    def send(self) -> None:
        self.delivery.set_flushing(is_flushing=self.random.random() < 0.5)
        while (batch := self.delivery.next_batch(self.now)) is not None:
            self.check_batch(batch)
            self.flights.append(batch)

    def check_batch(self, batch: Batch) -> None:
        assert 0 < len(batch) <= self.policy.batch_records
        assert len(self.flights) < self.limits.concurrent_sends
        assert batch.size_bytes == size_of(batch.records)
        assert batch.size_bytes <= 600 or len(batch) == 1
        lanes = [record.route.lane for record in batch.records]
        if not self.limits.keeps_order_in_batch:
            assert len(set(lanes)) == len(lanes)
        if not self.ordered:
            assert not set(lanes) & {record.route.lane for other in self.flights for record in other.records}
        for record in batch.records:
            if record.route.payload_case == "session_end":
                done = self.confirmed | self.dead_lettered | self.dropped | self.lost
                assert self.ended_sessions[record.route.session_id] <= done, "a session's end overtook the session"
                assert record.route.session_id in self.in_ledger, "a session's end overtook its ledger"

    @property
    def ordered(self) -> bool:
        """Whether one lane may be in several sends at once; such a bus fails all that is behind a failure."""
        return self.limits.keeps_order_across_sends and self.limits.keeps_order_in_batch

    def answer(self) -> None:
        if not self.flights:
            return
        if not self.fails():
            batch = self.flights.pop(0 if self.ordered else self.random.randrange(len(self.flights)))
            self.settle(batch, ["ok"] * len(batch), set())
            self.count_refusals(0, confirmed=True)
            return
        kind = self.random.choice(["partial", "partial", "cut", "unanswered", "refused", "nonsense"])
        index = self.random.randrange(len(self.flights))
        failed_lanes: set[tuple[str, str]] = set()
        if self.ordered:
            # What was started earlier is stored earlier, what was started later fails too; answers come in any order.
            behind = kind if kind in ("partial", "refused") else "gone"
            kinds = ["fine"] * index + [kind] + [behind] * (len(self.flights) - index - 1)
            flights, self.flights = self.flights, []
            answers = [(batch, self.outcome(batch, kind, failed_lanes)) for batch, kind in zip(flights, kinds, strict=True)]
            self.random.shuffle(answers)
        else:
            batch = self.flights.pop(index)
            answers = [(batch, self.outcome(batch, kind, failed_lanes))]
        for batch, outcome in answers:
            before, given_up = self.delivery.books.confirmed, len([*self.delivery._undeliverable])
            if isinstance(outcome, Exception):
                self.delivery.fail(batch, outcome, self.now)
            else:
                self.delivery.settle(batch, outcome, self.now)
            self.count_refusals(len([*self.delivery._undeliverable]) - given_up, confirmed=self.delivery.books.confirmed > before)

    def count_refusals(self, given_up: int, *, confirmed: bool) -> None:
        self.refused_in_a_row = given_up if confirmed else self.refused_in_a_row + given_up
        assert self.refused_in_a_row <= self.policy.max_refusals, "a bus that refuses everything makes dead letters of everything"

    def outcome(self, batch: Batch, kind: str, failed_lanes: set[tuple[str, str]]) -> Exception | list[Failure]:
        """What the bus stores of a batch, and what it answers."""
        if kind == "fine":
            return self.store_partially(batch, ["ok"] * len(batch), failed_lanes)
        if kind == "partial":
            kinds = self.random.choices(["ok", "again", "never"], [5, 2, 1], k=len(batch))
            return self.store_partially(batch, kinds, failed_lanes)
        if kind == "refused":
            return TerminalDeliveryError("not authorised")
        arrived = {"cut": self.random.randint(0, len(batch)), "gone": 0}.get(kind, len(batch))
        self.stored.extend(batch.records[:arrived])
        if kind == "nonsense":
            return [Failure(len(batch), TransientDeliveryError("what?"))]
        return TransientDeliveryError("connection lost")

    def store_partially(self, batch: Batch, kinds: list[str], failed_lanes: set[tuple[str, str]]) -> list[Failure]:
        failures: list[Failure] = []
        fine: list[Record] = []
        for index, (record, kind) in enumerate(zip(batch.records, kinds, strict=True)):
            if record.route.lane in failed_lanes or kind == "again":
                failed_lanes.add(record.route.lane)
                failures.append(Failure(index, TransientDeliveryError("throttled")))
            elif kind == "never":
                failures.append(Failure(index, TerminalDeliveryError("too large")))
            else:
                fine.append(record)
        self.stored.extend(fine)
        self.confirmed |= identities(fine)
        return failures

    def settle(self, batch: Batch, kinds: list[str], failed_lanes: set[tuple[str, str]]) -> None:
        self.delivery.settle(batch, self.store_partially(batch, kinds, failed_lanes), self.now)

    def write_spool(self) -> None:
        if self.spill is None:
            self.spill = self.delivery.next_spill(self.now)
            return
        spill, self.spill = self.spill, None
        if self.fails():
            self.delivery.spill_failed(OSError("disk full"), self.now)
            return
        # What is in the spool is in the ledger before.
        self.note_ledger()
        spans = [
            self.disk.append(group.records, new_segment=spill.in_new_segment and index == 0)
            for index, group in enumerate(spill.groups)
        ]
        kept = self.delivery.spilled(spill, spans, self.now)
        self.disk.unread += [span for span in spans if span not in kept]

    def read_spool(self) -> None:
        if not self.load:
            self.load = self.delivery.next_load(self.now)
            return
        self.load = 0
        if self.fails():
            self.delivery.load_failed(OSError("read error"), self.now)
            return
        loaded, damaged = [], 0
        for group in self.disk.unread[: self.random.randint(1, 4)]:
            self.disk.unread.remove(group)
            if len(group.records) > 1 and self.random.random() < 0.05:
                self.dropped.add(id(group.records.pop().event))
                damaged += 1
            loaded.append(Loaded(group.records, size_of(group.records), group, self.now))
        self.delivery.loaded(loaded, damaged, self.now)

    def write_dead_letters(self) -> None:
        if not self.undeliverable:
            self.undeliverable = self.delivery.next_undeliverable(self.now)
            return
        if self.fails():
            self.delivery.dead_letters_failed(OSError("disk full"), self.now)
        else:
            self.dead_lettered |= {id(found.record.event) for found in self.undeliverable}
            self.delivery.dead_lettered()
        self.undeliverable = []

    def write_ledger(self) -> None:
        if not self.is_writing_ledger:
            self.is_writing_ledger = self.delivery.wants_ledger(self.now)
        elif self.fails():
            self.delivery.ledger_failed(OSError("disk full"), self.now)
            self.is_writing_ledger = False
        else:
            self.note_ledger()

    def note_ledger(self) -> None:
        self.in_ledger |= set(self.ended_sessions)
        self.delivery.ledger_written(self.in_ledger)
        self.is_writing_ledger = False

    def clean_up(self) -> None:
        for group in self.delivery.take_resolved_spans():
            self.disk.groups.remove(group)

    def restart(self) -> None:
        gracefully = self.random.random() < 0.5
        if gracefully:
            self.clean_up()
            self.shut_down()
        on_disk = {id(record.event) for group in self.disk.groups for record in group.records}
        done = self.confirmed | self.dead_lettered | self.dropped | self.lost
        lost = self.accepted - on_disk - done
        assert not (gracefully and lost)
        if self.policy.write_ahead:
            written = {id(record.event) for record in self.stored}
            assert not lost & written, "a record was sent before it was written"
        self.lost |= lost
        # What is confirmed but not cleaned up comes again: that is what at least once means.
        self.confirmed -= on_disk
        self.dead_lettered -= on_disk
        self.boot(self.disk.reopen())

    def shut_down(self) -> None:
        self.note_ledger()
        leftovers = self.delivery.abandon()
        for leftover in leftovers:
            self.disk.insert(leftover.after_segment, leftover.records)
        self.delivery.abandoned(sum(len(leftover.records) for leftover in leftovers))
        books = self.delivery.books
        assert is_balanced(books)
        assert books.queued == books.in_flight == 0

    def drain(self) -> None:
        """From now on all goes well: everything must leave."""
        self.misfortune = 0.0
        for _ in range(20_000):
            if self.delivery.is_idle:
                return
            self.now += 1.0
            work = (self.write_spool, self.read_spool, self.write_dead_letters, self.write_ledger)
            for step in (self.connect, self.send, self.answer, *work):
                step()
        raise AssertionError(f"stuck with {self.delivery.books}")

    def check(self) -> None:
        self.check_places()
        self.check_order()

    def check_places(self) -> None:
        delivery = self.delivery
        queued: list[int] = []
        for range_ in delivery._scheduler.waiting:
            queued += [id(record.event) for record in range_.records]
        for group in (*delivery._arrivals.waiting_ends, *delivery._disk.tail):
            queued += [id(record.event) for record in group.records]
        condemned = [id(found.record.event) for found in delivery._undeliverable]
        self.condemned |= set(condemned)
        queued += condemned
        flying = [id(record.event) for range_ in delivery._scheduler.in_flight for record in range_.records]
        unread = [id(record.event) for group in self.disk.unread for record in group.records]
        places = queued + flying + unread
        assert len(places) == len(set(places)), "a record is in two places"
        done = self.confirmed | self.dead_lettered | self.dropped | self.lost
        assert set(places) == self.accepted - done, "a record is nowhere, or came back"
        books = delivery.books
        assert is_balanced(books)
        assert (books.queued, books.in_flight, books.spooled) == (len(queued), len(flying), len(unread))
        finals = (books.confirmed, books.dead_lettered, books.dropped)
        known = (len(self.confirmed), len(self.dead_lettered), len(self.dropped))
        assert tuple(final + before for final, before in zip(finals, self.earlier, strict=True)) == known
        waiting = [self.records[identity] for identity in queued + flying]
        assert delivery.memory_bytes == memory_of(len(waiting), size_of(waiting))

    def check_order(self) -> None:
        seen: set[int] = set()
        last: dict[tuple[str, str], int] = {}
        for record in self.stored:
            if id(record.event) in seen | self.condemned or record.route.payload_case == "session_end":
                continue
            seen.add(id(record.event))
            assert record.event.sequence > last.get(record.route.lane, -1), "a lane was overtaken"
            last[record.route.lane] = record.event.sequence


def identities(records: Iterable[Record]) -> set[int]:
    return {id(record.event) for record in records}


def size_of(records: Iterable[Record]) -> int:
    return sum(record.size_bytes for record in records)


@pytest.mark.parametrize("seed", range(int(os.environ.get("TM_DELIVERY_SEEDS", "150"))))
def test_every_record_is_in_one_place_and_no_lane_is_overtaken(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
        world.check()
    world.drain()
    world.check()
