"""An HTTP server of one handler, for exchanges and other peers that tests play."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web

__all__ = ["http_site", "http_site_in_thread"]


@asynccontextmanager
async def http_site(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """Has `handle` answer every request on 127.0.0.1; the port. It is gone at the end."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextmanager
def http_site_in_thread(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Iterator[int]:
    """The same for a test that has no event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="http-site", daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    site = http_site(handle)
    port: int = run(site.__aenter__())
    try:
        yield port
    finally:
        run(site.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
