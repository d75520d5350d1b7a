"""A replay that goes on live: listens first, then replays until history has told all that was missed, then tells what was heard.

Invariant: between what history told and what is heard nothing is missing and nothing is told twice; where the last minutes of history can't
be had, and the request does not wait for them, a disconnect says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import structs

from ..errors import OptionsError
from ..history.client import HistoryClient
from ..messages import UNSET, Disconnect, ErrorMessage, Message, parse_timestamp_us, to_timestamp
from ..realtime.accounts import find_credentials
from ..realtime.backoff import Timings
from .fetching import fetch_lines
from .live_buffer import LiveBuffer
from .merger import combine
from .replay import NormalizedReplay
from .request import SinceRequest
from .seam import Seam
from .stream import LiveStream, Recorder

__all__ = ["SinceReplays"]

_MINUTE_US = 60_000_000
# How long before live data is heard history is compared with it: longer than exchanges' and recorders' clocks differ.
_OVERLAP_US = _MINUTE_US
# How old history is, at least, when upstream has it.
_FRESHEST_US = 6 * _MINUTE_US


class SinceReplays:
    """Some requests, whose messages are merged. A context: listening ends with it."""

    def __init__(
        self,
        requests: Sequence[SinceRequest],
        client: HistoryClient,
        *,
        urls: Mapping[str, str],
        credentials: Mapping[str, str],
        timings: Timings | None = None,
        recorders: Sequence[Recorder | None] | None = None,
    ) -> None:
        self._changed = asyncio.Event()
        self._client = client
        self._replays = [
            _SinceReplay(request, client, self._changed, urls, credentials, timings, recorder)
            for request, recorder in zip(requests, recorders or [None] * len(requests), strict=True)
        ]
        live = [request.live for request in requests]
        # What nobody asked to see, by exchange.
        self._hidden = {(Disconnect, each.exchange) for each in live if not each.with_disconnect_messages} | {
            (ErrorMessage, each.exchange) for each in live if not each.with_error_messages
        }
        self._gaps: set[int] = set()
        self._running: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def __aenter__(self) -> SinceReplays:
        self._running = asyncio.create_task(self._listen())
        self._running.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        for replay in self._replays:
            replay.buffer.close()

    async def _listen(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for replay in self._replays:
                tasks.create_task(replay.stream.run())

    def stop(self) -> None:
        """Hears no more: `live` ends with what was heard."""
        self._is_stopping = True
        if self._running is not None:
            self._running.cancel()

    async def history(self) -> AsyncGenerator[list[Message], None]:
        """What history tells, merged by local timestamp; a lost connection of the recorder, too."""
        histories = [replay.history() for replay in self._replays]
        async with aclosing(histories[0] if len(histories) == 1 else combine(*histories)) as batches:
            async for batch in batches:
                yield batch

    async def live(self) -> AsyncGenerator[list[Message], None]:
        """What was heard that history has not told, then what is heard, in the order of its arrival."""
        assert self._running is not None
        for replay in self._replays:
            if replay.gap is not None:
                self._gaps.add(id(replay.gap))
                yield replay.tell([replay.gap])
        while True:
            self._changed.clear()
            is_empty = True
            for replay in self._replays:
                while heard := replay.buffer.take():
                    is_empty = False
                    if messages := replay.tell(replay.seam.sift(heard)):
                        yield messages
            if not is_empty:
                continue
            if self._running.done():
                if self._is_stopping:
                    return
                await self._running  # a fault of our own: exchanges' never end it
            await self._changed.wait()

    def shown(self, messages: list[Message]) -> list[Message]:
        """What of this the clients asked to see. What is missing at a seam is always shown."""
        return [
            message for message in messages if (type(message), message.exchange) not in self._hidden or id(message) in self._gaps
        ]


class _SinceReplay:
    """One of them."""

    def __init__(
        self,
        request: SinceRequest,
        client: HistoryClient,
        changed: asyncio.Event,
        urls: Mapping[str, str],
        credentials: Mapping[str, str],
        timings: Timings | None,
        recorder: Recorder | None,
    ) -> None:
        self.request = request
        self._client = client
        now_us = client.now_us
        if request.history.from_us > now_us:
            asked = to_timestamp(request.history.from_us)
            raise OptionsError(f"from: expected a time that is past where the replay goes on live, got {asked}", "from")
        self.buffer = LiveBuffer(changed, lambda: client.now_us)
        self._seam_us = now_us - _OVERLAP_US
        self.seam = Seam(self._seam_us)
        self._replay = NormalizedReplay(request.history, keep_disconnects=True)
        found = find_credentials(request.history.exchange, credentials)
        options: dict[str, Any] = {"urls": urls, "timings": timings, "record": recorder, "credentials": found}
        self.stream = LiveStream(request.live, self.buffer, **options)
        self.buffer.listen(self.stream.connections)
        self.gap: Disconnect | None = None
        """Says what is missing at the seam, where something is."""

    def tell(self, messages: list[Message]) -> list[Message]:
        """Normalized messages with the computed ones among them: what is computed goes on through the seam."""
        return self._replay.compute(messages)

    async def history(self) -> AsyncGenerator[list[Message], None]:
        """Until all connections are heard, and a little longer."""
        at_us = self.request.history.from_us
        until_us = max(_whole_minutes(self._client.now_us), at_us)
        waits = bool(self.request.history.wait_when_data_not_yet_available)
        while True:
            if not waits:
                until_us = await self._at_hand(at_us, until_us)
            async with aclosing(self._between(at_us, until_us)) as batches:
                async for messages in batches:
                    if parse_timestamp_us(messages[-1].local_timestamp) >= self._seam_us:
                        self.seam.tell(messages)
                    if told := self.tell(messages):
                        yield told
            is_behind = until_us <= at_us
            at_us = max(until_us, at_us)
            is_covered = at_us >= self.buffer.covered_us()
            if not is_covered and is_behind and not waits:
                self.gap = self._missing(at_us)
            if is_covered or self.gap is not None:
                # At once, as other requests may be replayed for minutes yet, and what is lost now no history tells.
                self.buffer.open()
                return
            until_us = _whole_minutes(at_us) + _MINUTE_US

    async def _between(self, from_us: int, to_us: int) -> AsyncGenerator[list[Message], None]:
        for period in self._replay.periods():
            part = structs.replace(period, from_us=max(period.from_us, from_us), to_us=min(period.to_us, to_us))
            if part.from_us >= part.to_us:
                continue
            async with aclosing(fetch_lines(self._client, self.request.history, [part])) as source:
                async for _, lines in source:
                    if messages := self._replay.normalize(period, lines):
                        yield messages

    async def _at_hand(self, from_us: int, to_us: int) -> int:
        """Until when there is history without a wait: what upstream has by now, and what lies here."""
        at_us = max(_whole_minutes(self._client.now_us - _FRESHEST_US), from_us)
        filters = self._replay.periods()[-1].filters
        while at_us < to_us and await self._client.is_at_hand(self.request.history.exchange, _whole_minutes(at_us), filters):
            at_us = _whole_minutes(at_us) + _MINUTE_US
        return min(at_us, to_us)

    def _missing(self, from_us: int) -> Disconnect:
        asked = self.request.history
        now = to_timestamp(self._client.now_us)
        reason = f"history from {to_timestamp(from_us)} to {now} is not there yet, and the request does not wait for it"
        return Disconnect(asked.exchange, now, UNSET if asked.symbols is None else list(asked.symbols), reason)


def _whole_minutes(instant_us: int) -> int:
    return instant_us - instant_us % _MINUTE_US
