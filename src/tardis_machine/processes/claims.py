"""Which of several live streams of an exchange publishes a topic that more than one of them hears.

Invariant: a topic that is heard is published. Only one stream publishes it, but for the moments of a hand-over, in which two do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..pipeline.topics import LiveTopic

__all__ = ["Claimant", "withheld_topics"]


class Claimant(NamedTuple):
    """A stream."""

    claimed: frozenset[LiveTopic]
    """What its clients want."""
    lingering: frozenset[LiveTopic]
    """What its clients wanted until a moment ago: it goes on as before, while others begin."""
    is_hearing: bool
    """Whether it has all its connections."""
    withheld: frozenset[LiveTopic]
    """What another stream published until now."""


def withheld_topics(claimants: Sequence[Claimant]) -> list[frozenset[LiveTopic]]:
    """What each of the streams, in the order in which they came, is not to publish from now on.

    A topic is published by the first that hears it; one that hears every symbol goes before those that name theirs.
    """
    first: dict[LiveTopic, int] = {}
    for place, claimant in enumerate(claimants):
        if claimant.is_hearing:
            for topic in claimant.claimed:
                first.setdefault(topic, place)
    return [_withheld(place, claimant, first) for place, claimant in enumerate(claimants)]


def _withheld(place: int, claimant: Claimant, first: Mapping[LiveTopic, int]) -> frozenset[LiveTopic]:
    others = {topic for topic in claimant.claimed if first.get(LiveTopic(topic.data_type), first.get(topic, place)) != place}
    return frozenset(others | ((claimant.lingering - claimant.claimed) & claimant.withheld))
