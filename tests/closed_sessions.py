"""What a publisher's log of closed sessions holds."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tardis_machine.eventbus.ledger import LedgerSession


def read_closed_sessions(folder: Path) -> list[LedgerSession]:
    """All sessions in the log of closed ones, oldest first."""
    sessions = []
    for path in sorted(folder.glob("closed-*.jsonl")):
        lines = path.read_bytes().split(b"\n")
        sessions += [msgspec.json.decode(line, type=LedgerSession) for line in lines[:-1]]  # a torn last line is no line
    return sessions
