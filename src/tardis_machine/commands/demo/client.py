"""A server and a client that sends it one request: counts what the client receives and what the bus confirms.

Invariant: the client ends when it has received all that the server publishes, so both counts are of the same events.
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
from .display import Display
from .plan import FROM_US, DemoPlan

if TYPE_CHECKING:
    from ...sample.live.separate_process import RemoteExchanges

__all__ = ["run_client", "upstream"]

# Longer than any pause of the market, shorter than the timeout of a silent connection.
_SILENCE_S = 2.0
_DRAIN_S = 900.0
_SHOW_EVERY = 2_000


def run_client(plan: DemoPlan, settings: Settings, display: Display) -> dict[str, Counter[str]]:
    """Counts of what the client received, and of what the bus confirmed."""
    with upstream(plan, settings, display) as (options, stop_market):
        return asyncio.run(_serve_and_request(plan, options, stop_market, display))


@contextmanager
def upstream(plan: DemoPlan, settings: Settings, display: Display) -> Iterator[tuple[dict[str, Any], Callable[[], None]]]:
    """Where data comes from, as options of the machine; and what stops it, where it would go on for ever."""
    exchanges = [request["exchange"] for request in plan.requests]
    if plan.live:
        from ...sample.live.separate_process import serve_exchanges_in_process

        display.print_line("exchanges", f"{', '.join(exchanges)}, simulated (seed {plan.seed}, activity {plan.activity:.0%})")
        remote: RemoteExchanges
        with serve_exchanges_in_process(exchanges, seed=plan.seed, activity=plan.activity) as remote:
            yield {"exchange_urls": remote.urls}, remote.pause
        return
    if plan.real:
        display.print_line("history", settings.api_url)
        yield {"api_url": settings.api_url, "api_key": settings.api_key, "cache_dir": settings.cache_dir}, lambda: None
        return
    from ...sample.history_api import SampleHistoryApi

    display.print_line(
        "history", f"a sample market (seed {plan.seed}, activity {plan.activity:.0%}) behind a stand-in of the history API"
    )
    # Sample history is not what the shared cache is for.
    cache_dir = plan.folder / "cache" / f"{plan.seed}-{plan.activity:g}"
    with SampleHistoryApi.serve_in_process(seed=plan.seed, activity=plan.activity) as url:
        yield {"api_url": url, "cache_dir": cache_dir}, lambda: None


async def _serve_and_request(
    plan: DemoPlan, options: dict[str, Any], stop_market: Callable[[], None], display: Display
) -> dict[str, Counter[str]]:
    options = {"spool_dir": plan.folder / "spool", "shutdown_timeout": _DRAIN_S, plan.bus: plan.bus_options, **options}
    machine = TardisMachine(**options)
    # The metrics are of the process, not of this machine.
    before = _confirmed(plan.bus)
    await machine.start(port=0)
    received: Counter[str] = Counter()
    began_at = time.monotonic()
    try:
        messages = _stream(machine, plan, stop_market) if plan.live else _replay(machine, plan)
        route = "ws-stream-normalized" if plan.live else "replay-normalized"
        display.print_line(
            "server", f"http://127.0.0.1:{machine.port}/{route}: {plan.span} of {len(plan.requests)} exchanges, merged"
        )
        with display.bar("client", plan.span_s) as advance:
            async for seconds, message in messages:
                received[message["type"]] += 1
                if received.total() % _SHOW_EVERY == 0:
                    advance(seconds, f"{received.total():,} messages")
        took_s = time.monotonic() - began_at
        display.print_line("client", f"{received.total():,} messages in {took_s:.1f} s ({received.total() / took_s:,.0f}/s)")
    finally:
        receipts = await _drain(machine, plan, received.total(), before, display)
    for receipt in receipts:
        counts = f"{receipt.published:,} events published, {receipt.confirmed:,} confirmed"
        display.print_line(f"bus {receipt.bus}", f"{counts} in {time.monotonic() - began_at:.1f} s")
    return {"client received": received, f"{plan.bus} confirmed": _confirmed(plan.bus) - before}


async def _drain(machine: TardisMachine, plan: DemoPlan, total: int, before: Counter[str], display: Display) -> list[Any]:
    """Stops the machine, which first sends what waits."""
    stopping = asyncio.create_task(machine.stop())
    with display.bar(f"bus {plan.bus}", total) as advance:
        while not stopping.done():
            confirmed = (_confirmed(plan.bus) - before).total()
            advance(confirmed, f"{confirmed:,} confirmed")
            await asyncio.wait([stopping], timeout=0.2)
    return await stopping


async def _replay(machine: TardisMachine, plan: DemoPlan) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """All messages, with the seconds of history until each."""
    import aiohttp

    url = f"http://127.0.0.1:{machine.port}/replay-normalized"
    unlimited = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=unlimited) as http, http.post(url, json=plan.requests) as response:
        if response.status != 200:
            raise TardisMachineError(f"the server answered {response.status}: {await response.text()}")
        async for line in response.content:
            message = json.loads(line)
            yield (parse_timestamp_us(message["localTimestamp"]) - FROM_US) / 1e6, message


async def _stream(
    machine: TardisMachine, plan: DemoPlan, stop_market: Callable[[], None]
) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """All messages until the market is stopped and has no more, with the seconds gone by at each."""
    import aiohttp

    url = f"ws://127.0.0.1:{machine.ws_port}/ws-stream-normalized"
    query = {"options": json.dumps(plan.requests)}
    async with aiohttp.ClientSession() as http, http.ws_connect(url, params=query, max_msg_size=0) as socket:
        began_at, stopping = time.monotonic(), None
        while True:
            seconds = time.monotonic() - began_at
            if seconds >= plan.span_s and stopping is None:
                stopping = asyncio.create_task(asyncio.to_thread(stop_market))
            try:
                received = await socket.receive(timeout=_SILENCE_S)
            except TimeoutError:
                if stopping is not None and stopping.done():
                    break
                continue
            if received.type != aiohttp.WSMsgType.TEXT:
                raise TardisMachineError(f"the server closed the stream: {received.data} {received.extra}")
            yield seconds, json.loads(received.data)
        await stopping


def _confirmed(bus: str) -> Counter[str]:
    """By payload case, as the machine's own metrics have it."""
    counts: Counter[str] = Counter()
    for family in telemetry.EVENTS_CONFIRMED.instrument.collect():
        for sample in family.samples:
            if sample.name.endswith("_total") and sample.labels["bus"] == bus:
                counts[sample.labels["payload_case"]] += int(sample.value)
    return counts
