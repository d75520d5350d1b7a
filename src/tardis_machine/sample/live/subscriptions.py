"""The subscriptions of one client, and which of their messages are due. Does no I/O; the socket is in `connection`.

Invariant: a snapshot and the updates after it join without a gap or an overlap, unless the exchange was told otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import itemgetter

from .broadcast import Render, Subscription, Topic
from .misbehaviour import DropUpdates
from .venue import LiveVenue

__all__ = ["Subscriptions"]


class Subscriptions:
    """The subscriptions of one connection. A key is whatever the exchange names a subscription by."""

    def __init__(self, venue: LiveVenue) -> None:
        self.venue = venue
        self.drop: DropUpdates | None = None
        self._subscriptions: dict[Hashable, list[Subscription]] = {}
        # Snapshots that were told to come late: when by the timer, of what, and how old.
        self._late: list[tuple[float, Subscription, float]] = []
        self._dropped = 0

    @property
    def keys(self) -> list[Hashable]:
        """What is subscribed to."""
        return list(self._subscriptions)

    @property
    def topics(self) -> set[Topic]:
        """All that is read."""
        return {each.topic for subscriptions in self._subscriptions.values() for each in subscriptions}

    def subscribe(
        self, key: Hashable, topics: Sequence[Topic], *, render: Render | None = None, last: bool = False
    ) -> list[bytes]:
        """Reads topics from now on; returns what the exchange sends at once: their snapshots, or the last message of each."""
        if key in self._subscriptions:
            return []
        venue, position = self.venue, self.venue.clock.position
        subscriptions = self._subscriptions[key] = [Subscription(venue.broadcast, topic, position, render) for topic in topics]
        opened: list[bytes] = []
        for subscription in subscriptions:
            latest = venue.broadcast.last(subscription.topic, position) if last else None
            opened += [self._dress(latest, render)] if latest is not None else self._open(subscription)
        return opened

    def unsubscribe(self, key: Hashable) -> bool:
        """Whether there was something to end."""
        ended = self._subscriptions.pop(key, [])
        self._late = [late for late in self._late if late[1] not in ended]
        return bool(ended)

    def due(self, position: int) -> list[bytes]:
        """What is to be sent now, in order."""
        rows: list[tuple[int, bytes]] = []
        for subscriptions in self._subscriptions.values():
            for each in subscriptions:
                taken = each.take(position)
                if taken:
                    rows += self._without_dropped(each.topic, taken) if self.drop is not None else taken
        rows.sort(key=itemgetter(0))
        messages = [message for _, message in rows]
        if self.venue.faults.skew_ms:
            messages = [self._dress(message, None) for message in messages]
        for late in [late for late in self._late if late[0] <= self.venue.clock.timer_s]:
            self._late.remove(late)
            _, subscription, old_s = late
            messages += self._snapshot(subscription, old_s)
        return messages

    def _open(self, subscription: Subscription) -> list[bytes]:
        opening = self._snapshot(subscription, 0.0)
        if not opening or subscription.topic.channel not in self.venue.venue.book_channels:
            return opening
        wrong = self.venue.faults.take_snapshot()
        if wrong.late_s:
            self._late.append((self.venue.clock.timer_s + wrong.late_s, subscription, wrong.old_s))
            return []
        return self._snapshot(subscription, wrong.old_s) if wrong.old_s else opening

    def _snapshot(self, subscription: Subscription, old_s: float) -> list[bytes]:
        opening = self.venue.opening(subscription.topic, old_s)
        return [] if opening is None else [self._dress(opening.encode(), subscription.render)]

    def _dress(self, message: bytes, render: Render | None) -> bytes:
        """As this client asked for it, by the exchange's clock."""
        return self.venue.skewed(message if render is None else render(message))

    def _without_dropped(self, topic: Topic, rows: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        drop = self.drop
        if drop is None or topic.channel not in self.venue.venue.book_channels:
            return rows
        if drop.symbol is not None and drop.symbol.upper() != topic.symbol.upper():
            return rows
        count = min(drop.count - self._dropped, len(rows))
        self._dropped += count
        if self._dropped == drop.count:
            self.drop, self._dropped = None, 0
        return rows[count:]
