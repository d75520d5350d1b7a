"""The ledgers against what an independent consumer saw, event by event, in one pass.

Accepted is what a ledger counts. It must be no less than what clients were handed, as a line leaves the machine only when its event
is on disk; so the ledger of a session that `kill -9` cut, closed as incomplete at the next start, is held against the client too.

A live session has several clients, and several sessions may be one client's: of live trades those that clients got are looked for among all
that are on the bus. A live client does not wait for the disk: what it was handed just before its stream was cut may not be published,
and then a session of that exchange must say that it was cut short.

Invariant: of an event that went by, 24 bytes are kept: its id and a digest of its value; of a live trade its venue's id too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from xxhash import xxh3_64_digest

from tardis_machine.bronze.decoding import decode_event
from tardis_machine.bronze.event import digest_of
from tardis_machine.eventbus.ledger import LedgerSession, to_session_end
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import ORIGIN_REALTIME
from tests.contract.bus_under_test import Delivered
from tests.fault.live_traffic import LiveTrade
from tests.fault.traffic import Answer

__all__ = ["Audit"]

ID_BYTES, KEPT_BYTES = 16, 24
# Stands where an event has not come yet.
_HOLE = bytes(KEPT_BYTES)
Series = tuple[str, str, str, str]
"""Session, exchange, symbol, payload case."""


@dataclass
class Audit:
    """What was found; `problems` is empty where all is right."""

    ledger: Counter[str] = field(default_factory=Counter)
    """Events by payload case."""
    handed_out: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """Distinct ones."""
    repeated: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    out_of_order: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    incomplete: int = 0
    live_sessions: int = 0
    live_cut: set[str] = field(default_factory=set)
    """Exchanges of which a live session was cut short."""
    live_ahead: int = 0
    """Trades that clients got of those, and that were not published any more."""
    unheard_ends: int = 0
    """Answers that were whole, and whose sessions have all of them but were not closed in time: the machine was killed just then."""
    live_trades: set[LiveTrade] = field(default_factory=set)
    """On the bus."""
    problems: list[str] = field(default_factory=list)
    _kept: dict[Series, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    _ends: dict[str, bytes] = field(default_factory=dict)

    def consume(self, records: Iterable[Delivered]) -> None:
        """Takes in what is on the bus, in the order it is there."""
        for record in records:
            event = decode_event(record.value)
            case = str(event.WhichOneof("payload"))
            session_id = event.meta["session_id"]
            kept = self._kept[session_id, event.exchange, event.symbol, case]
            mark = event.event_id + xxh3_64_digest(record.value)
            place = event.sequence * KEPT_BYTES
            before = kept[place : place + KEPT_BYTES]
            if before == mark:
                self.repeated[case] += 1
                continue
            if before and before != _HOLE:
                self._note(f"{case} {event.sequence} of session {session_id} came twice, and differs")
                continue
            if place != len(kept):
                self.out_of_order[case] += 1
                self._note(f"{case} {event.sequence} of session {session_id} did not come in its turn")
                kept += bytes(max(0, place - len(kept)))
            kept[place : place + KEPT_BYTES] = mark
            self.seen[case] += 1
            if case == "trade" and event.origin == ORIGIN_REALTIME:
                self.live_trades.add((event.exchange, event.symbol, event.trade.trade_id))
            if case == "session_end":
                self._ends[session_id] = event.session_end.SerializeToString(deterministic=True)

    def compare(
        self, sessions: Iterable[LedgerSession], answers: Iterable[Answer], live_trades: Collection[LiveTrade] = ()
    ) -> None:
        """Holds what was consumed against the ledgers, and these against what clients got."""
        by_request: dict[str, LedgerSession] = {}
        for session in sessions:
            self.sessions += 1
            self.incomplete += not session.complete
            if session.origin == "realtime":
                self.live_sessions += 1
                self.live_cut |= set() if session.complete else {entry.exchange for entry in session.entries}
            else:
                by_request[session.meta["request_id"]] = session
            self._compare_session(session)
        for series in self._kept:
            self._note(f"{series} is on the bus and in no ledger")
        for answer in answers:
            self._compare_answer(answer, by_request.get(f"{answer.request_id}"))
        lost = set(live_trades) - self.live_trades
        self.live_ahead = sum(exchange in self.live_cut for exchange, *_ in lost)
        if lost := {trade for trade in lost if trade[0] not in self.live_cut}:
            self._note(f"{len(lost)} live trades that clients got are not on the bus, such as {min(lost)}")

    def _compare_session(self, session: LedgerSession) -> None:
        for entry in session.entries:
            case = entry.payload_case
            self.ledger[case] += entry.count
            kept = self._kept.pop((session.session_id, entry.exchange, entry.symbol, case), bytearray())
            marks = [bytes(kept[place : place + KEPT_BYTES]) for place in range(0, len(kept), KEPT_BYTES)]
            ids = [mark[:ID_BYTES] for mark in marks if mark != _HOLE]
            count = len(ids)
            self.lost[case] += max(0, entry.count - count)
            if (count, count - 1, f"{digest_of(ids):032x}") != (entry.count, entry.last_sequence, entry.digest):
                self._note(f"session {session.session_id}: the ledger has {entry.count} of {case}, the bus {count}, or others")
        self.ledger["session_end"] += 1
        self._kept.pop((session.session_id, "", "", "session_end"), None)
        if self._ends.get(session.session_id) != to_session_end(session).SerializeToString(deterministic=True):
            self.lost["session_end"] += session.session_id not in self._ends
            self._note(f"session {session.session_id}: its end on the bus is not the ledger on disk")

    def _compare_answer(self, answer: Answer, session: LedgerSession | None) -> None:
        self.handed_out.update(answer.lines)
        counts = Counter[str]()
        for entry in session.entries if session is not None else ():
            counts[entry.payload_case] += entry.count
        if answer.is_complete and session is not None and not session.complete and answer.lines == counts:
            self.unheard_ends += 1
        elif answer.lines - counts or (answer.is_complete and (answer.lines != counts or session is None)):
            self._note(f"{answer.request_id} got {dict(answer.lines)}, and its ledger has {dict(counts)}")

    def _note(self, problem: str) -> None:
        if len(self.problems) < 20:
            self.problems.append(problem)

    def rows(self) -> Mapping[str, tuple[int, int, int, int, int, int]]:
        """By payload case: handed out, in the ledgers, seen, repeated, lost, out of order."""
        columns = (self.handed_out, self.ledger, self.seen, self.repeated, self.lost, self.out_of_order)
        cases = sorted(set().union(*columns), key=lambda case: (-self.ledger[case], case))
        return {case: tuple(column[case] for column in columns) for case in cases}  # type: ignore[misc]
