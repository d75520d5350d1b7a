"""The size of batches, and when the bus is connected."""

from __future__ import annotations

import msgspec

from tardis_machine.eventbus.contract import Limits
from tardis_machine.eventbus.delivery.batch_size import BatchSize
from tardis_machine.eventbus.delivery.connection_state import ConnectionState
from tardis_machine.eventbus.delivery.retry_pause import RetryPause
from tardis_machine.eventbus.policy import Policy

POLICY = Policy(batch_records=100, batch_bytes=1000, batch_delay_s=0.0, queue_bytes=8000)
LIMITS = Limits(batch_records=40, batch_bytes=5000, record_bytes=100)


def test_a_batch_is_halved_when_one_fails_and_grows_back() -> None:
    size = BatchSize(POLICY, LIMITS)
    assert (size.records, size.bytes) == (40, 1000)
    size.shrink(30)
    assert size.records == 15
    size.grow()
    assert size.records == 30
    size.grow()
    assert size.records == 40
    size.shrink(1)
    assert size.records == 1


def test_what_the_service_says_of_itself_does_not_undo_that_it_was_halved() -> None:
    size = BatchSize(POLICY, LIMITS)
    size.adopt(msgspec.structs.replace(LIMITS, batch_records=60))
    assert size.records == 60
    size.shrink(20)
    size.adopt(msgspec.structs.replace(LIMITS, batch_records=80))
    assert size.records == 10


def test_one_connect_at_a_time_and_none_while_something_is_in_flight() -> None:
    connection = ConnectionState(RetryPause(POLICY, lambda: 1.0))
    assert not connection.start(0.0, sends=1)
    assert connection.start(0.0, sends=0)
    assert not connection.start(0.0, sends=0)
    connection.note_failure(0.0)
    assert (connection.connect_at(sends=0), connection.failures) == (0.1, 1)
    assert not connection.start(0.05, sends=0)
    assert connection.start(0.1, sends=0)
    connection.note_connected()
    assert connection.is_connected
    assert connection.connect_at(sends=0) is None
    assert connection.failures == 1, "it has confirmed nothing yet"
    connection.note_confirmed()
    assert connection.failures == 0
