"""What browsers that show the page cost: a replay's messages a second without and with 50 of them, in turns.

    python -m benchmarks page [-- --browsers 50 --rounds 5]

A browser is a connection that reads the state of the machine as it comes, as the page does; what a browser draws is work of
its own computer.

Invariant: client and browsers are processes of their own; nothing of the benchmark runs in the server.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from statistics import median

import aiohttp

from benchmarks.drain import http_request
from benchmarks.replay_server import running_server
from benchmarks.report import Table, spread, to_count
from benchmarks.sample_hour import fill, options

TARGET_RATIO = 0.95


async def _watch(port: int, browsers: int, ready: Event) -> None:
    connected = asyncio.Semaphore(0)

    async def browse(http: aiohttp.ClientSession) -> None:
        async with http.get(f"http://127.0.0.1:{port}/ui/events") as response:
            await response.content.readline()
            connected.release()
            async for _ in response.content:
                pass

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
        watching = [asyncio.create_task(browse(http)) for _ in range(browsers)]
        for _ in watching:
            await connected.acquire()
        ready.set()
        await asyncio.gather(*watching)


def _run(port: int, browsers: int, ready: Event) -> None:
    asyncio.run(_watch(port, browsers, ready))


@contextmanager
def watching(port: int, browsers: int) -> Iterator[None]:
    """So many browsers look at the page."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_run, args=(port, browsers, ready), daemon=True)
    process.start()
    try:
        assert ready.wait(30), "the browsers did not connect"
        yield
    finally:
        process.kill()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browsers", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=int, default=20, help="of the market, in each request")
    arguments = parser.parse_args()
    fill(arguments.minutes)
    alone: list[float] = []
    watched: list[float] = []
    costs: list[float] = []
    with running_server() as server:
        request = http_request("/replay-normalized", options("bitmex", arguments.minutes, "trade", "book_change"))
        server.run(request)
        for _ in range(arguments.rounds):
            cost = server.run(request)
            alone.append(cost.messages / cost.wall_s)
            with watching(server.port, arguments.browsers):
                looked = server.run(request)
            watched.append(looked.messages / looked.wall_s)
            costs.append(looked.cpu_s / cost.cpu_s)
    ratio = median(watched) / median(alone)
    table = Table("A replay while the page is open", "browsers", "messages/s", "spread", "ratio", "processor time")
    table.add("0", to_count(median(alone)), spread(alone))
    table.add(str(arguments.browsers), to_count(median(watched)), spread(watched), f"{ratio:.2f}", f"{median(costs):.2f}")
    table.show()
    print(f"\nWanted: {TARGET_RATIO} of the messages a second at least.")


if __name__ == "__main__":
    main()
