"""What each session published to one bus, for a lake to prove that nothing is missing: counts, sequences, times, a digest of ids.

A session's file appears when it begins and is replaced as it goes on; when its `session_end` event is resolved, the session moves
to the log of closed ones. A file that is there at a start belongs to a process that died: its session is closed as incomplete,
with what was last written plus what the spool still holds. In write-ahead mode that is exact, as nothing leaves the spool before
the ledger has it on disk; otherwise it lacks what was accepted in the last moments and never reached the disk.

The beginning and the end of a session survive a power cut once they are written; with `sync` (write-ahead) all that is written does.

Invariant: the ledger counts what was accepted for the bus after its allow list, be it delivered, dead-lettered or dropped later:
what the lake lacks of that is missing. The log of closed sessions consists of whole lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
from xxhash import xxh3_64_hexdigest

from ..bronze.event import DIGEST_MASK, Event, Tally
from .durable_files import append_lines, sync_folder

if TYPE_CHECKING:
    from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import SessionEnd

__all__ = ["Ledger", "LedgerChange", "LedgerEntry", "LedgerSession", "to_session_end"]

DIED = "the machine ended before the session did"

SeriesKey = tuple[str, str, str]
"""Exchange, symbol, payload case: what sequences are counted for."""


class LedgerEntry(msgspec.Struct):
    """What was published of one exchange, symbol and payload case."""

    exchange: str
    symbol: str
    payload_case: str
    count: int
    first_sequence: int
    last_sequence: int
    first_local_us: int
    last_local_us: int
    digest: str
    """Of the event ids: `digest_of`, 32 hexadecimal digits."""

    def add(self, tally: Tally) -> None:
        """Counts more events of the same series."""
        self.count += tally.count
        # Bars of several intervals are several streams of one series: a tally may lie between the events of another.
        if tally.first.sequence < self.first_sequence:
            self.first_sequence, self.first_local_us = tally.first.sequence, tally.first.local_ts_us
        if tally.last.sequence > self.last_sequence:
            self.last_sequence, self.last_local_us = tally.last.sequence, tally.last.local_ts_us
        self.digest = f"{(int(self.digest, 16) + tally.digest) & DIGEST_MASK:032x}"


class LedgerSession(msgspec.Struct):
    """A session's ledger, as it is kept on disk."""

    session_id: str
    source: str
    origin: str
    meta: Mapping[str, str]
    started_us: int
    written_us: int = 0
    """When the ledger was last written: what came later may be lacking."""
    ended_us: int | None = None
    complete: bool = False
    """All that was asked for was published; False where it was cut short."""
    reason: str = ""
    entries: list[LedgerEntry] = []


class LedgerChange(msgspec.Struct, frozen=True):
    """A session's ledger on its way to the disk."""

    session_id: str
    content: bytes
    month: str
    """When the session began: `2024-01`."""
    is_durable: bool
    """It is to survive a power cut, and not only the end of the process."""

    @property
    def file_name(self) -> str:
        """The session's file, while it is not settled."""
        readable = quote(self.session_id, safe="")[:100]
        return f"session-{readable}-{xxh3_64_hexdigest(self.session_id.encode())}.json"


class _OpenSession:
    """A session on its way: its entries by series."""

    __slots__ = ("entries", "is_dirty", "is_new", "recovered_to", "session")

    def __init__(self, session: LedgerSession, *, is_new: bool) -> None:
        self.session = session
        # There is no file of it yet, or one that must not be found by the next start.
        self.is_new = is_new
        # What is in its file is no longer all.
        self.is_dirty = is_new
        # By series.
        self.entries: dict[SeriesKey, LedgerEntry] = {(e.exchange, e.symbol, e.payload_case): e for e in session.entries}
        # The last sequences that a process which died had written down.
        self.recovered_to = {series: entry.last_sequence for series, entry in self.entries.items()}


