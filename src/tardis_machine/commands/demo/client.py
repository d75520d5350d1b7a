"""The machine with a client that asks it: what the client gets is counted, what the bus confirms is too.

Invariant: the client is done when it has all that the machine will publish, so that both counts are of the same events.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ... import telemetry
from ...errors import TardisMachineError
from ...messages import parse_timestamp_us
from ...server.app import TardisMachine
from ...settings import Settings
from .progress import Teller
from .walk import FROM_US, Walk

if TYPE_CHECKING:
    from ...sample.live.separate_process import RemoteExchanges

__all__ = ["ask"]

# Longer than any pause of the market, shorter than a connection may be silent.
_SILENCE_S = 2.0
_DRAIN_S = 900.0
_LOOK_EVERY = 2_000


def ask(walk: Walk, settings: Settings, teller: Teller) -> dict[str, Counter[str]]:
    """Counts of what the client received, and of what the bus confirmed."""
    with _upstream(walk, settings, teller) as (options, stop_market):
        return asyncio.run(_serve_and_ask(walk, options, stop_market, teller))


@contextmanager
def _upstream(walk: Walk, settings: Settings, teller: Teller) -> Iterator[tuple[dict[str, Any], Callable[[], None]]]:
    """Where data comes from, as options of the machine; and what stops it, where it would go on for ever."""
    exchanges = [request["exchange"] for request in walk.requests]
    if walk.live:
        from ...sample.live.separate_process import serve_exchanges_in_process

        teller.say("exchanges", f"{', '.join(exchanges)}, simulated (seed {walk.seed}, activity {walk.activity:.0%})")
        remote: RemoteExchanges
        with serve_exchanges_in_process(exchanges, seed=walk.seed, activity=walk.activity) as remote:
            yield {"exchange_urls": remote.urls}, remote.pause
        return
    if walk.real:
        teller.say("history", settings.api_url)
        yield {"api_url": settings.api_url, "api_key": settings.api_key, "cache_dir": settings.cache_dir}, lambda: None
        return
    from ...sample.history_api import SampleHistoryApi

    teller.say(
        "history", f"a sample market (seed {walk.seed}, activity {walk.activity:.0%}) behind a stand-in of the history API"
    )
    # Sample history is not what the shared cache is for.
    cache_dir = walk.folder / "cache" / f"{walk.seed}-{walk.activity:g}"
    with SampleHistoryApi.serve_in_process(seed=walk.seed, activity=walk.activity) as url:
        yield {"api_url": url, "cache_dir": cache_dir}, lambda: None


async def _serve_and_ask(
    walk: Walk, options: dict[str, Any], stop_market: Callable[[], None], teller: Teller
) -> dict[str, Counter[str]]:
    options = {"spool_dir": walk.folder / "spool", "shutdown_timeout": _DRAIN_S, walk.bus: walk.bus_options, **options}
    machine = TardisMachine(**options)
    # The metrics are of the process, not of this machine.
    before = _confirmed(walk.bus)
    await machine.start(port=0)
    received: Counter[str] = Counter()
    began_at = time.monotonic()
    try:
        messages = _listen(machine, walk, stop_market) if walk.live else _replay(machine, walk)
        route = "ws-stream-normalized" if walk.live else "replay-normalized"
        teller.say("server", f"http://127.0.0.1:{machine.port}/{route}: {walk.span} of {len(walk.requests)} exchanges, merged")
        with teller.bar("client", walk.span_s) as advance:
            async for seconds, message in messages:
                received[message["type"]] += 1
                if received.total() % _LOOK_EVERY == 0:
                    advance(seconds, f"{received.total():,} messages")
        took_s = time.monotonic() - began_at
        teller.say("client", f"{received.total():,} messages in {took_s:.1f} s ({received.total() / took_s:,.0f}/s)")
    finally:
        receipts = await _drain(machine, walk, received.total(), before, teller)
    for receipt in receipts:
        counts = f"{receipt.published:,} events published, {receipt.confirmed:,} confirmed"
        teller.say(f"bus {receipt.bus}", f"{counts} in {time.monotonic() - began_at:.1f} s")
    return {"client received": received, f"{walk.bus} confirmed": _confirmed(walk.bus) - before}


async def _drain(machine: TardisMachine, walk: Walk, total: int, before: Counter[str], teller: Teller) -> list[Any]:
    """Stops the machine, which first sends what waits."""
    stopping = asyncio.create_task(machine.stop())
    with teller.bar(f"bus {walk.bus}", total) as advance:
        while not stopping.done():
            confirmed = (_confirmed(walk.bus) - before).total()
            advance(confirmed, f"{confirmed:,} confirmed")
            await asyncio.wait([stopping], timeout=0.2)
    return await stopping


async def _replay(machine: TardisMachine, walk: Walk) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """All messages, with the seconds of history until each."""
    import aiohttp

    url = f"http://127.0.0.1:{machine.port}/replay-normalized"
    unlimited = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=unlimited) as http, http.post(url, json=walk.requests) as response:
        if response.status != 200:
            raise TardisMachineError(f"the server answered {response.status}: {await response.text()}")
        async for line in response.content:
            message = json.loads(line)
            yield (parse_timestamp_us(message["localTimestamp"]) - FROM_US) / 1e6, message


async def _listen(
    machine: TardisMachine, walk: Walk, stop_market: Callable[[], None]
) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """All messages until the market is stopped and has no more, with the seconds gone by at each."""
    import aiohttp

    url = f"ws://127.0.0.1:{machine.ws_port}/ws-stream-normalized"
    asked = {"options": json.dumps(walk.requests)}
    async with aiohttp.ClientSession() as http, http.ws_connect(url, params=asked, max_msg_size=0) as socket:
        began_at, stopping = time.monotonic(), None
        while True:
            seconds = time.monotonic() - began_at
            if seconds >= walk.span_s and stopping is None:
                stopping = asyncio.create_task(asyncio.to_thread(stop_market))
            try:
                heard = await socket.receive(timeout=_SILENCE_S)
            except TimeoutError:
                if stopping is not None and stopping.done():
                    break
                continue
            if heard.type != aiohttp.WSMsgType.TEXT:
                raise TardisMachineError(f"the server closed the stream: {heard.data} {heard.extra}")
            yield seconds, json.loads(heard.data)
        await stopping


def _confirmed(bus: str) -> Counter[str]:
    """By payload case, as the machine's own metrics have it."""
    counts: Counter[str] = Counter()
    for family in telemetry.EVENTS_CONFIRMED.instrument.collect():
        for sample in family.samples:
            if sample.name.endswith("_total") and sample.labels["bus"] == bus:
                counts[sample.labels["payload_case"]] += int(sample.value)
    return counts
