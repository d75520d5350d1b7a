"""redis-py and hiredis alone: plain XADDs packed in bulk, some thousands of them on their way, replies read in bulk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hiredis
from redis.asyncio import Connection

from tardis_machine.eventbus.buses.redis_streams.commands import NO_TRIM, Packer
from tardis_machine.eventbus.contract import Record

EVENTS = 300_000
TARGETS = {"": 120_000}
CHUNK = 500
CHUNKS_ON_THEIR_WAY = 8


async def send_ready(keywords: Mapping[str, Any], records: Sequence[Record], begin: Callable[[], None]) -> None:
    """Sends all, without transactions, and returns when the server has answered every command."""
    connection = Connection(host=keywords["host"], port=keywords["port"], protocol=2, socket_timeout=None)
    await connection.connect()  # type: ignore[no-untyped-call]
    reader = connection._reader
    assert reader is not None
    packer, replies = Packer(), hiredis.Reader()
    on_their_way: deque[int] = deque()
    begin()

    async def read(count: int) -> None:
        while count:
            reply = replies.gets()
            if reply is False:
                replies.feed(await reader.read(1 << 20))
            elif isinstance(reply, hiredis.ReplyError):
                raise reply
            else:
                count -= 1

    for start in range(0, len(records), CHUNK):
        chunk = records[start : start + CHUNK]
        await connection.send_packed_command(packer.pack(chunk, NO_TRIM), check_health=False)
        on_their_way.append(len(chunk))
        if len(on_their_way) == CHUNKS_ON_THEIR_WAY:
            await read(on_their_way.popleft())
    await read(sum(on_their_way))
    await connection.disconnect()
