"""The sessions of one bus: what its ledger counts of them, and their ends, which go out as events.

Invariant: the end of a session is sent behind all of its events, and when its ledger is on disk. A session leaves the ledger only
when its end is resolved, or is safe in the spool, or is not wanted on this bus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...bronze.encoding import BronzeEncoder
from ..delivery import Delivery
from ..ledger import DIED, Ledger, LedgerSession, to_session_end
from ..routing import Router
from .clocks import Clocks
from .ledger_writer import LedgerWriter
from .parcel import Parcel

__all__ = ["Sessions"]


class Sessions:
    """Starts, counts and ends the sessions of one bus. `on_resolved` hears of those whose end need not be sent (again)."""

    def __init__(
        self,
        ledger: Ledger,
        ledger_writer: LedgerWriter,
        delivery: Delivery,
        router: Router,
        clocks: Clocks,
        on_resolved: Callable[[list[str]], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._ledger_writer = ledger_writer
        self._delivery = delivery
        self._router = router
        self._clocks = clocks
        # Sessions whose end need not be sent (again).
        self._done: list[str] = []
        self._on_resolved = on_resolved

    @property
    def open_sessions(self) -> list[str]:
        """Those that have not ended."""
        return self._ledger.open_sessions

    async def start(self, session_id: str, source: str, origin: str, meta: Mapping[str, str]) -> None:
        """A session begins; its ledger is on disk when this returns."""
        self._ledger.start(session_id, source, origin, meta, self._clocks.wall_us())
        try:
            await self._ledger_writer.write(only_new=True)
        except OSError as error:
            self._ledger_writer.log_failure(error)

    def count(self, parcel: Parcel) -> None:
        """The ledger counts the events of a parcel, once."""
        self._ledger.add(parcel.tallies, self._clocks.wall_us())
        parcel.tallies = []

    def end(self, session_id: str, *, complete: bool, reason: str) -> None:
        """Closes the session's ledger and sends it behind all of the session's events, once it is on disk."""
        session = self._ledger.end(session_id, complete=complete, reason=reason, now_us=self._clocks.wall_us())
        if session is not None:
            self._send_end(session)

    def end_those_left_open(self) -> None:
        """Closes what a process that died left open, and sends all ends that may not have reached the bus."""
        for session_id in self._ledger.open_sessions:
            self._ledger.end(session_id, complete=False, reason=DIED, now_us=self._clocks.wall_us())
        for session in self._ledger.left_behind:
            self._send_end(session)

    def _send_end(self, session: LedgerSession) -> None:
        if not self._router.admits("session_end"):
            self._done.append(session.session_id)
            self._tell([session.session_id])
            return
        ended_us = session.ended_us or self._clocks.wall_us()
        encoder = BronzeEncoder(
            session_id=session.session_id,
            origin=session.origin,  # type: ignore[arg-type]
            meta=session.meta,
            source=session.source,
            clock_us=lambda: ended_us,  # the same bytes when a later start sends it again
        )
        for event in encoder.encode_session_end(to_session_end(session)):
            record = self._router.route_events([event])
            cases = {event.stream.payload_case: 1}
            self._delivery.offer(record, sum(record.sizes), self._clocks.now(), cases, session.session_id)

    def note_ends_safe(self) -> None:
        """Every end that was sent is resolved, or in the spool."""
        self._done += [session.session_id for session in self._ledger.left_behind]

    def take_done(self) -> list[str]:
        """Sessions that the ledger may forget, since the last call."""
        self.note_resolved()
        done, self._done = self._done, []
        return done

    def note_resolved(self) -> None:
        """Looks which ends were resolved since the last call."""
        resolved = self._delivery.take_ended_sessions()
        self._done += resolved
        self._tell(resolved)

    def _tell(self, session_ids: list[str]) -> None:
        if self._on_resolved is not None and session_ids:
            self._on_resolved(session_ids)