class Ledger:
    """The sessions of one bus. `add` and the like are quick and belong to the event loop; what touches the disk is named so."""

    def __init__(self, folder: Path, *, sync: bool = False) -> None:
        self._folder = folder
        self._sync = sync
        self._sessions: dict[str, _OpenSession] = {}
        # Ended and resolved, and not in the log of closed ones yet.
        self._settled: dict[str, LedgerSession] = {}

    def start(self, session_id: str, source: str, origin: str, meta: Mapping[str, str], now_us: int) -> None:
        """A session begins, unless it is known already."""
        if session_id not in self._sessions:
            self._sessions[session_id] = _OpenSession(LedgerSession(session_id, source, origin, meta, now_us), is_new=True)

    def add(self, tallies: Iterable[Tally], now_us: int) -> None:
        """Counts events that were accepted; a session that was not announced begins with its first one."""
        for tally in tallies:
            stream = tally.stream
            found = self._sessions.get(stream.session_id)
            if found is None:
                self.start(stream.session_id, stream.source, stream.origin, stream.meta, now_us)
                found = self._sessions[stream.session_id]
            found.is_dirty = True
            series = (stream.exchange, stream.symbol, stream.payload_case)
            entry = found.entries.get(series)
            if entry is None:
                first, last = tally.first, tally.last
                times = (first.sequence, last.sequence, first.local_ts_us, last.local_ts_us)
                found.entries[series] = LedgerEntry(*series, tally.count, *times, f"{tally.digest:032x}")
            else:
                entry.add(tally)

    def end(self, session_id: str, *, complete: bool, reason: str, now_us: int) -> LedgerSession | None:
        """The session's final ledger; None where no such session is open."""
        found = self._sessions.get(session_id)
        if found is None or found.session.ended_us is not None:
            return None
        session = found.session
        session.ended_us, session.complete, session.reason = now_us, complete, reason
        # What the next start makes of a file that does not know the end would contradict the end that was sent.
        found.is_new = found.is_dirty = True
        return self._current(found)

    @property
    def open_sessions(self) -> list[str]:
        """Those that have not ended."""
        return [session_id for session_id, found in self._sessions.items() if found.session.ended_us is None]

    @property
    def ended_sessions(self) -> list[str]:
        """Those that have ended and are not settled."""
        return [session_id for session_id, found in self._sessions.items() if found.session.ended_us is not None]

    def _current(self, found: _OpenSession) -> LedgerSession:
        found.session.entries = [found.entries[series] for series in sorted(found.entries)]
        return found.session

    def take_changes(self, now_us: int, *, only_new: bool = False) -> list[LedgerChange]:
        """What `write_changes` is to write: sessions that changed since the last call, or began, or ended."""
        changes = []
        for found in self._sessions.values():
            if found.is_new or (found.is_dirty and not only_new):
                is_durable = self._sync or found.is_new
                found.is_dirty = found.is_new = False
                found.session.written_us = now_us
                changes.append(_to_change(self._current(found), is_durable=is_durable))
        return changes

    def put_back(self, changes: Iterable[LedgerChange]) -> None:
        """These could not be written, and are to be taken again."""
        for change in changes:
            found = self._sessions.get(change.session_id)
            if found is not None:
                found.is_new = found.is_dirty = True

    def settle(self, session_ids: Iterable[str]) -> None:
        """The ends of these sessions are resolved: they are to move to the log of closed ones."""
        for session_id in session_ids:
            found = self._sessions.get(session_id)
            if found is not None and found.session.ended_us is not None:
                self._settled[session_id] = found.session
                del self._sessions[session_id]

    @property
    def settled(self) -> list[LedgerChange]:
        """What `write_settled` is to write next, all of one month; `forget` must follow."""
        changes = [_to_change(session, is_durable=True) for session in self._settled.values()]
        return [change for change in changes if change.month == changes[0].month]

    def forget(self, settled: Iterable[LedgerChange]) -> None:
        """These are in the log of closed sessions."""
        for change in settled:
            del self._settled[change.session_id]

    def write_changes(self, changes: Sequence[LedgerChange]) -> None:
        """Replaces the files of sessions. OSError where that fails; some may be replaced then."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for change in changes:
            temporary = self._folder / f".{change.file_name}"
            with temporary.open("wb") as file:
                file.write(change.content)
                file.flush()
                if change.is_durable:
                    os.fdatasync(file.fileno())
            temporary.replace(self._folder / change.file_name)
        if any(change.is_durable for change in changes):
            sync_folder(self._folder)

    def write_settled(self, settled: Sequence[LedgerChange]) -> None:
        """Moves sessions to the log of closed ones; with an OSError, none of them."""
        self._folder.mkdir(parents=True, exist_ok=True)
        append_lines(self._folder / f"closed-{settled[0].month}.jsonl", [change.content for change in settled])
        for change in settled:
            (self._folder / change.file_name).unlink(missing_ok=True)

    def read_open(self) -> list[str]:
        """Takes in the sessions that a process which died left behind; a problem for each file that can't be read."""
        problems = []
        for path in sorted(self._folder.glob("session-*.json")):
            try:
                session = msgspec.json.decode(path.read_bytes(), type=LedgerSession)
            except msgspec.MsgspecError as error:
                path.replace(path.with_suffix(".damaged"))
                problems.append(f"the ledger {path} can't be read and was put aside: {error}")
            else:
                # Where it has ended, that is to survive a power cut before its end is sent again.
                self._sessions[session.session_id] = _OpenSession(session, is_new=session.ended_us is not None)
        return problems

    def recover(self, event: Event) -> None:
        """Counts an event that is still in the spool, where the process that died had not yet written it down."""
        stream = event.stream
        found = self._sessions.get(stream.session_id)
        if found is None or found.session.ended_us is not None or stream.payload_case == "session_end":
            return
        series = (stream.exchange, stream.symbol, stream.payload_case)
        if event.sequence > found.recovered_to.get(series, -1):
            self.add([Tally([event])], 0)

    @property
    def left_behind(self) -> list[LedgerSession]:
        """Sessions that have an end, but whose `session_end` may not have reached the bus."""
        return [self._current(found) for found in self._sessions.values() if found.session.ended_us is not None]


def _to_change(session: LedgerSession, *, is_durable: bool) -> LedgerChange:
    began = datetime.fromtimestamp(session.started_us / 1e6, UTC)
    return LedgerChange(session.session_id, msgspec.json.encode(session), f"{began:%Y-%m}", is_durable)


def to_session_end(session: LedgerSession) -> SessionEnd:
    """The ledger as the payload of a `session_end` event."""
    from ..generated.lakehouse.bronze.v1.normalized_event_pb2 import SessionEnd

    message = SessionEnd(complete=session.complete, session_id=session.session_id)
    if session.reason:
        message.reason = session.reason
    message.started_ts.FromMicroseconds(session.started_us)
    message.ended_ts.FromMicroseconds(session.ended_us or session.written_us)
    for entry in session.entries:
        line = message.entries.add(
            payload_case=entry.payload_case,
            count=entry.count,
            first_sequence=entry.first_sequence,
            last_sequence=entry.last_sequence,
            digest=bytes.fromhex(entry.digest),
        )
        if entry.exchange:
            line.exchange = entry.exchange
        if entry.symbol:
            line.symbol = entry.symbol
        line.first_local_ts.FromMicroseconds(entry.first_local_us)
        line.last_local_ts.FromMicroseconds(entry.last_local_us)
    return message
