from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.bronze import encoding
from tardis_machine.bronze.decoding import decode, decode_event, parse_decimal, to_message
from tardis_machine.bronze.encoding import PAYLOAD_CASES, parse_payload_case, payload_case_of
from tardis_machine.bronze.event import Event
from tardis_machine.errors import NormalizeError
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.messages import (
    UNSET,
    BookChange,
    BookLevel,
    BookSnapshot,
    Disconnect,
    ErrorMessage,
    Message,
    Trade,
    TradeBar,
    from_json,
    js_number,
    parse_timestamp_us,
    to_json,
    to_timestamp,
)
from tests.compiled_or_not import import_as_python, import_compiled
from tests.strategies import MESSAGES_BY_TYPE, book_changes, messages, trades

LOCAL = "2019-06-01T00:00:28.619123Z"
LATER = "2019-06-01T00:00:28.619124Z"


MODULES = [f"tardis_machine.bronze.{name}" for name in ("wire", "payloads", "sealing", "encoding")]
*_, compiled = import_compiled(*MODULES)
*_, as_python = import_as_python(*MODULES)


@pytest.fixture(scope="module", params=[compiled, as_python], ids=["compiled", "python"], autouse=True)
def either_encoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """All of this is true of both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "BronzeEncoder", request.param.BronzeEncoder)
        patch.setattr(encoding, "EventNumbering", request.param.EventNumbering)
        yield


def encoder(**options: Any) -> encoding.BronzeEncoder:
    return encoding.BronzeEncoder(
        **{"session_id": "session", "origin": "replay", "clock_us": lambda: 1_700_000_000_123_456, **options}
    )


def trade(amount: float = 1, local: str = LOCAL, **fields: Any) -> Trade:
    values: dict[str, Any] = {
        "symbol": "XBTUSD",
        "exchange": "bitmex",
        "id": "7",
        "price": 8000.5,
        "amount": amount,
        "side": "buy",
        "timestamp": "2019-06-01T00:00:28.600Z",
        "local_timestamp": local,
    }
    return Trade(**(values | fields))


def book_change(bids: list[BookLevel], asks: list[BookLevel], *, is_snapshot: bool = False) -> BookChange:
    return BookChange("XBTUSD", "bitmex", is_snapshot, bids, asks, "2019-06-01T00:00:28.600Z", LOCAL)


def odd_book_change() -> bytes:
    line = to_json(book_change([BookLevel(1, 2)], []))
    return line.replace(b'[{"price":1,"amount":2}]', b'[null,{"price":null,"amount":2},{},{"price":1}]')


def snapshot(name: str, *, depth: int = 1, grouping: Any = UNSET, bids: int = 1, asks: int = 1) -> BookSnapshot:
    level = BookLevel(1, 2)
    return BookSnapshot("XBTUSD", "bitmex", name, depth, 100, grouping, [level] * bids, [level] * asks, LOCAL, LOCAL)


def sequences(events: list[Event]) -> list[int]:
    return [decode_event(event.value).sequence for event in events]


class TestIdentity:
    """JSON to Bronze to JSON."""

    @pytest.mark.parametrize("case", MESSAGES_BY_TYPE)
    @settings(max_examples=120)
    @given(data=st.data())
    def test_every_type(self, case: str, data: st.DataObject) -> None:
        printed = to_json(data.draw(MESSAGES_BY_TYPE[case]))
        [event] = encoder().encode([from_json(printed)])
        assert decode_event(event.value).WhichOneof("payload") == case
        assert to_json(decode(event.value)) == printed

    @settings(max_examples=200)
    @given(messages())
    def test_bytes_are_those_of_the_library(self, message: Message) -> None:
        [event] = encoder(meta={"z": "1", "a": "2"}).encode([message])
        parsed = decode_event(event.value)
        parsed.DiscardUnknownFields()
        assert parsed.SerializeToString(deterministic=True) == event.value

    def test_not_a_number_is_null(self) -> None:
        message = trade(price=float("nan"), amount=float("inf"))
        [event] = encoder().encode([message])
        assert list(decode_event(event.value).null_fields) == ["price", "amount"]
        assert to_json(decode(event.value)) == to_json(message)

    def test_a_null_level_and_null_parts_of_levels(self) -> None:
        line = odd_book_change()
        [event] = encoder().encode([from_json(line)])
        assert list(decode_event(event.value).null_fields) == ["bids.0", "bids.1.price"]
        assert to_json(decode(event.value)) == line

    @given(st.floats(allow_nan=False, allow_infinity=False))
    def test_decimals_are_plain_and_exact(self, value: float) -> None:
        number = js_number(value)
        [event] = encoder().encode([trade(price=number)])
        text = decode_event(event.value).trade.price_str
        assert set(text) <= set("-0123456789.")
        assert float(text) == value
        assert to_json(parse_decimal(text)) == to_json(number)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0.0, "0"),
            (-0.0, "0"),
            (2000.0, "2000"),
            (1e-7, "0.0000001"),
            (8.5e-6, "0.0000085"),
            (1e21, "1000000000000000000000"),
            (123456789012345680000.0, "123456789012345680000"),
        ],
    )
    def test_decimal_text(self, value: float, text: str) -> None:
        [event] = encoder().encode([trade(price=js_number(value))])
        assert decode_event(event.value).trade.price_str == text

    def test_unknown_side_is_set_and_not_absent(self) -> None:
        [event] = encoder().encode([trade(side="unknown")])
        assert decode_event(event.value).trade.HasField("side")
        assert decode(event.value).side == "unknown"  # type: ignore[union-attr]

    def test_a_side_that_is_none_is_refused(self) -> None:
        with pytest.raises(NormalizeError, match="side is 'up'; expected unknown, buy, sell"):
            encoder().encode([trade(side="up")])

    def test_what_is_no_message_is_refused(self) -> None:
        [end] = encoder().encode_session_end(pb.SessionEnd(complete=True))
        with pytest.raises(ValueError, match="session_end holds no normalized message"):
            decode(end.value)
        [level] = encoder(book_changes="level").encode([book_change([BookLevel(1, 2)], [])])
        with pytest.raises(ValueError, match="one book level holds no normalized message"):
            decode(level.value)
        with pytest.raises(ValueError, match="None holds no normalized message"):
            to_message(pb.NormalizedEvent())

    def test_an_enum_of_a_later_version_is_refused(self) -> None:
        with pytest.raises(ValueError, match="side is 9"):
            to_message(pb.NormalizedEvent(trade=pb.Trade(side=9)))  # type: ignore[arg-type]

    def test_vectors(self, vectors: Path) -> None:
        """All that the reference emits survives."""
        count = 0
        bronze = encoder()
        for file in sorted(vectors.glob("normalize*/*.jsonl")):
            for row in file.read_bytes().splitlines():
                for step in orjson.loads(row)["steps"]:
                    printed = [to_json(from_json(orjson.dumps(message))) for message in step["expected"]]
                    events = bronze.encode([from_json(line) for line in printed])
                    assert [to_json(decode(event.value)) for event in events] == printed
                    count += len(printed)
        assert count > 3000


class TestEnvelope:
    def test_all_of_it(self) -> None:
        meta = {"request_id": "r", "transport": "http"}
        [event] = encoder(meta=meta, source="tardis-machine/9").encode([trade()])
        parsed = decode_event(event.value)
        assert (parsed.source, parsed.exchange, parsed.symbol) == ("tardis-machine/9", "bitmex", "XBTUSD")
        assert parsed.local_ts.ToMicroseconds() == parse_timestamp_us(LOCAL) == event.local_ts_us
        assert parsed.ingest_ts.ToMicroseconds() == 1_700_000_000_123_456
        assert parsed.origin == pb.ORIGIN_REPLAY
        assert parsed.event_id == event.event_id
        assert len(event.event_id) == 16
        assert parsed.HasField("sequence")
        assert parsed.sequence == event.sequence == 0
        assert dict(parsed.meta) == {**meta, "session_id": "session"} == event.stream.meta
        assert parsed.millisecond_timestamps == 0b10
        assert (event.stream.session_id, event.stream.payload_case, event.stream.data_type) == ("session", "trade", "trade")

    @pytest.mark.parametrize(
        ("origin", "number"), [("realtime", pb.ORIGIN_REALTIME), ("replay", pb.ORIGIN_REPLAY), ("archive", pb.ORIGIN_ARCHIVE)]
    )
    def test_origin(self, origin: str, number: int) -> None:
        [event] = encoder(origin=origin).encode([trade()])
        assert decode_event(event.value).origin == number
        assert event.stream.origin == origin

    def test_no_symbol_where_there_is_none(self) -> None:
        events = encoder().encode([Disconnect("bitmex", LOCAL), ErrorMessage("bitmex", LOCAL, "no")])
        assert [decode_event(event.value).HasField("symbol") for event in events] == [False, False]
        assert [event.stream.symbol for event in events] == ["", ""]

    def test_ingest_time_is_that_of_the_batch(self) -> None:
        clock = iter([1_000_000, 2_000_000])
        bronze = encoder(clock_us=lambda: next(clock))
        events = [*bronze.encode([trade(), trade()]), *bronze.encode([trade()])]
        assert [decode_event(event.value).ingest_ts.seconds for event in events] == [1, 1, 2]

    def test_default_source_and_clock(self) -> None:
        [event] = encoding.BronzeEncoder(session_id="s", origin="replay").encode([trade()])
        parsed = decode_event(event.value)
        assert parsed.source.startswith("tardis-machine/")
        assert parsed.ingest_ts.seconds > 1_700_000_000

    def test_streams_are_shared_by_their_events(self) -> None:
        events = encoder().encode([trade(), trade(local=LATER), trade(symbol="ETHUSD")])
        assert events[0].stream is events[1].stream
        assert events[2].stream.symbol == "ETHUSD"

    def test_session_end(self) -> None:
        ledger = pb.SessionEnd(complete=False, reason="client gone", session_id="session")
        ledger.entries.add(exchange="bitmex", symbol="XBTUSD", payload_case="trade", count=3, digest=b"\1\2")
        ledger.ended_ts.FromMicroseconds(parse_timestamp_us(LOCAL))
        [event] = encoder().encode_session_end(ledger)
        parsed = decode_event(event.value)
        assert parsed.session_end == ledger
        assert parsed.local_ts == ledger.ended_ts
        assert (parsed.HasField("exchange"), parsed.HasField("symbol"), parsed.sequence) == (False, False, 0)
        assert event.stream.payload_case == event.stream.data_type == "session_end"


class TestSequence:
    def test_dense_for_each_exchange_symbol_and_case(self) -> None:
        bronze = encoder()
        batch: list[Message] = [trade(), trade(symbol="ETHUSD"), trade(exchange="okex"), book_change([], []), trade()]
        events = [*bronze.encode(batch), *bronze.encode([trade()])]
        assert sequences(events) == [0, 0, 0, 0, 1, 2] == [event.sequence for event in events]

    def test_data_types_of_one_case_share_it(self) -> None:
        events = encoder().encode([snapshot("book_snapshot_2_1s", depth=2), snapshot("book_snapshot_3_1s", depth=3)])
        assert sequences(events) == [0, 1]
        assert [event.stream.data_type for event in events] == ["book_snapshot_2_1s", "book_snapshot_3_1s"]

    def test_what_is_not_included_takes_no_number(self) -> None:
        bronze = encoder(include=frozenset({"trade"}))
        events = bronze.encode([trade(), book_change([], []), Disconnect("bitmex", LOCAL), trade()])
        assert [event.stream.payload_case for event in events] == ["trade", "trade"]
        assert sequences(events) == [0, 1]
        assert bronze.encode_session_end(pb.SessionEnd()) == []

    @pytest.mark.parametrize("first", [0, 100, 16_300, 2**21 - 100, 2**32 - 1, 2**63])
    def test_large_numbers(self, first: int) -> None:
        bronze = encoder()
        bronze._numberings["bitmex", "XBTUSD", "trade"] = encoding.EventNumbering(
            "bitmex", "XBTUSD", "trade", next_sequence=first
        )
        events = bronze.encode([trade()] * 300)
        assert sequences(events) == list(range(first, first + 300)) == [event.sequence for event in events]


class TestEventId:
    def ids(self, *batches: Sequence[Message], **options: Any) -> list[bytes]:
        bronze = encoder(**options)
        return [event.event_id for batch in batches for event in bronze.encode(batch)]

    @settings(max_examples=60)
    @given(stream=st.lists(messages(), max_size=12), cut=st.integers(0, 12))
    def test_the_same_however_the_stream_is_cut(self, stream: list[Message], cut: int) -> None:
        whole = self.ids(stream)
        assert self.ids(stream[:cut], stream[cut:], session_id="other", origin="archive", meta={"a": "b"}) == whole

    @settings(max_examples=60)
    @given(st.lists(st.one_of(trades(), book_changes()), max_size=12))
    def test_distinct(self, stream: list[Message]) -> None:
        ids = self.ids([*stream, *stream])
        assert len(set(ids)) == len(ids)

    def test_equal_trades_of_one_moment_are_two_events(self) -> None:
        first, second, third = self.ids([trade(), trade(), trade()])
        assert len({first, second, third}) == 3

    def test_the_ordinal_counts_equals_alone(self) -> None:
        """Ids do not move when something else appears beside them."""
        alone = self.ids([trade(1), trade(1)])
        among_others = self.ids([trade(2), trade(1), trade(3), trade(1), trade(1, symbol="ETHUSD")])
        assert [among_others[1], among_others[3]] == alone

    def test_independent_of_where_the_replay_began(self) -> None:
        stream = [trade(1, to_timestamp(1_559_347_200_000_000 + index // 3)) for index in range(30)]
        assert self.ids(stream[9:]) == self.ids(stream)[9:]

    def test_a_clock_that_steps_back_makes_no_equal_ids(self) -> None:
        stream = [trade(1, local) for local in (LOCAL, LATER, LOCAL, LATER, LOCAL, LOCAL)]
        ids = self.ids(stream)
        assert len(set(ids)) == len(ids)
        assert self.ids(stream[1:]) == ids[1:]

    def test_every_part_counts(self) -> None:
        variants = [
            trade(),
            trade(symbol="XBTUS"),
            trade(exchange="bitme", symbol="xXBTUSD"),
            trade(local=LATER),
            trade(amount=2),
            trade(id=UNSET),
        ]
        assert len({self.ids([variant])[0] for variant in variants}) == len(variants)

    def test_case_counts(self) -> None:
        """A lone quote and a lone snapshot are told apart by the case, whatever their bytes."""
        assert self.ids([snapshot("book_snapshot_1_100ms")]) != self.ids([snapshot("book_snapshot_1_100ms", grouping=1)])

    def test_recorded(self) -> None:
        """Ids are kept in lakes: they must not change from one version to the next."""
        assert [one.hex() for one in self.ids([trade(), trade()])] == [
            "5824462b345450c1f33ee61e07c32356",
            "598a1b8df68b8a8626e42c6d9cf84025",
        ]


class TestBatches:
    def test_how_it_is_cut_changes_nothing(self) -> None:
        stream: list[Message] = [trade(), trade(), snapshot("quote"), trade(), trade(local=LATER), snapshot("quote")]
        bronze = encoding.BronzeEncoder(
            session_id="s", origin="replay", book_changes="level", include=frozenset({"trade", "quote"})
        )
        expected = [
            (event.event_id, event.sequence) for event in encoding.BronzeEncoder(session_id="s", origin="replay").encode(stream)
        ]
        found: list[tuple[bytes, int]] = []
        for message in stream:
            found += [(event.event_id, event.sequence) for event in bronze.encode([message])]
        assert found == expected


class TestLevels:
    """One event for each level of a book change."""

    def test_all_of_one(self) -> None:
        change = book_change([BookLevel(8000.5, 10), BookLevel(8000, 0)], [BookLevel(8001, 1e-7)], is_snapshot=True)
        payloads = [decode_event(event.value).book_change for event in encoder(book_changes="level").encode([change])]
        found = [(p.side, p.action, p.price_str, p.qty_str, p.level, p.level_count, p.is_snapshot) for p in payloads]
        assert found == [
            (pb.SIDE_BUY, pb.ACTION_UPSERT, "8000.5", "10", 0, 3, True),
            (pb.SIDE_BUY, pb.ACTION_DELETE, "8000", "0", 1, 3, True),
            (pb.SIDE_SELL, pb.ACTION_UPSERT, "8001", "0.0000001", 0, 3, True),
        ]
        assert {p.event_ts.ToMicroseconds() for p in payloads} == {parse_timestamp_us("2019-06-01T00:00:28.600Z")}
        assert not any(p.bids or p.asks for p in payloads)

    @pytest.mark.parametrize("is_snapshot", [True, False])
    def test_a_change_without_levels_is_not_lost(self, is_snapshot: bool) -> None:
        [event] = encoder(book_changes="level").encode([book_change([], [], is_snapshot=is_snapshot)])
        payload = decode_event(event.value).book_change
        assert (payload.HasField("is_snapshot"), payload.is_snapshot) == (True, is_snapshot)
        assert (payload.HasField("level_count"), payload.level_count) == (True, 0)
        assert not payload.HasField("side")

    @settings(max_examples=150)
    @given(st.lists(book_changes(), max_size=4))
    def test_levels_regroup_to_the_messages(self, changes: list[BookChange]) -> None:
        events = [decode_event(event.value) for event in encoder(book_changes="level").encode(changes)]
        assert [to_json(change) for change in regroup(events)] == [to_json(change) for change in changes]

    def test_odd_levels_are_not_lost(self) -> None:
        events = encoder(book_changes="level").encode([from_json(odd_book_change())])
        parsed = [decode_event(event.value) for event in events]
        assert [list(event.null_fields) for event in parsed] == [["bids.0"], ["bids.1.price"], [], []]
        assert [event.book_change.HasField("action") for event in parsed] == [False, True, False, False]
        assert [to_json(change) for change in regroup(parsed)] == [odd_book_change()]

    @settings(max_examples=60)
    @given(st.lists(book_changes(), max_size=4))
    def test_bytes_are_those_of_the_library(self, changes: list[BookChange]) -> None:
        for event in encoder(book_changes="level").encode(changes):
            parsed = decode_event(event.value)
            parsed.DiscardUnknownFields()
            assert parsed.SerializeToString(deterministic=True) == event.value

    def test_numbered_as_events(self) -> None:
        change = book_change([BookLevel(1, 2)] * 3, [])
        events = encoder(book_changes="level").encode([change, change])
        assert sequences(events) == [0, 1, 2, 3, 4, 5]
        assert len({event.event_id for event in events}) == 6

    def test_other_messages_stay_whole(self) -> None:
        [event] = encoder(book_changes="level").encode([snapshot("book_snapshot_2_1s", depth=2, bids=2, asks=2)])
        assert len(decode_event(event.value).book_snapshot.bids) == 2


def regroup(events: list[pb.NormalizedEvent]) -> list[Message]:
    """Whole book changes from the events of their levels, with nothing but what the events hold."""
    changes: list[Message] = []
    while events:
        count = events[0].book_change.level_count
        group, events = events[: max(count, 1)], events[max(count, 1) :]
        whole = pb.NormalizedEvent()
        whole.CopyFrom(group[0])
        del whole.null_fields[:]
        whole.book_change.Clear()
        whole.book_change.is_snapshot = group[0].book_change.is_snapshot
        if group[0].book_change.HasField("event_ts"):
            whole.book_change.event_ts.CopyFrom(group[0].book_change.event_ts)
        for event in group:
            whole.null_fields.extend(name for name in event.null_fields if name not in whole.null_fields)
            level = event.book_change
            if not level.HasField("side"):
                continue
            side = whole.book_change.bids if level.side == pb.SIDE_BUY else whole.book_change.asks
            assert level.level == len(side)
            side.add(**{name: getattr(level, name) for name in ("price_str", "qty_str") if level.HasField(name)})
        changes.append(to_message(whole))
    return changes


class TestPayloadCase:
    def test_the_names_are_those_of_the_schema(self) -> None:
        fields = pb.NormalizedEvent.DESCRIPTOR.oneofs_by_name["payload"].fields
        assert tuple(field.name for field in fields) == PAYLOAD_CASES

    @pytest.mark.parametrize("case", MESSAGES_BY_TYPE)
    @settings(max_examples=20)
    @given(data=st.data())
    def test_of_a_message(self, case: str, data: st.DataObject) -> None:
        assert payload_case_of(data.draw(MESSAGES_BY_TYPE[case])) == case

    @pytest.mark.parametrize(
        ("message", "case"),
        [
            (snapshot("quote"), "quote"),
            (snapshot("quote_10s"), "quote"),
            (snapshot("book_snapshot_1_0ms"), "book_snapshot"),
            (snapshot("quote", grouping=10), "grouped_book_snapshot"),
            (snapshot("quote", depth=2, bids=2, asks=2), "book_snapshot"),
            (snapshot("quote", bids=0), "book_snapshot"),
        ],
    )
    def test_a_quote_is_one_in_name_and_shape(self, message: BookSnapshot, case: str) -> None:
        assert payload_case_of(message) == case
        [event] = encoder().encode([message])
        assert to_json(decode(event.value)) == to_json(message)

    def test_data_type_is_the_name_of_what_is_computed(self) -> None:
        numbers: list[Any] = [1.5] * 7
        bar = TradeBar("X", "e", "trade_bar_10ms", 10, "time", *numbers, 3, 1.5, LOCAL, LOCAL, LOCAL, LOCAL)
        events = encoder().encode([bar, snapshot("quote_10s"), trade(), Disconnect("e", LOCAL)])
        assert [event.stream.data_type for event in events] == ["trade_bar_10ms", "quote_10s", "trade", "disconnect"]

    def test_spellings(self) -> None:
        camel = {parse_payload_case(text) for text in ("bookChange", "groupedBookSnapshot", "sessionEnd", "trade")}
        assert camel == {"book_change", "grouped_book_snapshot", "session_end", "trade"}
        assert all(parse_payload_case(case) == case for case in PAYLOAD_CASES)

    @pytest.mark.parametrize("text", ["trades", "BookChange", "", "book-change"])
    def test_an_unknown_one_is_refused_with_the_known_ones(self, text: str) -> None:
        with pytest.raises(ValueError, match=f"'{text}' is not a payload case; expected trade, book_change"):
            parse_payload_case(text)


def test_strategies_reach_the_odd_corners() -> None:
    """The properties above mean something only if they meet nulls, absent values, long numbers and far years."""
    seen: Counter[str] = Counter()

    @settings(max_examples=1_500, database=None, derandomize=True)
    @given(messages())
    def look(message: Message) -> None:
        [event] = encoder().encode([message])
        parsed = decode_event(event.value)
        seen["null"] += bool(parsed.null_fields)
        seen["nested null"] += any("." in name for name in parsed.null_fields)
        seen["milliseconds"] += bool(parsed.millisecond_timestamps)
        seen["far year"] += to_json(message).count(b'mp":"+') + to_json(message).count(b'mp":"-') > 0
        seen["long"] += len(event.value) > 500

    look()
    assert all(seen[corner] for corner in ("null", "nested null", "milliseconds", "far year", "long")), seen


@pytest.mark.parametrize("symbol", ["", None, UNSET, "A"])
def test_a_symbol_that_is_null_or_missing_stays_so(symbol: Any) -> None:
    trade = Trade(symbol, "x", "1", None, 1, "buy", "2024-01-01T00:00:00.000Z", "2024-01-01T00:00:00.000000Z")  # type: ignore[arg-type]
    [event] = encoding.BronzeEncoder(session_id="s", origin="replay").encode([trade]).events
    assert decode(event.value) == trade
    assert to_json(decode(event.value)) == to_json(trade)
    assert event.stream.symbol == (symbol or "")
