"""Books that are too large, spread over several events."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tardis_machine.bronze.decoding import to_message
from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import Event, digest_of
from tardis_machine.bronze.splitting import join_parts, split_event
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.messages import UNSET, BookChange, BookLevel, BookSnapshot, Message, Trade, to_json
from tests.unit.eventbus.scripted_bus import LIMITS, ScriptedBus, make_publisher

AT = "2024-01-01T00:00:00.000000Z"


def levels(count: int) -> list[BookLevel]:
    return [BookLevel(1000.5 + number, number) for number in range(count)]


def encode(message: Message) -> Event:
    (event,) = BronzeEncoder(session_id="s1", origin="replay", meta={"request_id": "r"}).encode([message])
    return event


@pytest.mark.parametrize(
    "message",
    [
        BookChange("XBTUSD", "bitmex", True, levels(300), levels(200), AT, AT),
        BookChange("XBTUSD", "bitmex", False, [], levels(200), AT, AT),
        BookSnapshot("XBTUSD", "bitmex", "book_snapshot_100_1s", 100, 1000, UNSET, levels(100), levels(100), AT, AT),
        BookSnapshot("XBTUSD", "bitmex", "x", 100, 1000, 10, levels(100), levels(100), AT, AT),
    ],
)
def test_the_parts_have_all_levels_in_order(message: BookChange | BookSnapshot) -> None:
    event = encode(message)
    parts = split_event(event, 1000)
    assert parts is not None
    assert len(parts) > 1
    assert max(len(part.value) for part in parts) <= 1000
    decoded = [NormalizedEvent.FromString(part.value) for part in parts]
    case = event.stream.payload_case
    whole = NormalizedEvent.FromString(event.value)
    payloads = [getattr(part, case) for part in decoded]
    assert [level for payload in payloads for level in payload.bids] == list(getattr(whole, case).bids)
    assert [level for payload in payloads for level in payload.asks] == list(getattr(whole, case).asks)
    for number, (part, found) in enumerate(zip(parts, decoded, strict=True)):
        place = getattr(found, case).part
        assert (place.whole_event_id, place.index, place.count) == (event.event_id, number, len(parts))
        assert found.meta["request_id"] == "r"
        with pytest.raises(ValueError, match=f"an event of one part of a {case} holds no normalized message"):
            to_message(found)
        assert found.event_id == part.event_id
        assert (found.sequence, found.local_ts, found.exchange, found.symbol) == (0, whole.local_ts, "bitmex", "XBTUSD")
        assert (part.sequence, part.local_ts_us, part.stream) == (event.sequence, event.local_ts_us, event.stream)
    assert len({part.event_id for part in parts}) == len(parts)
    if isinstance(message, BookChange):
        flags = [payload.is_snapshot for payload in payloads]
        assert flags == [message.is_snapshot] + [False] * (len(parts) - 1)
    assert split_event(event, 1000) == parts, "the same parts each time"
    assert join_parts(reversed(decoded)) == whole
    for wrong in (decoded[1:], [*decoded, decoded[0]], [whole]):
        with pytest.raises(ValueError, match=r"are not all of the|is no part of a book"):
            join_parts(wrong)


def test_parts_of_two_splittings_have_no_id_in_common() -> None:
    """Two buses with different limits, or one whose limit was changed, split the same book."""
    event = encode(BookChange("XBTUSD", "bitmex", True, levels(300), levels(200), AT, AT))
    found: dict[bytes, bytes] = {}
    counts = set()
    for limit in range(600, 5000, 50):
        parts = split_event(event, limit)
        assert parts is not None
        counts.add(len(parts))
        for part in parts:
            assert found.setdefault(part.event_id, part.value) == part.value, "an id stands for two parts"
        decoded = [NormalizedEvent.FromString(part.value) for part in parts]
        assert join_parts(decoded) == NormalizedEvent.FromString(event.value)
    assert len(counts) > 5
    assert len(found) == sum(counts)


def test_levels_that_are_null_are_null_in_their_part_and_in_the_whole() -> None:
    bids, asks = levels(300), levels(300)
    for side, index in ((bids, 0), (bids, 250), (asks, 299)):
        side[index] = BookLevel(None, 1)  # type: ignore[arg-type]
    asks[7] = None  # type: ignore[call-overload]
    message = BookChange("XBTUSD", "bitmex", True, bids, asks, AT, AT)
    event = encode(message)
    parts = split_event(event, 1000)
    assert parts is not None
    decoded = [NormalizedEvent.FromString(part.value) for part in parts]
    for part in decoded:
        for name in part.null_fields:
            side, index, *_ = name.split(".")
            assert not getattr(part.book_change, side)[int(index)].HasField("price_str")
    assert sum(len(part.null_fields) for part in decoded) == 4
    assert to_json(to_message(join_parts(decoded))) == to_json(message)
    assert join_parts(decoded).SerializeToString(deterministic=True) == NormalizedEvent.FromString(event.value).SerializeToString(
        deterministic=True
    )


def test_what_cannot_be_split_is_left_alone() -> None:
    trade = encode(Trade("XBTUSD", "bitmex", "x" * 2000, 1.5, 1, "buy", AT, AT))
    assert split_event(trade, 1000) is None
    book = encode(BookChange("XBTUSD", "bitmex", True, levels(3), [], AT, AT))
    assert split_event(book, 50) is None, "not even one level fits"


async def test_the_publisher_splits_where_it_is_told_to_and_its_ledger_knows(tmp_path: Path) -> None:
    bus = ScriptedBus(limits=msgspec.structs.replace(LIMITS, record_bytes=1500))
    publisher = make_publisher(tmp_path, bus, oversize="split")
    await publisher.start()
    encoder = BronzeEncoder(session_id="s1", origin="replay")
    small = BookChange("XBTUSD", "bitmex", False, levels(2), [], AT, AT)
    large = BookChange("XBTUSD", "bitmex", True, levels(300), [], AT, AT)
    huge = Trade("XBTUSD", "bitmex", "x" * 2000, 1.5, 1, "buy", AT, AT)
    await publisher.publish(encoder.encode([small, large, huge, small]))
    (receipt,) = await publisher.close(10)
    assert receipt.dead_lettered == 1
    assert all(record.size_bytes <= 1500 for record in bus.stored if record.route.payload_case != "session_end")
    books = bus.of_case("book_change")
    assert len(books) > 4
    assert [event.sequence for event in books] == [0, *[1] * (len(books) - 2), 2]
    entries = {entry.payload_case: entry for entry in bus.session_ends[0].entries}
    assert entries["book_change"].count == len(books)
    assert entries["book_change"].last_sequence == 2
    assert int.from_bytes(entries["book_change"].digest, "big") == digest_of([event.event_id for event in books])
    assert entries["trade"].count == 1, "what was dead-lettered is missing in the lake, and is to be seen"
