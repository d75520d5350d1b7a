"""An exchange that speaks as fast as it is told to, in a process of its own: minutes of the sample market over and over, in BitMEX's words.

    python -m benchmarks.live_exchange        prints its port; ws://127.0.0.1:PORT/{rate}/{messages}/realtime

Invariant: frames are made before they are needed, and a trade's id is the time at which it was sent, so that whoever receives it can
tell how long it took. Rate 0 is as fast as it goes; the last trade's id says so.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from itertools import cycle, islice

from aiohttp import web

from benchmarks.sample_hour import slices
from tardis_machine.history.reader import read_lines
from tardis_machine.pipeline.frames import to_text_frames

__all__ = ["LAST"]

LAST = "the-last-one"
MINUTES = 4
TICK_S = 0.001
BATCH = 500
_ID = b"0000000000000000000"
_TRADE = (
    b'{"table":"trade","action":"insert","data":[{"timestamp":"2020-02-01T00:00:00.000Z","symbol":"XBTUSD","side":"Buy",'
    b'"size":100,"price":9350,"tickDirection":"PlusTick","trdMatchID":"%b","grossValue":1,"homeNotional":1,"foreignNotional":1}]}'
)


def frames() -> list[bytes]:
    """A frame for each message; every tenth is a trade."""
    lines = [line[29:] for piece in slices("bitmex", MINUTES) for line in read_lines(piece) if line]
    books = [line for line in lines if b'"orderBookL2"' in line[:30] and b'"partial"' not in line[:80]]
    mixed: list[bytes] = []
    for place, book in enumerate(books):
        mixed += [_TRADE % _ID, book] if place % 9 == 0 else [book]
    return [to_text_frames([message]) for message in mixed]


def partial() -> str:
    """The book to begin with."""
    for piece in slices("bitmex", MINUTES):
        for line in read_lines(piece):
            if b'"orderBookL2"' in line[:60] and b'"partial"' in line[:120]:
                return line[29:].decode()
    raise LookupError("the sample has no partial")


async def talk(request: web.Request) -> web.WebSocketResponse:
    """Sends what the path says, once something was asked for."""
    rate, messages = float(request.match_info["rate"]), int(request.match_info["messages"])
    socket = web.WebSocketResponse(compress=False)
    await socket.prepare(request)
    await socket.receive()
    await socket.send_str(partial())
    transport = request.transport
    assert transport is not None
    source = cycle(request.app["frames"])
    sent, began_s = 0, time.perf_counter()
    while sent < messages and not transport.is_closing():
        due = min(messages, int((time.perf_counter() - began_s) * rate)) if rate else min(messages, sent + BATCH)
        if due > sent:
            now = str(time.time_ns()).encode()
            transport.write(b"".join(frame.replace(_ID, now) for frame in islice(source, due - sent)))
            sent = due
        await request.protocol._drain_helper()
        await asyncio.sleep(TICK_S if rate else 0)
    await socket.send_str((_TRADE % LAST.encode()).decode())
    await socket.receive()
    return socket


async def serve() -> None:
    """Until standard input ends."""
    app = web.Application()
    app["frames"] = frames()
    app.router.add_get("/{rate}/{messages}/realtime", talk)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(input)


if __name__ == "__main__":
    with suppress(EOFError):
        asyncio.run(serve())
