"""Groups of records for tests of one part of the delivery."""

from __future__ import annotations

from tardis_machine.eventbus.delivery.record_groups import Arrival, RecordGroup
from tests.unit.eventbus.events import make_record, make_route


def make_group(*lanes: str, first: int = 0, size: int = 50, ends_session: str | None = None) -> RecordGroup:
    """One record for each lane, with sequences and ordinals from `first`."""
    records = [make_record(make_route(lane), first + index, size) for index, lane in enumerate(lanes)]
    return RecordGroup(records, size * len(lanes), Arrival(len(lanes), 0.0, ends_session), 0.0, first=first)
