"""What is heard live, kept as the history API would have recorded it: a file for each minute.

Invariant: a minute that has a file was heard from its start to its end, but for what its empty lines say: there the recorder was not
connected, or not there. A minute in which nobody was connected has none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..messages import parse_timestamp_us
from ..recorded_line import MINUTE_LENGTH, to_time
from ..telemetry import get_logger

__all__ = ["LineRecorder", "MinuteStore"]

log = get_logger("recorder")

_MINUTE_US = 60_000_000
_GRACE_S = 2.0
"""How long after its end a minute waits for its last lines."""


class MinuteStore(Protocol):
    """Where minutes are kept; one process at a time writes there."""

    @property
    def folder(self) -> Path:
        """Names it in the log."""

    def claim(self) -> bool:
        """Whether this process may write."""

    def release(self) -> None:
        """Lets another process write."""

    def append(self, start_us: int, data: bytes) -> None:
        """Adds lines to the minute at hand, or begins it."""

    def seal(self, start_us: int, *, is_cut: bool = False) -> None:
        """The minute is over; `is_cut`: what was heard at its end is missing."""


class LineRecorder:
    """Hears the lines of connections, each of which has a number: `stores` says where those of each are kept.

    Connections with the same store are recorded together, as history has them.
    """

    def __init__(self, stores: Sequence[MinuteStore]) -> None:
        tapes = {store: _Tape(store, stores.count(store)) for store in stores}
        # By the number of a connection.
        self._tapes = [tapes[store] for store in stores]

    def __call__(self, _exchange: str, connection: int, lines: Sequence[bytes]) -> None:
        self._tapes[connection].add(connection, lines)

    def close(self) -> None:
        """Ends the minutes that are not over yet; what follows is another's to record."""
        for tape in dict.fromkeys(self._tapes):
            tape.close()


class _Tape:
    """What is heard for one store."""

    def __init__(self, store: MinuteStore, connections: int) -> None:
        self._store = store
        self._connections = connections
        # Those that have brought something, and were not lost since.
        self._connected: set[int] = set()
        # The minute at hand, as its lines write it, and when it began; none while there is nothing to record.
        self._minute = b""
        self._start_us = 0
        # A part of it could not be written.
        self._is_cut = False
        self._timer: asyncio.TimerHandle | None = None
        self._sealing: set[asyncio.Future[None]] = set()
        # The minute that another process records.
        self._refused = b""

    def add(self, connection: int, lines: Sequence[bytes]) -> None:
        run: list[bytes] = []
        for line in lines:
            if line and line[:MINUTE_LENGTH] != self._minute:
                self._append(run)
                run = []
                self._begin(line[:MINUTE_LENGTH])
            # Before the first message there was nothing to lose.
            if self._minute:
                run.append(line)
        self._append(run)
        if lines:
            (self._connected.add if lines[-1] else self._connected.discard)(connection)

    def _begin(self, minute: bytes) -> None:
        start_us = parse_timestamp_us(f"{minute.decode()}:00.000Z")
        if self._minute and start_us < self._start_us:
            return  # it comes late, or the clock was set back: what is heard stays in order
        follows = self._minute and start_us == self._start_us + _MINUTE_US
        self._seal()
        self._open(minute, start_us, follows=bool(follows))

    def _open(self, minute: bytes, start_us: int, *, follows: bool) -> None:
        if minute == self._refused:
            return
        if not self._claim():
            self._refused = minute
            return
        self._minute, self._start_us, self._is_cut = minute, start_us, False
        # Of what came before in this minute nothing is known.
        self._append([] if follows else [b""])
        left_s = (start_us + _MINUTE_US) / 1e6 - time.time()
        self._timer = asyncio.get_running_loop().call_later(max(left_s, 0.0) + _GRACE_S, self._turn)

    def _claim(self) -> bool:
        try:
            is_ours = self._store.claim()
        except OSError as error:
            self._complain(error)
            return False
        if not is_ours and not self._refused:
            log.info("another process records the same, so this one does not", folder=self._store.folder)
        return is_ours

    def _turn(self) -> None:
        """Nothing came since the minute ended."""
        start_us = self._start_us
        self._seal()
        # Silence is recorded too, while anyone is there to hear it.
        if self._connected and time.time() * 1e6 < start_us + 2 * _MINUTE_US:
            following_us = start_us + _MINUTE_US
            self._open(to_time(following_us)[:MINUTE_LENGTH], following_us, follows=True)

    def _append(self, lines: Sequence[bytes]) -> None:
        if self._is_cut or not self._minute:
            return
        try:
            self._store.append(self._start_us, b"".join([line + b"\n" for line in lines]))
        except OSError as error:
            self._is_cut = True
            self._complain(error)

    def _seal(self, *, is_last: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._minute:
            self._minute = b""
            if is_last:
                self._write(self._start_us, is_cut=True)
            else:
                task = asyncio.get_running_loop().run_in_executor(None, self._write, self._start_us, self._is_cut)
                self._sealing.add(task)
                task.add_done_callback(self._sealed)

    def _sealed(self, task: asyncio.Future[None]) -> None:
        self._sealing.discard(task)
        self._release()

    def _write(self, start_us: int, is_cut: bool) -> None:
        try:
            self._store.seal(start_us, is_cut=is_cut)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        log.error("a recorded minute can't be written", folder=self._store.folder, error=error.strerror)

    def close(self) -> None:
        """Writes what there is, then lets go of the store."""
        self._connected.clear()
        self._seal(is_last=True)
        self._release()

    def _release(self) -> None:
        if not self._sealing and not self._minute:
            self._store.release()
