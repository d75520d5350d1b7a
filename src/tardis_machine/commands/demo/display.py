"""What the demo prints: a bar for each step while it runs, and a line that says what the step did.

Invariant: bars are shown only on a terminal; lines go to standard output, whatever it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Display"]

Advance = Callable[[float, str], None]
"""Takes how much is done, and a note about it."""


class Display:
    """Prints lines and bars, and knows how long the demo has run."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console()
        self._began_at = time.monotonic()

    def print_line(self, what: str, text: str) -> None:
        """One line under the heading `what`."""
        self.console.print(f"[bold]{what:<10}[/] {text}", highlight=False, soft_wrap=True)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_at

    @contextmanager
    def bar(self, what: str, total: float | None) -> Iterator[Advance]:
        """Shows a bar while the block runs; without a total it only moves. Without a terminal it shows nothing."""
        if not self.console.is_terminal:
            yield lambda _done, _text: None
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        note = TextColumn("{task.fields[note]}", markup=False)
        columns: tuple[Any, ...] = (TextColumn(f"[bold]{what:<10}[/]"), BarColumn(), TimeElapsedColumn(), note)
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task("", total=total, note="")

            def advance(done: float, text: str) -> None:
                progress.update(task, completed=done, note=text)

            yield advance
