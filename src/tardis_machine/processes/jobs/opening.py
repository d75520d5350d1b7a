"""A replay that begins in the midst of what is recorded: what leads up to its first instant is heard, and not sent.

Invariant: who starts with what it opens with, and takes all that comes after, has the same books as who heard everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...messages import BookSnapshot, Disconnect, Message
from ...pipeline.current_state import CurrentState

__all__ = ["Opening"]


class Opening:
    """Of one answer, which may be of several exchanges."""

    def __init__(self) -> None:
        self._states: dict[str, CurrentState] = {}
        # The last of each symbol and kind, which is whole in itself.
        self._snapshots: dict[tuple[str, str, str], BookSnapshot] = {}

    def take(self, messages: Sequence[Message]) -> None:
        """What leads up to it."""
        by_exchange: dict[str, list[Message]] = {}
        for message in messages:
            if isinstance(message, BookSnapshot):
                self._snapshots[message.exchange, message.symbol, message.name] = message
                continue
            by_exchange.setdefault(message.exchange, []).append(message)
            if isinstance(message, Disconnect):
                self._snapshots = {key: known for key, known in self._snapshots.items() if key[0] != message.exchange}
        for exchange, its_messages in by_exchange.items():
            if exchange not in self._states:
                self._states[exchange] = CurrentState()
            self._states[exchange].take(its_messages)

    def messages(self) -> list[Message]:
        """What it opens with: each book as one snapshot, and the last of each ticker, at the times of their last changes."""
        told = [message for state in self._states.values() for message in state.messages()]
        return sorted([*told, *self._snapshots.values()], key=lambda message: message.local_timestamp)
