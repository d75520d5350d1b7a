"""How far the demo is: one bar for what is being done, which ends as a line that says what was done.

Invariant: bars are for a terminal; lines are printed to whatever standard output is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Teller"]

Advance = Callable[[float, str], None]
"""Told how much is done, and a few words about it."""


class Teller:
    """Tells people what happens."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console()
        self._began_at = time.monotonic()

    def say(self, what: str, text: str) -> None:
        """One line."""
        self.console.print(f"[bold]{what:<10}[/] {text}", highlight=False, soft_wrap=True)

    @property
    def elapsed_s(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began_at

    @contextmanager
    def bar(self, what: str, total: float | None) -> Iterator[Advance]:
        """A bar while the block runs; without a total, one that only moves. Where there is no terminal, nothing."""
        if not self.console.is_terminal:
            yield lambda _done, _text: None
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        words = TextColumn("{task.fields[words]}", markup=False)
        columns: tuple[Any, ...] = (TextColumn(f"[bold]{what:<10}[/]"), BarColumn(), TimeElapsedColumn(), words)
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task("", total=total, words="")

            def advance(done: float, text: str) -> None:
                progress.update(task, completed=done, words=text)

            yield advance
