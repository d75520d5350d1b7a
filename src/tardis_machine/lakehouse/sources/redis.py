"""Redis Streams as a source: a partition is a stream, and a place in it is an entry's id.

A stream counts the entries that were ever added to it (Redis 7), and so does an offset. So it is known how many entries were trimmed
before they were read.

Invariant: planning transfers ids, not entries, but for one; a range is two ids of one stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import LakeError, SettingsError, TerminalDeliveryError, TransientDeliveryError
from ...eventbus.buses.redis_streams import to_servers
from ...eventbus.buses.redis_streams.commands import ErrorReply, Redirect
from ...eventbus.buses.redis_streams.servers import Servers
from .options import SourceOptions
from .partitions import OffsetRange, Offsets, PartitionedSource, PartitionOffset, PartitionReader
from .records import Columns

if TYPE_CHECKING:
    from ...settings import Settings

__all__ = ["RedisOptions", "RedisReader", "create_source"]

_FIRST = "0-0"
_STEP = 5000
"""Entries that are counted, or fetched, at a time: a server does nothing else meanwhile."""
_MAX_HOPS = 5
_RANGE, _MOST_RANGES = 20_000, 64
"""Entries of one stream for which a further task is worth its start, about; and how many tasks at most."""
_SEQUENCES = 2**64 - 1
# The id of the last of the next entries, and their number, found where they lie.
_COUNT = (
    "local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3]) "
    "if #found == 0 then return {'', 0} end return {found[#found][1], #found}"
)


class RedisOptions(SourceOptions, frozen=True, kw_only=True):
    """The servers, the streams, and who asks."""

    stream: str
    routing: Mapping[str, str] | None = None
    destination_template: str | None = None
    url: str | None = None
    host: str | None = None
    port: int | None = None
    cluster_nodes: tuple[str, ...] | None = None
    sentinels: tuple[str, ...] | None = None
    sentinel_master: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    username: str | None = None
    password: str | None = None
    db: int | None = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_verify: bool = True


_SERVER = ("url", "host", "port", "cluster_nodes", "sentinels", "sentinel_master", "db")


def create_source(settings: Settings) -> PartitionedSource:
    """All streams that the Redis bus of the settings writes to."""
    options = RedisOptions.from_settings(settings, RedisReader.name)
    return PartitionedSource(RedisReader, options, (*_SERVER, "stream", "routing", "destination_template"))


class RedisReader(PartitionReader[RedisOptions]):
    """Reads streams with XRANGE."""

    name = "redis"

    def __init__(self, options: RedisOptions) -> None:
        super().__init__(options)
        problems: list[str] = []
        self._servers = Servers(*to_servers(options.to_mapping(), problems))
        if problems:
            raise SettingsError(problems)
        self._streams = list(dict.fromkeys((options.stream, *(options.routing or {}).values())))
        template = options.destination_template
        self._pattern = re.sub(r"\{\{.*?\}\}", "*", template) if template else None
        if self._pattern is not None and options.cluster_nodes is not None:
            raise LakeError(
                "the streams of a Redis cluster can't be found by --redis-stream-template; name them with --redis-stream-routing"
            )

    async def advance(self, start: Offsets, limit: int) -> dict[str, PartitionOffset]:
        """Each stream to its end, or as far as its share of the limit goes."""
        streams = dict.fromkeys([*start, *self._streams, *await self._found_streams()])
        share = max(limit // len(streams), 1)
        offsets = {stream: await self._next_offset(stream, start.get(stream), share) for stream in streams}
        return {stream: offset for stream, offset in offsets.items() if offset is not None}

    async def _found_streams(self) -> list[str]:
        if self._pattern is None:
            return []
        link = await self._servers.open()
        cursor, found = "0", []
        while True:
            reply = _checked(
                self._pattern, await link.ask("SCAN", cursor, "MATCH", self._pattern, "COUNT", "1000", "TYPE", "stream")
            )
            found += [name.decode() for name in reply[1]]
            cursor = reply[0].decode()
            if cursor == "0":
                return sorted(found)

    async def _next_offset(self, stream: str, offset: PartitionOffset | None, limit: int) -> PartitionOffset | None:
        info = await self._ask(stream, "XINFO", "STREAM", stream)
        if isinstance(info, ErrorReply):
            if "no such key" not in str(info):
                raise TerminalDeliveryError(f"the Redis stream {stream!r} can't be read: {info}")
            return offset
        said = {info[place].decode(): info[place + 1] for place in range(0, len(info), 2)}
        if "entries-added" not in said:
            raise TerminalDeliveryError("the Redis server does not count entries: reading streams needs Redis 7 or later")
        added, removed, last = said["entries-added"], said["entries-added"] - said["length"], said["last-generated-id"].decode()
        if offset is None:
            offset = PartitionOffset(at=_FIRST, read=removed, began=removed)
        if offset.read > added or _order(offset.at) > _order(last):
            # Made anew under its name: it is read from its beginning.
            offset = PartitionOffset(at=_FIRST, read=removed, began=removed, torn=offset.torn + 1)
        if added - offset.read <= limit:
            return PartitionOffset(at=last, read=added, began=offset.began, torn=offset.torn) if last != offset.at else offset
        at, read = offset.at, max(offset.read, removed)
        while limit > 0:
            found, count = await self._count(stream, at, last, min(limit, _STEP))
            if not count:
                return PartitionOffset(at=last, read=added, began=offset.began, torn=offset.torn)
            at, read, limit = found, read + count, limit - count
        return PartitionOffset(at=at, read=read, began=offset.began, torn=offset.torn)

    async def _count(self, stream: str, after: str, until: str, limit: int) -> tuple[str, int]:
        reply = await self._ask(stream, "EVAL", _COUNT, "1", stream, f"({after}", until, str(limit))
        if isinstance(reply, ErrorReply):
            # Scripts are not for this user: then entries are transferred for nothing.
            entries = _checked(stream, await self._ask(stream, "XRANGE", stream, f"({after}", until, "COUNT", str(limit)))
            return (entries[-1][0].decode(), len(entries)) if entries else ("", 0)
        return reply[0].decode(), reply[1]

    async def split(self, partition: str, start: PartitionOffset | None, end: PartitionOffset) -> Sequence[OffsetRange]:
        """Parts of the same stretch of ids, which is of time: how many entries lie between two ids is not known without reading them."""
        is_same = start is not None and start.torn == end.torn
        after, before = (start.at, start.read) if start is not None and is_same else (_FIRST, end.began)
        parts = min(-(-(end.read - before) // _RANGE), _MOST_RANGES)
        if parts <= 1:
            return [OffsetRange(partition, after, end.at)]
        # What was removed would be the longest stretch.
        found = _checked(partition, await self._ask(partition, "XRANGE", partition, f"({after}", end.at, "COUNT", "1"))
        first, last = _number(found[0][0].decode() if found else after), _number(end.at)
        inner = {first + (last - first) * part // parts for part in range(1, parts)} - {last}
        bounds = [after, *(f"{bound >> 64}-{bound & _SEQUENCES}" for bound in sorted(inner)), end.at]
        return [OffsetRange(partition, *pair) for pair in pairwise(bounds)]

    async def fetch(self, part: OffsetRange, after: str) -> tuple[Columns, str]:
        """The next entries."""
        records = Columns()
        reply = await self._ask(part.partition, "XRANGE", part.partition, f"({after}", part.until, "COUNT", str(_STEP))
        for entry_id, fields in _checked(part.partition, reply):
            position = entry_id.decode()
            pairs = dict(zip(fields[::2], fields[1::2], strict=True))
            value, key = pairs.pop(b"value", None), pairs.pop(b"key", None)
            headers = [(name.decode(errors="replace"), text.decode(errors="replace")) for name, text in pairs.items()]
            key_text = None if key is None else key.decode(errors="replace")
            time_us = _order(position)[0] * 1000
            records.add(key_text, value, headers, position=position, time_us=time_us, destination=part.partition)
        return records, records.positions[-1] if records.positions else after

    async def close(self) -> None:
        """Ends all connections."""
        await self._servers.close()

    async def _ask(self, stream: str, *words: str) -> Any:
        """A command at the server that has the stream."""
        link = await self._servers.link_for(stream)
        for _ in range(_MAX_HOPS):
            reply = await link.ask(*words)
            redirect = Redirect.parse(str(reply), link.address[0]) if isinstance(reply, ErrorReply) else None
            if redirect is None:
                break
            link = await self._servers.redirected(stream, redirect.address, is_lasting=redirect.is_lasting)
        if isinstance(reply, ErrorReply) and str(reply).startswith(("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN")):
            raise TransientDeliveryError(f"Redis can't be read now: {reply}")
        return reply


def _checked(stream: str, reply: Any) -> Any:
    if isinstance(reply, ErrorReply):
        raise TerminalDeliveryError(f"the Redis stream {stream!r} can't be read: {reply}")
    return reply


def _order(entry_id: str) -> tuple[int, int]:
    time_ms, _, number = entry_id.partition("-")
    return int(time_ms), int(number)


def _number(entry_id: str) -> int:
    """An id as one number that orders as ids do."""
    time_ms, number = _order(entry_id)
    return time_ms << 64 | number
