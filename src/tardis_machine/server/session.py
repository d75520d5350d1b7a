"""A session: one request being served, from its acceptance to its last byte, and what of it is published.

Invariant: every session that was opened with the publisher is closed with it, complete or not, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from .._version import __version__
from ..compression import Compression
from ..errors import TardisMachineError
from ..history.client import HistoryClient
from ..job.contract import Chunk, Events, JobSpec, PublishSpec
from ..live import LivePool, LiveSpec
from ..realtime.backoff import Pace
from ..request import NormalizedRequest, RawRequest, StreamRequest
from ..telemetry import MESSAGES_SENT, get_logger
from ..workers import WorkerPool

if TYPE_CHECKING:
    from ..eventbus.encoding import Origin
    from ..eventbus.publisher import Publisher

log = get_logger("server")

SOURCE = f"tardis-machine/{__version__}"


@dataclass(kw_only=True)
class LiveMachine:
    """What serves live requests, and publishes."""

    live: LivePool
    publisher: Publisher | None = None
    book_changes: str = "message"
    exchange_urls: Mapping[str, str] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)

    def publishing(
        self, route: str, transport: Literal["http", "ws", "cli"], request_id: str, origin: Origin = "replay"
    ) -> PublishSpec | None:
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
        return PublishSpec(session_id, origin, meta, SOURCE, self.book_changes, self.publisher.include)

    async def stream(
        self,
        route: str,
        requests: Sequence[StreamRequest],
        *,
        form: Literal["lines", "frames", "none"],
        publish: PublishSpec | None = None,
        stop: asyncio.Event | None = None,
        record_dir: Path | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """The finished bytes of live requests, until `stop` is set; their events go to the publisher on the way.

        Live data has no end of its own: a session that its client ends is complete.
        """
        folder = None if record_dir is None else str(record_dir)
        outputs = self.live.run(LiveSpec(requests, form, publish, self.exchange_urls, self.pace, folder), stop)
        chunks = self._pass_on(route, outputs, publish, None)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def _pass_on(
        self, route: str, outputs: AsyncGenerator[Chunk | Events, None], publish: PublishSpec | None, cut: str | None
    ) -> AsyncGenerator[Chunk, None]:
        """Chunks to who asked, events to the publisher. `cut` is why a session is not complete when nobody takes the rest."""
        sent = MESSAGES_SENT.labels(route)
        publisher = self.publisher
        if publisher is None or publish is None:
            async with aclosing(outputs):
                async for output in outputs:
                    assert isinstance(output, Chunk)
                    sent.inc(output.messages)
                    yield output
            return
        complete, reason = cut is None, cut or ""
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
        except Exception as error:
            complete = False
            reason = str(error) if isinstance(error, TardisMachineError) else "an internal error"
            raise
        finally:
            publisher.session_end(publish.session_id, complete=complete, reason=reason)


@dataclass(kw_only=True)
class Machine(LiveMachine):
    """What serves all requests: the one thing that routes need."""

    client: HistoryClient
    workers: WorkerPool

    async def replay(
        self,
        route: str,
        requests: Sequence[RawRequest] | Sequence[NormalizedRequest],
        *,
        form: Literal["lines", "frames"],
        publish: PublishSpec | None = None,
        compression: Compression | None = None,
        cut: str = "the client went away",
    ) -> AsyncGenerator[Chunk, None]:
        """The finished bytes of a request; its events go to the publisher on the way. `cut` is why nobody takes the rest."""
        outputs = self.workers.run(self.client, JobSpec(requests, form, compression, publish))
        chunks = self._pass_on(route, outputs, publish, cut)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
