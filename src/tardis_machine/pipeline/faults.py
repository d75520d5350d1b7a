"""Faults on purpose: what a bad day does to the messages of a replay, so that consumers can be tested with it.

Invariant: the same seed does the same to the same messages, however they are cut into batches and however fast they are played. What is
drawn depends on the seed, the kind of fault and the minute of local time alone: one kind changes nothing of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from random import Random
from typing import Any, Generic, TypeVar

import msgspec

from ..brief import brief
from ..errors import OptionsError

__all__ = ["BadDay", "FaultInjector", "parse_faults"]

T = TypeVar("T")

MINUTE_US = 60_000_000
MAX_DELAY_MS = 60_000.0
MAX_GAP_MINUTES = 1440.0


class BadDay(msgspec.Struct, frozen=True, kw_only=True):
    """How bad the day is; 0 is never. Probabilities are of each message, rates are a number in an hour of local time."""

    seed: int = 0
    drop: float = 0
    duplicate: float = 0
    delay: float = 0
    delay_ms: float = 250
    disconnects_per_hour: float = 0
    disconnect_ms: float = 3000
    """How long a lost connection brings nothing."""
    disconnect_closes: bool = False
    """Whether the client's own connection is closed instead."""
    gaps_per_hour: float = 0
    gap_minutes: float = 1
    published: bool = False
    """Whether what is published suffers too."""


