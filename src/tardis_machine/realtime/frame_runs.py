"""What a WebSocket receives, in runs: the whole frames of one kind that a read of the socket brought are one message, whose data is a list.

Invariant: runs and single messages come in the order of their frames. Only what was compiled makes runs, of frames that are plain: whole,
unmasked, uncompressed text or binary; from the first frame on that is none of these, and no ping, all is left to aiohttp's own parser.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import aiohttp

__all__ = ["RunSocket", "runs_before"]


def runs_before(parser: Any, queue: Any, limit_bytes: int) -> Any:
    """What frames are given to in place of aiohttp's parser, with which both fill the queue; a message is no longer than the limit."""
    return parser


class RunSocket(aiohttp.ClientWebSocketResponse[Any]):
    """A connection whose `receive` may give a run. aiohttp sets its parser before the first frame is read."""

    limit_bytes = 256 * 1024 * 1024
    """Of one message: a whole market's book has tens of megabytes."""

    @property
    def _parser(self) -> Any:
        return self._runs

    @_parser.setter
    def _parser(self, parser: Any) -> None:
        self._runs = None if parser is None else runs_before(parser, self._reader, self.limit_bytes)


# Where it was compiled, runs are made.
with suppress(ImportError):
    from .frame_runs_compiled import *  # noqa: F403
