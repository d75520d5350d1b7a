"""Says on the bus itself what it did not get.

Invariant: a notice is an event like any other, in a session of its own, which begins with the first one.
"""

from __future__ import annotations

from ...bronze.encoding import BronzeEncoder
from ...messages import ErrorMessage, to_timestamp
from ..delivery import Delivery
from ..routing import Router
from .clocks import Clocks
from .intake import Intake
from .parcel import ParcelBuilder

__all__ = ["DropNotice"]


class DropNotice:
    """The notices of one bus."""

    def __init__(
        self, bus: str, delivery: Delivery, router: Router, parcels: ParcelBuilder, intake: Intake, clocks: Clocks
    ) -> None:
        self._bus = bus
        self._delivery = delivery
        self._router = router
        self._parcels = parcels
        self._intake = intake
        self._clocks = clocks
        self._encoder: BronzeEncoder | None = None
        # The session of the notices, once it has begun.
        self.session_id: str | None = None

    def publish_if_due(self) -> None:
        """Publishes what was dropped since the last time, once there is room for it."""
        if not self._delivery.can_report_drops:
            return
        report = self._delivery.take_drops()
        if report is None or not self._router.admits("error"):
            return
        seconds = self._clocks.now() - report.first_at
        details = f"{report.count} events to {self._bus} were dropped within the last {seconds:.1f} s, as its queue was full"
        message = ErrorMessage("", to_timestamp(self._clocks.wall_us()), details)
        self._intake.accept(self._parcels.build(self._begun().encode([message])))

    def _begun(self) -> BronzeEncoder:
        if self._encoder is None:
            self.session_id = f"publisher-{self._bus}-{self._clocks.wall_us():x}"
            self._encoder = BronzeEncoder(session_id=self.session_id, origin="realtime", clock_us=self._clocks.wall_us)
        return self._encoder
