"""aiobotocore with ready bytes: calls as full as they may be, some of them at once; or, where order for a key is to be kept through
every failure, with one record of a key in a call, and one call at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from tardis_machine.eventbus.contract import Record


async def send_in_calls(
    service: str,
    keywords: Mapping[str, Any],
    records: Sequence[Record],
    a_call: int,
    at_once: int,
    put: Callable[[Any, Sequence[Record]], Awaitable[None]],
    *,
    is_ordered: bool,
    begin: Callable[[], None],
) -> None:
    """`put` sends what goes into one call, and returns when all of it is confirmed."""
    calls = iter(_calls_without_repeated_keys(records, a_call) if is_ordered else _full_calls(records, a_call))
    options = {f"aws_{name}": keywords[name.replace("_", "-")] for name in ("access_key_id", "secret_access_key")}
    config = AioConfig(max_pool_connections=at_once, parameter_validation=False)
    endpoint = {"endpoint_url": keywords["endpoint-url"], "region_name": keywords["region"]}
    async with AioSession().create_client(service, config=config, **endpoint, **options) as client:

        async def work() -> None:
            for call in calls:
                await put(client, call)

        begin()
        await asyncio.gather(*(work() for _ in range(1 if is_ordered else at_once)))


def _full_calls(records: Sequence[Record], a_call: int) -> Iterator[Sequence[Record]]:
    for start in range(0, len(records), a_call):
        yield records[start : start + a_call]


def _calls_without_repeated_keys(records: Sequence[Record], a_call: int) -> Iterator[Sequence[Record]]:
    call: dict[str, Record] = {}
    for record in records:
        if record.route.key in call or len(call) == a_call:
            yield list(call.values())
            call = {}
        call[record.route.key] = record
    yield list(call.values())
