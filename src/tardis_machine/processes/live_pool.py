"""Live streams, each in a process of its own, and the clients that share them.

Invariant: two clients that ask for the same hear the same stream. The event loop never maps a message, and no stream can hurt another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..computed.data_types import parse_data_types
from ..errors import BusyError
from ..filters import optimize_filters, to_compact_json
from ..pipeline.frames import Form
from ..pipeline.normalizer import Normalizer
from ..pipeline.request import StreamRequest
from ..realtime.accounts import find_credentials
from ..realtime.backoff import Timings
from .child import ChildProcess
from .claims import withheld_topics
from .in_process import InProcess
from .jobs import live
from .jobs.contract import Chunk, Done, Failed, LiveSpec, PublishSpec, ViewSpec
from .live_stream import Hold, Publish, SharedStream
from .output_queue import OutputQueue
from .runner import Executor

__all__ = ["LivePool", "StreamKey"]


class StreamKey(NamedTuple):
    """What a stream is. Computed data types, and which messages about connections are shown, are of its views."""

    exchange: str
    data_types: tuple[str, ...]
    filters: bytes
    timeout_interval_ms: float
    is_published: bool


class LivePool:
    """Streams that are under way, at most `most` of them. `in_process` runs them on this event loop.

    A stream that nobody listens to goes on for `timings.linger_s`. `publish` gets the events of streams that are to be published,
    `record_dir` what all of them hear.
    """

    def __init__(
        self,
        *,
        publish: Publish,
        urls: Mapping[str, str],
        credentials: Mapping[str, str],
        timings: Timings,
        in_process: bool = False,
        most: int | None = None,
        record_dir: Path | None = None,
    ) -> None:
        self._publish = publish
        self._urls = urls
        self._credentials = credentials
        self._timings = timings
        self._in_process = in_process
        self._most = most
        self._record_dir = None if record_dir is None else str(record_dir)
        # Those that clients can join, in the order in which they came.
        self._streams: dict[StreamKey, SharedStream] = {}
        # Those and the ones that are on their way out.
        self._running: set[SharedStream] = set()

    @property
    def feeds(self) -> list[tuple[StreamKey, SharedStream]]:
        """The streams that clients can join, each with what it is."""
        return list(self._streams.items())

    @property
    def pids(self) -> list[int]:
        """The processes in use."""
        return [stream.pid for stream in self._running if stream.pid is not None]

    async def listen(
        self,
        requests: Sequence[StreamRequest],
        form: Form,
        make_publish: Callable[[], PublishSpec | None],
        *,
        holds_up: bool = False,
    ) -> AsyncGenerator[Chunk, None]:
        """What one client gets of live requests, until it leaves or the pool is stopped; raises where it can't go on.

        `make_publish` says how a stream is published that this client is the first of. The caller takes what it gets at once, and leaves
        where it can't pass it on; with `holds_up` it may take its time, and its streams wait for it.
        """
        streams: list[SharedStream] = []
        leavings: list[Callable[[], None]] = []
        hold = Hold(streams)
        queue = OutputQueue(hold if holds_up else None)
        try:
            for request in requests:
                stream = self._stream_of(request, make_publish)
                streams.append(stream)
                leavings.append(stream.join(ViewSpec(request, form), queue))
            ended = 0
            while ended < len(requests):
                output = await queue.get()
                if isinstance(output, Chunk):
                    yield output
                elif isinstance(output, Failed):
                    raise output.error
                elif isinstance(output, Done):
                    ended += 1
        finally:
            hold.resume()
            for leave in leavings:
                leave()

    def _stream_of(self, request: StreamRequest, make_publish: Callable[[], PublishSpec | None]) -> SharedStream:
        """The stream that a request shares with others; a new one where there is none."""
        key = _key_of(request)
        if key in self._streams:
            return self._streams[key]
        if len(self._streams) == self._most:
            raise BusyError(
                f"max-live-requests: {self._most} live requests are running, and no more are allowed; try again later"
            )

        def make_spec() -> LiveSpec:
            credentials = find_credentials(request.exchange, self._credentials)
            publish = make_publish() if request.publish else None
            return LiveSpec(request, publish, self._urls, self._timings, self._record_dir, credentials)

        stream = self._streams[key] = SharedStream(
            request.exchange,
            make_spec,
            self._make_executor,
            self._publish,
            linger_s=self._timings.linger_s,
            changed=lambda: self._share_out(request.exchange),
            ended=lambda: self._forget(key, stream),
        )
        self._running.add(stream)
        stream.task.add_done_callback(lambda _: self._running.discard(stream))
        return stream

    def _make_executor(self) -> Executor:
        return InProcess(live.LiveJobs) if self._in_process else ChildProcess(live.__name__)

    def _forget(self, key: StreamKey, stream: SharedStream) -> None:
        if self._streams.get(key) is stream:
            del self._streams[key]

    def _share_out(self, exchange: str) -> None:
        """What several streams of an exchange hear is published by one of them, of those that are published."""
        streams = [stream for key, stream in self._streams.items() if key.exchange == exchange and key.is_published]
        for stream, topics in zip(streams, withheld_topics([stream.claimant for stream in streams]), strict=True):
            stream.withhold(topics)

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Hears no more, and returns when all that was heard is with clients and publisher; after the time-out, the rest is lost."""
        streams = list(self._running)
        for stream in streams:
            stream.stop()
        if streams:
            await asyncio.wait([stream.task for stream in streams], timeout=timeout_s)
        for stream in streams:
            stream.task.cancel()
        await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)


def _key_of(request: StreamRequest) -> StreamKey:
    data_types = parse_data_types(request.data_types).normalizers
    filters = optimize_filters(Normalizer(request.exchange, data_types, realtime=True).filters(request.symbols or None))
    return StreamKey(request.exchange, data_types, to_compact_json(filters), request.timeout_interval_ms, request.publish)
