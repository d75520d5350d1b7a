"""Normalizing is a function of what was fed: lines or messages, whole or in pieces."""

from __future__ import annotations

import pytest

from tardis_machine.errors import NormalizeError, OptionsError
from tardis_machine.exchanges import EXCHANGES
from tardis_machine.filters import Filter
from tardis_machine.messages import Disconnect, Trade, parse_timestamp_us
from tardis_machine.pipeline.normalizer import Normalizer, symbol_filter
from tardis_machine.recorded_line import Lines, split_lines
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.sample.venues import VENUES

AT = b"2020-01-01T00:00:01.0020039Z"


def trade(price: float) -> bytes:
    return (
        b'{"table":"trade","action":"insert","data":[{"timestamp":"2020-01-01T00:00:01.000Z","symbol":"XBTUSD","side":"Buy",'
        b'"size":5,"price":%r,"trdMatchID":"t"}]}' % price
    )


def test_a_recorded_timestamp_keeps_its_microseconds() -> None:
    [message] = Normalizer("bitmex", ["trade"]).feed(AT, trade(7000.0))
    assert message == Trade("XBTUSD", "bitmex", "t", 7000, 5, "buy", "2020-01-01T00:00:01.000Z", "2020-01-01T00:00:01.002003Z")


def test_a_millisecond_clock_keeps_three_digits() -> None:
    [message] = Normalizer("bitmex", ["trade"]).feed(b"2020-01-01T00:00:01.002Z", trade(7000.5))
    assert message.local_timestamp == "2020-01-01T00:00:01.002Z"


def test_a_disconnect_is_told_only_after_a_first_message_and_where_asked_for() -> None:
    line = AT + b" " + trade(1.0)
    assert Normalizer("bitmex", ["trade"], with_disconnects=True).feed_lines([b"", b"", line, b"", line])[1:2] == [
        Disconnect("bitmex", "2020-01-01T00:00:01.002003Z")
    ]
    assert len(Normalizer("bitmex", ["trade"]).feed_lines([line, b"", line])) == 2


def test_connections_lost_one_after_the_other_are_told_once_also_over_batches() -> None:
    normalizer = Normalizer("bitmex", ["trade"], with_disconnects=True)
    line = AT + b" " + trade(1.0)
    told = [
        *normalizer.feed_lines([line, b"", b"", b""]),
        *normalizer.feed_lines([b""]),
        *normalizer.feed_lines([b"", line, b""]),
    ]
    assert [type(message) for message in told] == [Trade, Disconnect, Trade, Disconnect]


def test_a_disconnect_forgets_the_book() -> None:
    partial = (
        b'{"table":"orderBookL2","action":"partial","data":[{"symbol":"X","id":1,"side":"Buy","size":5,"price":10,'
        b'"timestamp":"2020-01-01T00:00:01.000Z"}]}'
    )
    update = b'{"table":"orderBookL2","action":"update","data":[{"symbol":"X","id":1,"side":"Buy","size":6}]}'
    normalizer = Normalizer("bitmex", ["book_change"])
    assert len(normalizer.feed(AT, partial)) == 1
    assert len(normalizer.feed(AT, update)) == 1
    normalizer.disconnect()
    assert normalizer.feed(AT, update) == []


@pytest.mark.parametrize("broken", [b"{broken", b"", b"{},{}", b"{}]", b"[{}", b"{},", b"{}],[{}", b'"\xff"'])
def test_what_cannot_be_taken_names_the_exchange_and_the_time_and_keeps_what_came_before(broken: bytes) -> None:
    """Lines are parsed together, and each has to be a message by itself."""
    normalizer = Normalizer("bitmex", ["trade"])
    later = b"2020-01-01T00:00:02.0020039Z"
    with pytest.raises(NormalizeError, match=r"bitmex message received at 2020-01-01T00:00:02.0020039Z") as caught:
        normalizer.feed_lines([AT + b" " + trade(1.0), later + b" " + broken, AT + b" " + trade(3.0)])
    assert len(caught.value.emitted) == 1
    assert len(normalizer.feed(AT, trade(2.0))) == 1


def test_unknown_names_are_refused() -> None:
    with pytest.raises(OptionsError, match=r"bitmex.*'mtgox'"):
        Normalizer("mtgox", ["trade"])
    with pytest.raises(OptionsError, match=r"bitmex has no 'trades'.*book_change"):
        Normalizer("bitmex", ["trades"])


def test_symbols_pass_as_asked_for_as_spelled_upstream_and_in_upper_case() -> None:
    assert symbol_filter(None, []) is None
    assert symbol_filter([], []) is None
    passed = symbol_filter(["aaplx/usd"], [Filter("trade", ["AAPLx/USD"])])
    assert passed is not None
    assert {"AAPLx/USD", "AAPLX/USD", "aaplx/usd"} <= passed
    assert "MSFT" not in passed


@pytest.mark.parametrize("exchange", sorted(VENUES))
def test_lines_in_one_piece_are_the_same_messages(exchange: str) -> None:
    # The minute in which a book begins, and one in which the connection is lost.
    recording = Recording(SampleMarket(activity=0.2), disconnects_per_day=1440)
    first = parse_timestamp_us("2020-02-01T00:00:00.000000Z") // 60_000_000
    data = b"".join(recording.minute(exchange, first + minute) for minute in range(2))
    data_types = EXCHANGES[exchange].data_types
    by_line, in_one_piece = (Normalizer(exchange, data_types, with_disconnects=True, at=first * 60_000_000) for _ in range(2))
    cut = data.find(b"\n", len(data) // 3) + 1
    expected = [message for part in (data[:cut], data[cut:]) for message in by_line.feed_lines(split_lines(part))]
    assert expected
    assert [message for part in (Lines(data, 0, cut), Lines(data, cut)) for message in in_one_piece.feed_lines(part)] == expected
