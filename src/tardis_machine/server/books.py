"""`/book?exchange=&symbol=&at=&depth=`: a book at an instant, out of history.

Invariant: it counts as a replay, and has the limits of one.
"""

from __future__ import annotations

from aiohttp import web

from ..engine import Machine
from ..pipeline.book_at import parse_book
from .request_options import query_of

__all__ = ["BookRoutes"]


class BookRoutes:
    """The handler, for one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def add_to(self, app: web.Application) -> None:
        """Puts the route into an application."""
        app.router.add_get("/book", self.book, allow_head=False)

    async def book(self, request: web.Request) -> web.Response:
        """The book as a `book_change` that is a snapshot."""
        query = query_of(request)
        asked = parse_book(query.get("exchange"), query.get("symbol"), query.get("at"), query.get("depth"))
        book = await self._machine.book_at(asked)
        if book is None:
            raise web.HTTPNotFound(reason=asked.none_known)
        return web.Response(body=book, content_type="application/json")
