"""What runs in a process: replays (`replay`), live streams (`live`), replays that go on live (`since`), as `contract` specifies them.

Invariant: a job is told what to do by commands and answers with outputs; it knows nothing of sockets, pools or clients. So the same
code runs in a child process and, for debugging, inside the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .contract import Output

__all__ = ["Jobs", "Put"]

Put = Callable[[int, Output], None]
"""Takes the number of a job and what came of it."""


class Jobs(Protocol):
    """The jobs of one process, by number. What comes of them goes to the `Put` that it was made with."""

    def obey(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        """`start` and a specification begin a job, `cancel` forgets one; any other name is a method of the job.

        A command for a job that has ended does nothing: it ended while the command was on its way.
        """

    def pause(self) -> None:
        """Nobody takes what they make: they are to do nothing for now."""

    def resume(self) -> None:
        """There is room again."""

    async def wait(self) -> None:
        """Returns when all that was cancelled is over."""
