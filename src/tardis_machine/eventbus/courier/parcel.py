"""Events as one bus takes them: routed, sifted by its allow list, none of them too large.

Invariant: making a parcel accepts nothing and changes nothing; the same events make the same parcel.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import compress
from typing import Literal

import msgspec

from ...bronze.bundle import Bundle
from ...bronze.event import Event, Tally
from ...bronze.splitting import split_event
from ...errors import TerminalDeliveryError
from ..contract import EventBus, Record, Records, Route
from ..routing import Router

__all__ = ["Oversize", "Parcel", "ParcelBuilder"]

Oversize = Literal["dead-letter", "split", "fail"]


class Parcel(msgspec.Struct):
    """What one `publish` brings to one bus."""

    records: Records
    size_bytes: int
    """The size of the records as limits count it."""
    cases: Counter[str]
    """How many records there are of each payload case."""
    tallies: list[Tally]
    """What the ledger is yet to count, be it in `records` or in `oversize`."""
    oversize: list[Record]
    """Records that are too large for the bus, for the dead letters."""
    oversize_reason: str = ""
    """Why they are dead letters."""
    unwritten: int = 0
    """Where events are written ahead: how many arrivals of it are not on disk."""
    written: asyncio.Future[str] | None = None
    """Done when none is left, with nothing, or with the reason why they will never be on disk."""


class ParcelBuilder:
    """Makes the parcels of one bus. `oversize` says what becomes of a record past the limit of the bus."""

    def __init__(self, bus: EventBus, router: Router, oversize: Oversize) -> None:
        self._bus = bus
        self._router = router
        self._oversize = oversize

    def build(self, bundle: Bundle) -> Parcel:
        """The events that the allow list has. A Terminal error where a record is too large and that is to fail."""
        routes: list[Route] = []
        # Of each stream, whether the allow list has it.
        admitted: list[bool] = []
        tallies: list[Tally] = []
        cases: Counter[str] = Counter()
        size_bytes, has_oversize = 0, False
        record_bytes = self._bus.limits.record_bytes
        for stream, columns in zip(bundle.streams, bundle.columns, strict=True):
            route = self._router.route(stream)
            routes.append(route)
            admitted.append(self._router.admits(route.payload_case))
            if not admitted[-1]:
                continue
            count = len(columns.values)
            size_bytes += columns.size_bytes + count * route.overhead_bytes
            tallies.append(columns.tally(stream))
            cases[route.payload_case] += count
            has_oversize = has_oversize or columns.largest_bytes + route.overhead_bytes > record_bytes
        records = Records(list(map(routes.__getitem__, bundle.stream_indexes)), bundle.events)
        if not all(admitted):
            chosen = list(map(admitted.__getitem__, bundle.stream_indexes))
            records = Records(list(compress(records.routes, chosen)), list(compress(records.events, chosen)))
        return self._fit(records) if has_oversize else Parcel(records, size_bytes, cases, tallies, [])

    def build_counted(self, events: list[Event]) -> Parcel:
        """Events that their session's ledger has already, whatever the allow list says today."""
        parcel = self._fit(self._router.route_events(events))
        parcel.tallies = []
        return parcel

    def _fit(self, records: Records) -> Parcel:
        """Splits, sets apart or refuses the records that are too large, as told."""
        limit = self._bus.limits.record_bytes
        fitting: list[Record] = []
        oversize: list[Record] = []
        for record in records:
            if record.size_bytes <= limit:
                fitting.append(record)
                continue
            if self._oversize == "fail":
                raise TerminalDeliveryError(self._too_large(record))
            parts = split_event(record.event, limit - record.route.overhead_bytes) if self._oversize == "split" else None
            if parts is None:
                oversize.append(record)
            else:
                fitting.extend(Record(record.route, part) for part in parts)
        by_stream: dict[int, list[Event]] = {}
        for record in (*fitting, *oversize):
            by_stream.setdefault(id(record.event.stream), []).append(record.event)
        return Parcel(
            records=Records.of(fitting),
            size_bytes=sum(record.size_bytes for record in fitting),
            cases=Counter(record.route.payload_case for record in fitting),
            tallies=[Tally(events) for events in by_stream.values()],
            oversize=oversize,
            oversize_reason=self._too_large(oversize[0]) if oversize else "",
        )

    def _too_large(self, record: Record) -> str:
        stream = record.event.stream
        what = f"{stream.payload_case} of {stream.exchange} {stream.symbol}".rstrip()
        return f"a {what} takes {record.size_bytes} bytes, and {self._bus.name} takes {self._bus.limits.record_bytes} a record"
