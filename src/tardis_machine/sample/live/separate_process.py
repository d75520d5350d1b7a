"""Runs the simulated exchanges in another process, so that making data takes no processor time from the caller.

Invariant: the other process ends with the `with` block, or with this process, however this one ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from ...errors import OptionsError
from .misbehaviour import Misbehaviour

__all__ = ["RemoteExchanges", "serve_exchanges_in_process"]

_TIMEOUT_S = 300


@dataclass(frozen=True)
class RemoteExchanges:
    """Simulated exchanges in another process: where they are, and calls that control them. Each call waits for its answer."""

    urls: dict[str, str]
    control_url: str

    def misbehave(self, exchange: str, what: Misbehaviour) -> int:
        """Tells an exchange to do something wrong; returns how many open connections it is done to."""
        answer = self._ask("misbehave", msgspec.json.encode(what), exchange=exchange)
        return int(answer["connections"])

    def recover(self, exchange: str) -> None:
        """Makes it behave again."""
        self._ask("recover", b"", exchange=exchange)

    def prepare(self, exchange: str, channels: Iterable[str], minutes: int) -> None:
        """Makes what an exchange will send in the next minutes beforehand: under load there is no time for it."""
        self._ask("prepare", b"", exchange=exchange, channels=",".join(channels), minutes=str(minutes))

    def pause(self) -> None:
        """Stops the market."""
        self._ask("pause", b"")

    def resume(self) -> None:
        """Lets it go on."""
        self._ask("resume", b"")

    def true_book(self, exchange: str, symbol: str) -> tuple[dict[float, float], dict[float, float]]:
        """What a client must have by now: bids and asks, price to amount, best first."""
        answer = self._ask("book", None, exchange=exchange, symbol=symbol)
        return dict(answer["bids"]), dict(answer["asks"])

    def _ask(self, what: str, body: bytes | None, **query: str) -> Any:
        address = urlsplit(self.control_url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET" if body is None else "POST", f"{address.path}/{what}?{urlencode(query)}", body)
            answer = connection.getresponse()
            told = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise OptionsError(told["message"])
        return told


@contextmanager
def serve_exchanges_in_process(
    exchanges: Iterable[str], *, seed: int = 1, speed: float = 1.0, activity: float = 1.0, timer_speed: float = 1.0
) -> Iterator[RemoteExchanges]:
    """Serves them from another process until the block ends."""
    options = {"exchanges": ",".join(exchanges), "seed": seed, "speed": speed, "activity": activity, "timer-speed": timer_speed}
    command = [sys.executable, "-m", "tardis_machine.sample.live", "--until-stdin-ends"]
    command += [f"--{name}={value}" for name, value in options.items()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own program
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            told = json.loads(process.stdout.readline() or "{}")
            if not told:
                raise OSError("the simulated exchanges did not start")
            yield RemoteExchanges(told["exchange_urls"], told["control_url"])
        finally:
            process.stdin.close()
            process.wait(_TIMEOUT_S)
