"""What is done to normalized messages before they are sent, where a replay asks for it: it opens in the midst of them, or has a bad day.

Invariant: what comes out depends on the messages alone, however they are cut into batches. What is published are the messages themselves,
from where the replay opens; faults concern it only where that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...messages import Disconnect, Message, to_timestamp
from ...pipeline.faults import FaultInjector
from ...pipeline.marks import instant_us
from .contract import ReplaySpec
from .opening import Opening

__all__ = ["Scene", "Stage", "with_instants"]


class Scene(NamedTuple):
    """What comes of some messages."""

    published: Sequence[Message]
    shown: list[tuple[int, Message]]
    """Each with the instant at which it is to be sent."""


class Stage:
    """Of one answer."""

    def __init__(self, spec: ReplaySpec, exchanges: Iterable[str]) -> None:
        self._exchanges = sorted(set(exchanges))
        self._opening_us = spec.opening_us or 0
        # Until it has opened: what is then shown, and what is published, where lost connections are not shown.
        self._opening = None if spec.opening_us is None else Opening()
        self._published_opening = None if spec.opening_us is None or spec.publish is None else Opening()
        self._injector: FaultInjector[Message] | None = None
        self._publishes_faults = False
        if spec.faults is not None:
            self._publishes_faults = spec.faults.published
            known = Opening()  # what an exchange would tell whoever connects again
            is_needed = spec.faults.disconnects_per_hour > 0
            self._injector = FaultInjector(
                spec.faults,
                disconnected=self._disconnects,
                reconnected=known.messages,
                note=lambda message: known.take((message,)) if is_needed else None,
                closes_from_us=self._opening_us,
            )

    def _disconnects(self, lost_us: int) -> list[Message]:
        return [Disconnect(exchange, to_timestamp(lost_us)) for exchange in self._exchanges]

    @property
    def has_closed(self) -> bool:
        """Whether the client's connection is to be closed now."""
        return self._injector is not None and self._injector.has_closed

    def play(self, messages: list[Message], visible: list[Message]) -> Scene:
        """The next messages, and those of them that the client may see."""
        shown = with_instants(visible)
        if self._injector is not None:
            shown = self._injector.apply(shown)
        if self._opening is None:
            return self._scene(messages, shown)
        first = self._first_of(messages)
        self._opening.take(visible[: self._first_of(visible)])
        if self._published_opening is not None:
            self._published_opening.take(messages[:first])
        if first is None:
            return Scene((), [])
        return self._open(messages[first:], [item for item in shown if item[0] >= self._opening_us])

    def _first_of(self, messages: Sequence[Message]) -> int | None:
        """The place of the first message that is not before the opening; None where all are."""
        instants = enumerate(instant for instant, _ in with_instants(messages))
        return next((place for place, instant in instants if instant >= self._opening_us), None)

    def finish(self) -> Scene:
        """What is left when there are no more messages."""
        late = [] if self._injector is None else self._injector.finish()
        return self._scene((), late) if self._opening is None else self._open((), late)

    def _open(self, messages: Sequence[Message], shown: list[tuple[int, Message]]) -> Scene:
        assert self._opening is not None
        seen = [(self._opening_us, message) for message in self._opening.messages()]
        told = [] if self._published_opening is None else self._published_opening.messages()
        self._opening = self._published_opening = None
        return self._scene([*told, *messages], [*seen, *shown])

    def _scene(self, messages: Sequence[Message], shown: list[tuple[int, Message]]) -> Scene:
        return Scene([message for _, message in shown] if self._publishes_faults else messages, shown)


def with_instants(messages: Iterable[Message]) -> list[tuple[int, Message]]:
    """Messages with their local times."""
    timed: list[tuple[int, Message]] = []
    clock, instant = "", 0
    for message in messages:
        if message.local_timestamp != clock:
            clock = message.local_timestamp
            instant = instant_us(clock)
        timed.append((instant, message))
    return timed
