"""Clients that ask for replays, read them at a steady pace, sometimes hang up, and count what they got.

Invariant: a line that a client has counted was accepted: the machine hands it out only when its event is on disk.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from msgspec import to_builtins

from tardis_machine.history.slice import MINUTE_US
from tardis_machine.messages import to_timestamp
from tardis_machine.pipeline.replay import NormalizedReplay
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.sample.cache_dir import fill_cache
from tardis_machine.sample.recording import Recording

__all__ = ["CLIENTS", "Answer", "Traffic", "fill", "raw_options"]

FROM_US = 1_580_515_200_000_000  # 2020-02-01
MARKETS = (
    ("bitmex", "XBTUSD", ("trade", "book_change", "derivative_ticker", "trade_bar_1s")),
    ("bitmex", "ETHUSD", ("trade", "book_change", "derivative_ticker", "trade_bar_1s")),
    ("binance", "BTCUSDT", ("trade", "book_change", "book_snapshot_5_1s")),
)
CLIENTS = 3
HANG_UP_SHARE = 0.1
READ_BYTES = 64 * 1024


def options(market: int, first_minute: int, minutes: int) -> dict[str, Any]:
    """A request; with disconnect messages, so that a client sees all that is published."""
    exchange, symbol, data_types = MARKETS[market]
    start_us = FROM_US + first_minute * MINUTE_US
    return {
        "exchange": exchange,
        "symbols": [symbol],
        "from": to_timestamp(start_us),
        "to": to_timestamp(start_us + minutes * MINUTE_US),
        "dataTypes": list(data_types),
        "withDisconnectMessages": True,
    }


def raw_options(minutes: int) -> dict[str, Any]:
    """A request for the recorded lines of the first market, which are in the cache with its normalized ones."""
    request = options(0, 0, minutes)
    [period] = NormalizedReplay(parse_normalized_request(request)).periods()
    return {name: request[name] for name in ("exchange", "from", "to")} | {"filters": to_builtins(list(period.filters))}


def fill(cache_dir: Path, minutes: int) -> None:
    """The history that is asked for, in the cache: nothing is fetched during the run."""
    recording = Recording()
    for market in range(len(MARKETS)):
        request = parse_normalized_request(options(market, 0, minutes))
        [period] = NormalizedReplay(request).periods()
        end_us = FROM_US + minutes * MINUTE_US
        fill_cache(cache_dir, request.exchange, period.filters, FROM_US, end_us, recording=recording)


@dataclass
class Answer:
    """What a client got for one request."""

    request_id: str
    lines: Counter[str] = field(default_factory=Counter)
    """Whole lines by their type, which is the payload case of all that is asked for here."""
    is_complete: bool = False


class Traffic:
    """Some clients, each with its share of the pace. `start` them, look at `received`, and `stop` them."""

    def __init__(self, port: int, *, seed: int, minutes: int, lines_a_second: float, clients: int = CLIENTS) -> None:
        self._port = port
        self._minutes = minutes
        self._pace = lines_a_second / clients
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(number, Random(seed + number))) for number in range(clients)]
        self.answers: list[Answer] = []

    def start(self) -> None:
        """Lets them begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """They hang up."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def received(self) -> int:
        """Lines, of all answers."""
        return sum(answer.lines.total() for answer in list(self.answers))

    def _client(self, number: int, random: Random) -> None:
        asked = 0
        while not self._over.is_set():
            asked += 1
            answer = Answer(f"client-{number}-{asked}")
            self.answers.append(answer)
            markets = random.sample(range(len(MARKETS)), random.choice((1, 1, 2)))
            first = random.randrange(self._minutes)
            requests = [options(market, first, random.randint(1, self._minutes - first)) for market in markets]
            most_lines = random.randrange(1, 20_000) if random.random() < HANG_UP_SHARE else None
            try:
                self._read(answer, requests, most_lines)
            except (OSError, http.client.HTTPException):
                self._over.wait(0.2)  # it was killed, and will be back

    def _read(self, answer: Answer, requests: list[dict[str, Any]], most_lines: int | None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            headers = {"X-Request-Id": answer.request_id}
            connection.request("POST", "/replay-normalized", json.dumps(requests), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise http.client.HTTPException(f"the machine answered {response.status}: {response.read(200)!r}")
            began, rest, count = time.monotonic(), b"", 0
            while data := response.read1(READ_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                answer.lines.update(Counter(line.split(b'"', 4)[3].decode() for line in whole))
                count += len(whole)
                if self._over.is_set() or (most_lines is not None and count > most_lines):
                    return
                self._over.wait(max(0.0, began + count / self._pace - time.monotonic()))
            answer.is_complete = True
        finally:
            connection.close()
