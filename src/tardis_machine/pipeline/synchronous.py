"""The library's iterators for who has no event loop, or one that is busy, as a notebook has.

Invariant: an iterator has a thread while it is used, and leaves nothing behind, however it is left.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from ..messages import BookChange, Message
from .book_at import book_at
from .library import replay, replay_normalized
from .raw_stream import stream
from .stream import stream_normalized
from .tables import replay_arrow

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "book_at_sync",
    "replay_arrow_sync",
    "replay_normalized_sync",
    "replay_sync",
    "stream_normalized_sync",
    "stream_sync",
]

Item = TypeVar("Item")


def _iterate(source: AsyncGenerator[Item, None]) -> Generator[Item, None, None]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tardis-machine", daemon=True)
    thread.start()

    async def advance(source: AsyncGenerator[Item, None]) -> list[Item]:
        try:
            return [await anext(source)]
        except StopAsyncIteration:
            return []

    async def leave(source: AsyncGenerator[Item, None]) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await source.aclose()

    try:
        while found := asyncio.run_coroutine_threadsafe(advance(source), loop).result():
            yield found[0]
    finally:
        try:
            asyncio.run_coroutine_threadsafe(leave(source), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _each(batches: AsyncGenerator[list[Item], None]) -> Iterator[Item]:
    with closing(_iterate(batches)) as iterator:
        for batch in iterator:
            yield from batch


def replay_sync(**options: Any) -> Iterator[tuple[str, Any] | None]:
    """`replay`, message by message."""
    return _each(replay(**options))


def replay_normalized_sync(*requests: dict[str, Any], **options: Any) -> Iterator[Message]:
    """`replay_normalized`, message by message.

    for message in replay_normalized_sync(exchange="bitmex", symbols=["XBTUSD"], from_="2020-02-01", to="2020-02-02",
                                          data_types=["trade"]): ...
    """
    return _each(replay_normalized(*requests, **options))


def replay_arrow_sync(*requests: dict[str, Any], **options: Any) -> Iterator[pa.RecordBatch]:
    """`replay_arrow`, batch by batch."""
    return _iterate(replay_arrow(*requests, **options))


def stream_sync(**options: Any) -> Iterator[tuple[str, Any] | None]:
    """`stream`, message by message."""
    return _each(stream(**options))


def stream_normalized_sync(*requests: dict[str, Any], **options: Any) -> Iterator[Message]:
    """`stream_normalized`, message by message."""
    return _each(stream_normalized(*requests, **options))


def book_at_sync(**options: Any) -> BookChange:
    """`book_at`."""

    async def once() -> AsyncGenerator[BookChange, None]:
        yield await book_at(**options)

    [book] = _iterate(once())
    return book
