"""Bodies that are there before they are sent, which may be long.

Invariant: however many clients are sent the same body, it is in memory once, and of each that does not read no more than a piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import hdrs, web

__all__ = ["SharedBody", "write_pieces"]

UNREAD_TIMEOUT_S = 60.0
"""A client that takes nothing for so long gives its place to others."""

# What is handed to a connection is there a second time.
_PIECE_BYTES = 64 * 1024


class SharedBody(web.StreamResponse):
    """An answer whose body others may hold too. It is written when its handler has ended, so that it may give way to a new connection."""

    def __init__(self, request: web.Request, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(headers={**headers, hdrs.CONTENT_LENGTH: str(len(body))})
        self._request = request
        self._shared = body

    async def write_eof(self, data: bytes = b"") -> None:
        """See web.StreamResponse; the body comes before."""
        shared, self._shared = self._shared, b""
        await write_pieces(self._request, self, shared)
        await super().write_eof(data)


async def write_pieces(request: web.Request, response: web.StreamResponse, body: bytes) -> None:
    """Writes a body at the pace of who reads it. ConnectionError where the client has left, or takes nothing for too long."""
    for start in range(0, len(body), _PIECE_BYTES):
        try:
            async with asyncio.timeout(UNREAD_TIMEOUT_S):
                await response.write(memoryview(body)[start : start + _PIECE_BYTES])
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # closed in order it would wait for a client that does not read
            raise ConnectionResetError("the client takes nothing") from None