class FaultInjector(Generic[T]):
    """Does it to one replay, whose items come with their instants.

    `disconnected` makes what is told of a lost connection, `reconnected` what comes first after it; `note` is told of every item, also
    of those that get lost. What happens before the first item does not happen; connections are not closed before `closes_from_us`.
    """

    def __init__(
        self,
        faults: BadDay,
        *,
        disconnected: Callable[[int], Iterable[T]],
        reconnected: Callable[[], Iterable[T]] = lambda: (),
        note: Callable[[T], None] = lambda _: None,
        closes_from_us: int = 0,
    ) -> None:
        self._faults = faults
        self._disconnected = disconnected
        self._reconnected = reconnected
        self._note = note
        self._closes_from_us = closes_from_us
        self._began_us: int | None = None
        self._minute: int | None = None
        # Of the minute, by kind of fault.
        self._random: dict[str, Random] = {}
        self._disconnect_us: int | None = None
        self._gap_us: int | None = None
        # Until then nothing gets through.
        self._silent_until_us: int | None = None
        self._is_disconnected = False
        # Items on their way: when they arrive, and the order in which they were sent.
        self._delayed: list[tuple[int, int, T]] = []
        self._count = 0
        self.has_closed = False
        """Whether the client's connection is to be closed: nothing comes after that."""

    def apply(self, items: Iterable[tuple[int, T]]) -> list[tuple[int, T]]:
        """What is left of the next items, and what comes beside them, in order."""
        out: list[tuple[int, T]] = []
        for instant_us, item in items:
            if self.has_closed:
                break
            if self._began_us is None:
                self._began_us = instant_us
            self._arrive(instant_us, out)
            self._begin_minute(instant_us // MINUTE_US)
            self._lose_connection(instant_us, out)
            if not self.has_closed:
                if not self._is_silent(instant_us):
                    self._reconnect(instant_us, out)
                    self._send(instant_us, item, out)
                self._note(item)
        return out

    def finish(self) -> list[tuple[int, T]]:
        """What is still on its way when there are no more items."""
        out = [] if self.has_closed else [(instant_us, item) for instant_us, _, item in sorted(self._delayed, key=_arrival)]
        self._delayed.clear()
        return out

    def _arrive(self, until_us: int, out: list[tuple[int, T]]) -> None:
        while self._delayed and self._delayed[0][0] <= until_us:
            instant_us, _, item = heappop(self._delayed)
            out.append((instant_us, item))

    def _begin_minute(self, minute: int) -> None:
        if minute == self._minute:
            return
        faults = self._faults
        self._minute = minute
        self._random = {
            kind: Random(f"{faults.seed}:{kind}:{minute}") for kind in ("drop", "duplicate", "delay", "disconnect", "gap")
        }
        self._disconnect_us = self._drawn_us("disconnect", faults.disconnects_per_hour, minute)
        self._gap_us = self._drawn_us("gap", faults.gaps_per_hour, minute)

    def _drawn_us(self, kind: str, per_hour: float, minute: int) -> int | None:
        """When in this minute it happens, if it does."""
        random = self._random[kind]
        happens, place = random.random() < per_hour / 60, random.random()
        drawn_us = minute * MINUTE_US + int(place * MINUTE_US)
        return drawn_us if happens and drawn_us >= (self._began_us or 0) else None

    def _lose_connection(self, instant_us: int, out: list[tuple[int, T]]) -> None:
        if self._gap_us is not None and instant_us >= self._gap_us:
            self._stay_silent(self._gap_us + round(self._faults.gap_minutes * MINUTE_US))
            self._gap_us = None
        if self._disconnect_us is None or instant_us < self._disconnect_us:
            return
        lost_us, self._disconnect_us = self._disconnect_us, None
        if self._faults.disconnect_closes:
            self.has_closed = lost_us >= self._closes_from_us
            return
        if not self._is_silent(lost_us):
            out.extend((lost_us, item) for item in self._disconnected(lost_us))
            self._is_disconnected = True
            self._stay_silent(lost_us + round(self._faults.disconnect_ms * 1000))

    def _stay_silent(self, until_us: int) -> None:
        self._silent_until_us = max(self._silent_until_us or until_us, until_us)
        self._delayed.clear()

    def _is_silent(self, instant_us: int) -> bool:
        return self._silent_until_us is not None and instant_us < self._silent_until_us

    def _reconnect(self, instant_us: int, out: list[tuple[int, T]]) -> None:
        if self._is_disconnected:
            self._is_disconnected = False
            out.extend((instant_us, item) for item in self._reconnected())

    def _send(self, instant_us: int, item: T, out: list[tuple[int, T]]) -> None:
        # One number for each fault and message, whether it is used or not.
        faults = self._faults
        is_lost, is_doubled, is_late = (
            self._random[kind].random() < probability
            for kind, probability in (("drop", faults.drop), ("duplicate", faults.duplicate), ("delay", faults.delay))
        )
        if is_lost:
            return
        for _ in range(1 + is_doubled):
            if is_late:
                self._count += 1
                heappush(self._delayed, (instant_us + round(faults.delay_ms * 1000), self._count, item))
            else:
                out.append((instant_us, item))


def _arrival(delayed: tuple[int, int, Any]) -> tuple[int, int]:
    return delayed[:2]


_EXAMPLE = '{"seed":1,"drop":0.01}'
_KINDS = ("drop", "duplicate", "delay", "disconnect", "gap")


def parse_faults(value: Any, field: str) -> BadDay | None:
    """Faults as a request has them; OptionsError names the field below `field`. None: nothing is asked for.

    >>> parse_faults({"seed": 7, "delay": {"probability": 0.5, "ms": 10}}, "faults").delay_ms
    10
    """
    if value is None:
        return None
    given = _Given(value, field, ("seed", *_KINDS, "published"))
    seed = given.fields.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**53:
        raise given.wrong("seed", "a whole number from 0 to 9007199254740991", seed)
    delay = given.kind("delay", "probability", ("ms",))
    disconnect = given.kind("disconnect", "perHour", ("ms", "close"))
    gap = given.kind("gap", "perHour", ("minutes",))
    return BadDay(
        seed=seed,
        drop=given.number("drop", 0, 1),
        duplicate=given.number("duplicate", 0, 1),
        delay=delay.number("probability", 0, 1),
        delay_ms=delay.number("ms", 0, MAX_DELAY_MS, 250),
        disconnects_per_hour=disconnect.number("perHour", 0, 60),
        disconnect_ms=disconnect.number("ms", 0, MAX_DELAY_MS, 3000),
        disconnect_closes=disconnect.flag("close"),
        gaps_per_hour=gap.number("perHour", 0, 60),
        gap_minutes=gap.number("minutes", 0, MAX_GAP_MINUTES, 1),
        published=given.flag("published"),
    )


class _Given:
    """The fields of one object, each with its own sentence where it is wrong."""

    def __init__(self, value: Any, path: str, known: tuple[str, ...]) -> None:
        self._path = path
        if not isinstance(value, dict):
            raise OptionsError(f"{path}: expected an object such as {_EXAMPLE}, got {brief(value)}", path)
        for name in value:
            # Unlike elsewhere: a test whose fault is spelled wrong would pass for no reason.
            if name not in known:
                raise OptionsError(f"{path}: expected {', '.join(known)}, got {brief(name)}", path)
        self.fields = value

    def wrong(self, name: str, takes: str, value: Any) -> OptionsError:
        field = f"{self._path}.{name}"
        return OptionsError(f"{field}: expected {takes}, got {brief(value)}", field)

    def kind(self, name: str, main: str, others: tuple[str, ...]) -> _Given:
        """A fault with fields of its own; a number stands for the main one."""
        value = self.fields.get(name, {})
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = {main: value}
        return _Given(value, f"{self._path}.{name}", (main, *others))

    def number(self, name: str, least: float, most: float, default: float = 0) -> float:
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise self.wrong(name, f"a number from {least:g} to {most:g}", value)
        return value

    def flag(self, name: str) -> bool:
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value
