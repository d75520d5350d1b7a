"""Growth: 1, 10 and 100 clients with a symbol each, and one client with 1, 10 and 100 symbols: messages a second, and memory.

    python -m benchmarks growth [-- --only clients --rounds 3]

The symbols are copies of one book of the sample market, each under a name of its own, so that each brings the same work. A server is new
for each row, as memory is the most that it ever held.

Invariant: clients begin together and read as fast as they can; a rate counts all messages until the last client has all of its own. Who
reads is one process, which throws away what it gets.
"""

from __future__ import annotations

import argparse
import re
import selectors
import socket
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.drain import HTTP_END, http_request
from benchmarks.replay_server import Cost, ReplayServer, running_server
from benchmarks.report import Table, spread, to_count
from benchmarks.sample_hour import EXCHANGES, cache_dir, fill, options
from tardis_machine.filters import Filter
from tardis_machine.pipeline.replay import NormalizedReplay
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.sample.cache_dir import fill_cache
from tardis_machine.sample.recording import Recording

EXCHANGE = "bitmex"
COUNTS = (1, 10, 100)
TABLES = ("clients", "symbols")
MINUTES = {1: 20, 10: 4, 100: 1}
"""Of each client, so that no row is over at once and none takes long."""
BUFFER_BYTES = 1 << 18
_ID = re.compile(rb'"id":(\d)')


class CopiedRecording(Recording):
    """One book, told again for each symbol that is asked for, line by line."""

    def minute(self, exchange: str, index: int, filters: Sequence[Filter] = ()) -> bytes:
        """See Recording."""
        name = EXCHANGES[exchange].encode()
        told = [Filter(item.channel, [EXCHANGES[exchange]]) for item in filters]
        lines = super().minute(exchange, index, told).splitlines(keepends=True)
        # Ids of levels are numbers, and unique over all books.
        spelled = [(symbol.encode(), b'"id":1%b\\g<1>' % symbol[-3:].encode()) for symbol in _symbols_of(filters)]
        return b"".join(_ID.sub(prefix, line.replace(name, symbol)) for line in lines for symbol, prefix in spelled)


def _symbols_of(filters: Sequence[Filter]) -> list[str]:
    return sorted({symbol for item in filters for symbol in item.symbols or ()})


def names(count: int, first: int = 0) -> list[str]:
    """Symbols, all of one length."""
    return [f"XBT{number:03d}" for number in range(first, first + count)]


def request_of(symbols: Sequence[str], minutes: int) -> dict[str, object]:
    """Trades and books."""
    return options(EXCHANGE, minutes, "trade", "book_change") | {"symbols": list(symbols)}


def prepare(symbols: Sequence[str], minutes: int, recording: Recording) -> None:
    """Makes the files of a request that are missing."""
    [period] = NormalizedReplay(parse_normalized_request(request_of(symbols, minutes))).periods()
    done = cache_dir() / "grown" / f"{symbols[0]}-{len(symbols)}-{minutes}"
    if not done.exists():
        fill_cache(cache_dir(), EXCHANGE, period.filters, period.from_us, period.to_us, recording=recording)
        done.parent.mkdir(exist_ok=True)
        done.touch()


def read_all(port: int, requests: Sequence[str]) -> float:
    """Seconds until all answers have ended."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    tails = {}
    with selectors.DefaultSelector() as waiting:
        began = time.perf_counter()
        for request in requests:
            client = socket.create_connection(("127.0.0.1", port))
            client.sendall(request.encode())
            waiting.register(client, selectors.EVENT_READ)
            tails[client] = b""
        while tails:
            for key, _ in waiting.select():
                client = key.fileobj
                assert isinstance(client, socket.socket)
                size = client.recv_into(buffer)
                if not size:
                    raise SystemExit(f"an answer was cut: it ended with {tails[client]!r}")
                tails[client] = (tails[client] + bytes(buffer[max(size - len(HTTP_END), 0) : size]))[-len(HTTP_END) :]
                if tails[client] == HTTP_END:
                    waiting.unregister(client)
                    client.close()
                    del tails[client]
        return time.perf_counter() - began


def run(server: ReplayServer, requests: Sequence[str], messages: int) -> Cost:
    """One round."""
    before_s = server.cpu_s()
    took_s = read_all(server.port, requests)
    return Cost(messages, took_s, server.cpu_s() - before_s)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth --")
    parser.add_argument("--only", choices=TABLES, help="one of the tables")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    fill(max(MINUTES.values()))
    recording = CopiedRecording()
    for what in (given.only,) if given.only else TABLES:
        title = "clients, each with a symbol of its own" if what == "clients" else "symbols of one client"
        table = Table(f"Growth: {title}", what, "minutes", "messages/s", "", "of one", "processor us", "MB")
        first = 0.0
        for count in COUNTS:
            minutes = MINUTES[count]
            groups = [[name] for name in names(count)] if what == "clients" else [names(count)]
            for symbols in groups:
                prepare(symbols, minutes, recording)
            requests = [http_request("/replay-normalized", request_of(symbols, minutes)) for symbols in groups]
            with running_server() as server:
                one = http_request("/replay-normalized", request_of(names(1), minutes))
                prepare(names(1), minutes, recording)
                messages = server.run(one).messages * count
                costs = [run(server, requests, messages) for _ in range(given.rounds)]
                peak_mb = server.peak_mb
            rates = [cost.messages / cost.wall_s for cost in costs]
            first = first or median(rates)
            cpu_us = median(cost.cpu_s / cost.messages for cost in costs) * 1e6
            row = (to_count(median(rates)), spread(rates), f"{median(rates) / first:.2f}", f"{cpu_us:.2f}", f"{peak_mb:.0f}")
            table.add(str(count), str(minutes), *row)
        table.show()


if __name__ == "__main__":
    main()
