"""Errors of one connection: told once, then counted.

Invariant: every error is either told or in the count of one that is told later; none is told more often than the summary interval,
unless the connection works again.
"""

from __future__ import annotations

from typing import NamedTuple

from ..messages import ErrorCode

__all__ = ["Trouble", "Troubles"]


class Trouble(NamedTuple):
    """An error that is to be told, and how many like it followed the last one told."""

    code: ErrorCode | None
    details: str
    followed: int = 0


class _Run:
    """Errors of one code."""

    __slots__ = ("count", "details", "told_at_s")

    def __init__(self, now_s: float) -> None:
        self.told_at_s = now_s
        # Those that followed, and what the last of them said.
        self.count = 0
        self.details = ""


class Troubles:
    """What went wrong lately, by code. Falsy where nothing did."""

    def __init__(self, summary_s: float) -> None:
        self._summary_s = summary_s
        self._runs: dict[ErrorCode | None, _Run] = {}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, code: ErrorCode | None, details: str, now_s: float) -> list[Trouble]:
        """Takes an error; what is to be told now."""
        run = self._runs.get(code)
        if run is None:
            self._runs[code] = _Run(now_s)
            return [Trouble(code, details)]
        run.count += 1
        run.details = details
        return self.settle(now_s)

    def settle(self, now_s: float) -> list[Trouble]:
        """What was counted for long enough; a code of which nothing was heard since is forgotten."""
        due = [code for code, run in self._runs.items() if now_s - run.told_at_s >= self._summary_s]
        told = []
        for code in due:
            run = self._runs[code]
            if run.count:
                told.append(Trouble(code, run.details, run.count))
                run.told_at_s, run.count = now_s, 0
            else:
                del self._runs[code]
        return told

    def recover(self) -> list[Trouble]:
        """The connection works: what was counted of attempts to make it."""
        runs = {code: run for code, run in self._runs.items() if code in ("WS_CONNECT", "WS_SEND")}
        for code in runs:
            del self._runs[code]
        return [Trouble(code, run.details, run.count) for code, run in runs.items() if run.count]

    def end(self) -> list[Trouble]:
        """The connection is no longer wanted: whatever was counted."""
        runs, self._runs = self._runs, {}
        return [Trouble(code, run.details, run.count) for code, run in runs.items() if run.count]
