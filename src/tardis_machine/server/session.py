"""A session: one request being served, from its acceptance to its last byte, and what of it is published.

Invariant: every session that was opened with the publisher is closed with it, complete or not, with the reason.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from .._version import __version__
from ..compression import Compression
from ..errors import TardisMachineError
from ..history.client import HistoryClient
from ..job import Chunk, JobSpec, PublishSpec
from ..request import NormalizedRequest, RawRequest
from ..telemetry import MESSAGES_SENT, get_logger
from ..workers import WorkerPool

if TYPE_CHECKING:
    from ..eventbus.publisher import Publisher

log = get_logger("server")

SOURCE = f"tardis-machine/{__version__}"


@dataclass
class Machine:
    """What serves requests: the one thing that routes need."""

    client: HistoryClient
    workers: WorkerPool
    publisher: Publisher | None = None
    book_changes: str = "message"

    def publishing(self, route: str, transport: Literal["http", "ws"], request_id: str) -> PublishSpec | None:
        """How the events of a new session are to be encoded; None while no bus is on."""
        if self.publisher is None:
            return None
        session_id = uuid4().hex
        meta = {
            "request_id": request_id,
            "session_id": session_id,
            "transport": transport,
            "route": route,
            "app_version": __version__,
        }
        return PublishSpec(session_id, "replay", meta, SOURCE, self.book_changes, self.publisher.include)

    async def replay(
        self,
        route: str,
        requests: Sequence[RawRequest] | Sequence[NormalizedRequest],
        *,
        form: Literal["lines", "frames"],
        publish: PublishSpec | None = None,
        compression: Compression | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """The finished bytes of a request; its events go to the publisher on the way."""
        sent = MESSAGES_SENT.labels(route)
        outputs = self.workers.run(self.client, JobSpec(requests, form, compression, publish))
        publisher = self.publisher
        if publisher is None or publish is None:
            async with aclosing(outputs):
                async for output in outputs:
                    assert isinstance(output, Chunk)
                    sent.inc(output.messages)
                    yield output
            return
        reason = "the client went away"
        complete = False
        await publisher.session_start(publish.session_id, source=publish.source, origin=publish.origin, meta=publish.meta)
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    if isinstance(output, Chunk):
                        sent.inc(output.messages)
                        yield output
                    else:
                        await publisher.publish(output.events)
            complete, reason = True, ""
        except TardisMachineError as error:
            reason = str(error)
            raise
        finally:
            publisher.session_end(publish.session_id, complete=complete, reason=reason)
