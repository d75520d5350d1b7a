"""The replays that run, by their ids.

Invariant: a replay is listed from its start to its end, and no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..pipeline.request import NormalizedRequest, RawRequest
from .player import Player

__all__ = ["Players"]


class Players:
    """Of one machine."""

    def __init__(self, max_pause_s: float | None = None) -> None:
        self._max_pause_s = max_pause_s
        self._listed: dict[str, Player] = {}

    def make(
        self,
        route: str,
        requests: Sequence[RawRequest] | Sequence[NormalizedRequest],
        clients: Callable[[], int] = lambda: 1,
    ) -> Player:
        """One for a new replay."""
        return Player(route, requests, clients=clients, max_pause_s=self._max_pause_s)

    @contextmanager
    def listed(self, player: Player) -> Iterator[None]:
        """While it runs."""
        self._listed[player.id] = player
        try:
            yield
        finally:
            del self._listed[player.id]

    def find(self, player_id: str) -> Player | None:
        """The one of this id, while it runs."""
        return self._listed.get(player_id)

    def __iter__(self) -> Iterator[Player]:
        return iter(self._listed.values())
