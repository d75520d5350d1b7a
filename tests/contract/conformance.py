"""The one suite that every event bus has to pass, against its real service.

Records are read back by other means than the bus itself uses, decoded with the generated code, and compared with the JSON that a
client of the machine would have got.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tardis_machine.bronze.decoding import decode, decode_event
from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import Event, digest_of
from tardis_machine.errors import SettingsError, TerminalDeliveryError, UndeliveredError
from tardis_machine.eventbus.contract import Danger
from tardis_machine.eventbus.dead_letters import DeadLetter, dead_letter_files, read_dead_letters
from tardis_machine.eventbus.publisher import Publisher
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.messages import Message, to_json
from tests.contract.bus_under_test import ALL_FAULTS, BusUnderTest, Delivered, Fault, Misconfiguration
from tests.contract.sample_messages import sample_messages
from tests.servers.otlp_collector import OtlpCollector, attributes_of
from tests.unit.eventbus.test_monitor import metric

Test = TypeVar("Test", bound=Callable[..., Any])


def needs_fault(fault: Fault) -> Callable[[Test], Test]:
    """Marks a test that is there only for buses whose service can have the fault."""

    def mark(test: Test) -> Test:
        test.needs_fault = fault  # type: ignore[attr-defined]
        return test

    return mark


META = {"request_id": "r-1", "transport": "http"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Imported by the module of each bus: a test that takes a fault runs for each that the bus's service can have."""
    if "fault" in metafunc.fixturenames and metafunc.cls is not None:
        metafunc.parametrize("fault", [fault for fault in metafunc.cls.under_test.faults if fault != "partial"])


class Session:
    """A client's request: its messages, encoded as the machine does."""

    def __init__(self, session_id: str, meta: Mapping[str, str] = META) -> None:
        self.session_id = session_id
        self.messages: list[Message] = []
        self.events: list[Event] = []
        self._encoder = BronzeEncoder(session_id=session_id, origin="replay", meta=dict(meta))

    def encode(self, messages: Sequence[Message]) -> list[Event]:
        events = self._encoder.encode(messages)
        self.messages += messages
        self.events += events
        return events


class BusConformance:
    """Subclass it as `TestItsName`, with the class of its BusUnderTest; `test_conformance` does so for a bus without a file of tests.

    A subclass whose service is shared by tests has a fixture `bus` of its own.
    """

    under_test: ClassVar[type[BusUnderTest]]

    def __init_subclass__(cls) -> None:
        """A test of what the service can't have is not there: one that returned at once would tell nothing."""
        for name, test in vars(BusConformance).items():
            fault = getattr(test, "needs_fault", None)
            if fault is not None:
                setattr(cls, name, test if fault in cls.under_test.faults else None)

    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[BusUnderTest]:
        under_test = self.under_test(tmp_path)
        yield under_test
        under_test.close()

    @asynccontextmanager
    async def publisher(self, bus: BusUnderTest, mode: str = "overflow", **keywords: Any) -> AsyncIterator[Publisher]:
        publisher = Publisher([bus.plan(**keywords)], spool_dir=bus.folder / "spool", spool_mode=mode)  # type: ignore[arg-type]
        await publisher.start()
        try:
            yield publisher
        finally:
            await publisher.abort()

    def read(self, bus: BusUnderTest) -> list[tuple[Delivered, NormalizedEvent]]:
        return [(record, decode_event(record.value)) for record in bus.read_back()]

    def first_arrivals(self, bus: BusUnderTest) -> list[tuple[Delivered, NormalizedEvent]]:
        """Each event once; what comes again must be the same."""
        found: dict[tuple[str, bytes], tuple[Delivered, NormalizedEvent]] = {}
        for record, event in self.read(bus):
            first = found.setdefault((event.meta["session_id"], event.event_id), (record, event))
            assert first[1] == event, "an id stands for two events"
        return list(found.values())

    def check_session(self, arrivals: Sequence[tuple[Delivered, NormalizedEvent]], session: Session) -> None:
        """All events of the session are there, in order for each key, with every field of the message."""
        mine = [(record, event) for record, event in arrivals if event.meta["session_id"] == session.session_id]
        plain = {event.event_id: record for record, event in mine if not event.HasField("session_end")}
        assert set(plain) == {event.event_id for event in session.events}
        for event, message in zip(session.events, session.messages, strict=True):
            record = plain[event.event_id]
            assert record.value == event.value
            assert to_json(decode(record.value)) == to_json(message)
        last: dict[tuple[str, str, str], int] = defaultdict(lambda: -1)
        for _, event in mine:
            lane = (event.exchange, event.symbol, str(event.WhichOneof("payload")))
            assert event.sequence == last[lane] + 1, f"{lane} has a hole or was overtaken"
            last[lane] = event.sequence

    def test_it_is_said_what_its_service_can_and_cannot_have(self) -> None:
        can, cannot = set(self.under_test.faults), set(self.under_test.cannot)
        assert can | cannot == set(ALL_FAULTS)
        assert not can & cannot
        assert all(self.under_test.cannot.values()), "why it can't have it is said"

    async def test_every_field_of_every_message_arrives_once_in_order(self, bus: BusUnderTest) -> None:
        session = Session("s-1")
        async with self.publisher(bus) as publisher:
            await publisher.session_start("s-1", source="tardis-machine/test", origin="replay", meta=META)
            for _ in range(5):
                await publisher.publish(session.encode(sample_messages(600)[len(session.messages) % 600 :][:120]))
            publisher.session_end("s-1")
            (receipt,) = await publisher.close(30)
        assert receipt.is_complete
        assert receipt.confirmed == len(session.events) + 1
        arrivals = self.read(bus)
        assert len(arrivals) == len(session.events) + 1, "nothing comes twice without a fault"
        self.check_session(arrivals, session)
        (end,) = [event.session_end for _, event in arrivals if event.HasField("session_end")]
        assert end.complete
        assert sum(entry.count for entry in end.entries) == len(session.events)
        for entry in end.entries:
            ids = [
                event.event_id
                for event in session.events
                if (event.stream.exchange, event.stream.symbol, event.stream.payload_case)
                == (entry.exchange, entry.symbol, entry.payload_case)
            ]
            assert entry.count == len(ids)
            assert int.from_bytes(entry.digest, "big") == digest_of(ids)

    async def test_routing_sends_payload_cases_where_they_belong(self, bus: BusUnderTest) -> None:
        option, base = bus.destination_option()
        trades, books = bus.new_destination("trades"), bus.new_destination("books")
        async with self.publisher(bus, **{option: f"trade:{trades},bookChange:{books}"}) as publisher:
            await publisher.publish(Session("s-1").encode(sample_messages(240)))
            await publisher.close(30)
        found: dict[str, set[str | None]] = defaultdict(set)
        for record, event in self.read(bus):
            found[record.destination].add(event.WhichOneof("payload"))
        assert found[trades] == {"trade"}
        assert found[books] == {"book_change"}
        assert {"liquidation", "disconnect", "session_end"} <= found[base]
        assert not {"trade", "book_change"} & found[base]

    async def test_the_allow_list_keeps_out_the_rest(self, bus: BusUnderTest) -> None:
        async with self.publisher(bus, **{"include-payloads": "trade"}) as publisher:
            await publisher.publish(Session("s-1").encode(sample_messages(240)))
            await publisher.close(30)
        arrivals = self.read(bus)
        assert {event.WhichOneof("payload") for _, event in arrivals} == {"trade", "session_end"}
        (end,) = [event.session_end for _, event in arrivals if event.HasField("session_end")]
        assert {entry.payload_case for entry in end.entries} == {"trade"}

    async def test_keys_and_headers(self, bus: BusUnderTest) -> None:
        options = {"static-headers": 'desk:delta,note:"a, b"', "meta-headers-prefix": "tm-"}
        if bus.carries_key:
            options[bus.key_option] = "{{exchange}}/{{symbol}}/{{meta.request_id}}"
        async with self.publisher(bus, **options) as publisher:
            await publisher.publish(Session("s-1").encode(sample_messages(48)))
            await publisher.close(30)
        for record, event in self.read(bus):
            if bus.carries_key:
                assert record.key == f"{event.exchange}/{event.symbol}/r-1"
            headers = record.headers or dict(event.meta)
            assert headers["desk"] == "delta"
            assert headers["note"] == "a, b"
            if record.headers:
                assert headers["payloadCase"] == event.WhichOneof("payload")
                assert headers["eventId"] == event.event_id.hex()
                assert headers["tm-request_id"] == "r-1"
                assert headers["tm-session_id"] == "s-1"
                names = {"trade_bar": "trade_bar_1s", "quote": "quote_1s"}
                case = str(event.WhichOneof("payload"))
                assert headers["dataType"].startswith(names.get(case, case.removeprefix("grouped_")))

    async def test_a_partial_batch_leaves_at_once_when_it_is_closed(self, bus: BusUnderTest) -> None:
        session = Session("s-1")
        async with self.publisher(bus, **{"max-batch-delay-ms": "1m"}) as publisher:
            await publisher.publish(session.encode(sample_messages(10)))
            await asyncio.sleep(0.2)
            started = asyncio.get_running_loop().time()
            (receipt,) = await publisher.close(30)
            assert asyncio.get_running_loop().time() - started < 15
        assert receipt.is_complete
        self.check_session(self.read(bus), session)

    async def test_events_are_cloudevents_on_request(self, bus: BusUnderTest) -> None:
        """Where records have headers; a bus without them has no such option."""
        if not bus.plan().bus.limits.carries_headers:
            with pytest.raises(SettingsError, match="cloudevents is not a setting"):
                bus.plan(cloudevents=True)
            return
        session, prefix = Session("s-1"), "ce_" if bus.prefix == "kafka" else "ce-"
        async with self.publisher(bus, cloudevents=True) as publisher:
            await publisher.publish(session.encode(sample_messages(240)))
            publisher.session_end("s-1")
            (receipt,) = await publisher.close(30)
        assert receipt.is_complete
        arrivals = self.read(bus)
        self.check_session(arrivals, session)
        for record, event in arrivals:
            case = str(event.WhichOneof("payload"))
            wanted = {
                "content-type": "application/protobuf",
                "eventId": event.event_id.hex(),
                f"{prefix}id": event.event_id.hex(),
                f"{prefix}specversion": "1.0",
                f"{prefix}source": f"tardis-machine/{event.exchange}",
                f"{prefix}type": f"lakehouse.bronze.v1.{case}",
            }
            if event.symbol:
                wanted[f"{prefix}subject"] = event.symbol
            assert wanted.items() <= record.headers.items()

    async def test_a_session_is_traced_until_it_is_confirmed(self, bus: BusUnderTest) -> None:
        with OtlpCollector() as collector:
            plan = bus.plan()
            publisher = Publisher([plan], spool_dir=bus.folder / "spool", otel_endpoint=collector.url)
            await publisher.start()
            assert publisher.tracing is not None
            traceparent = publisher.tracing.begin("s-1", "/replay-normalized", "http", "r-1")
            meta = {**META, "traceparent": traceparent}
            session = Session("s-1", meta)
            await publisher.session_start("s-1", source="tardis-machine/test", origin="replay", meta=meta)
            await publisher.publish(session.encode(sample_messages(240)))
            publisher.session_end("s-1")
            (receipt,) = await publisher.close(30)
        assert receipt.is_complete
        (request,) = [span for span in collector.spans if span.name == "publish /replay-normalized"]
        batches = [span for span in collector.spans if span.name == f"send {bus.prefix}"]
        assert traceparent.startswith(f"00-{request.trace_id.hex()}-{request.span_id.hex()}-")
        assert {(span.trace_id, span.parent_span_id) for span in batches} == {(request.trace_id, request.span_id)}
        assert sum(int(attributes_of(span)["messaging.batch.message_count"]) for span in batches) == len(session.events) + 1
        assert max(span.end_time_unix_nano for span in batches) <= request.end_time_unix_nano
        assert {span.status.code for span in collector.spans} == {Status.STATUS_CODE_UNSET}
        for record, event in self.read(bus):
            carried = record.headers if plan.bus.limits.carries_headers else dict(event.meta)
            assert carried["traceparent"] == traceparent

    async def test_a_batch_leaves_when_it_is_old_enough(self, bus: BusUnderTest) -> None:
        async with self.publisher(bus, **{"max-batch-delay-ms": 100}) as publisher:
            await publisher.publish(Session("s-1").encode(sample_messages(10)))
            async with asyncio.timeout(20):
                while publisher.receipts[0].confirmed < 10:
                    await asyncio.sleep(0.02)

    async def test_doctor_is_told_what_was_checked(self, bus: BusUnderTest) -> None:
        service = bus.plan().bus
        await service.connect()
        sentences = await service.check()
        assert sentences
        assert all(sentence.says and sentence.to_do if isinstance(sentence, Danger) else sentence for sentence in sentences)
        await service.close()

    async def test_it_can_be_closed_without_having_been_connected(self, bus: BusUnderTest) -> None:
        await bus.plan().bus.close()

    async def test_what_is_wrong_is_refused_at_the_start_by_name(self, bus: BusUnderTest) -> None:
        option, base = bus.destination_option()
        common = [
            Misconfiguration({option: f"trades:{base}"}, "'trades'"),
            Misconfiguration({"include-payloads": "trade,candles"}, "'candles'"),
            Misconfiguration({"static-headers": "eventId:x"}, "'eventId'"),
        ]
        if bus.carries_key:
            common.append(Misconfiguration({bus.key_option: "{{symbl}}"}, r"\{\{symbl\}\}"))
        for wrong in (*common, *bus.misconfigurations()):
            with pytest.raises((SettingsError, TerminalDeliveryError), match=wrong.says):
                async with asyncio.timeout(60), self.publisher(bus, **wrong.keywords):
                    pass

    async def test_nothing_is_lost_or_overtaken_through(self, bus: BusUnderTest, fault: Fault) -> None:
        """Events keep coming while the fault begins, lasts and ends, twice."""
        session = Session("s-1")
        async with self.publisher(bus) as publisher:

            async def publish(batches: int) -> None:
                for _ in range(batches):
                    await publisher.publish(session.encode(sample_messages(len(session.messages) + bus.burst)[-bus.burst :]))
                    await asyncio.sleep(0.02)

            await publish(10)
            for _ in range(2):
                await asyncio.to_thread(bus.inject, fault)
                await publish(20)
                await asyncio.to_thread(bus.heal)
                await publish(10)
            (receipt,) = await publisher.close(90)
        assert receipt.is_complete
        assert receipt.published == receipt.confirmed == len(session.events) + 1
        self.check_session(self.first_arrivals(bus), session)

    async def test_a_shutdown_keeps_what_could_not_leave_because_of(self, bus: BusUnderTest, fault: Fault) -> None:
        """What is left goes to the spool, and leaves before anything new at the next start."""
        before, after = Session("s-1"), Session("s-2")
        async with self.publisher(bus) as publisher:
            await publisher.publish(before.encode(sample_messages(120)))
            await publisher.flush(30)
            await asyncio.to_thread(bus.inject, fault)
            await publisher.publish(before.encode(sample_messages(240)[120:]))
            if fault in ("gone", "hang"):
                with pytest.raises(UndeliveredError, match=f"to {bus.prefix} are unconfirmed \\(all in the spool\\)"):
                    await publisher.close(1)
                assert publisher.receipts[0].lost == 0
            await asyncio.to_thread(bus.heal)
        async with self.publisher(bus) as publisher:
            await publisher.publish(after.encode(sample_messages(60)))
            (receipt,) = await publisher.close(90)
        assert receipt.is_complete
        arrivals = self.first_arrivals(bus)
        self.check_session(arrivals, before)
        self.check_session(arrivals, after)
        sessions = [event.meta["session_id"] for _, event in arrivals if event.HasField("trade") and event.symbol == "XBTUSD"]
        assert sessions == sorted(sessions), "what was left behind comes first"

    @needs_fault("partial")
    async def test_what_is_refused_holds_up_nothing_else_and_is_kept(self, bus: BusUnderTest) -> None:
        """Of one batch some records fail: the others are confirmed, only those that failed are sent again or dead-lettered."""
        option, _ = bus.destination_option()
        refused = bus.new_destination("refused")
        session = Session("s-1")
        async with self.publisher(bus, **{option: f"trade:{refused}", "max-retries": 2}) as publisher:
            await publisher.publish(session.encode(sample_messages(120)))
            await publisher.flush(30)
            await asyncio.to_thread(bus.inject, "partial")
            await publisher.publish(session.encode(sample_messages(360)[120:]))
            others = sum(event.stream.payload_case != "trade" for event in session.events)
            async with asyncio.timeout(60):
                while publisher.receipts[0].confirmed < others + 10:
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(bus.heal)
            (receipt,) = await publisher.close(60)
        assert receipt.unconfirmed == receipt.dropped == 0
        letters = [letter for path in dead_letter_files(bus.folder / "dead-letters") for letter in read_dead_letters(path)]
        assert len(letters) == receipt.dead_lettered
        assert {letter.stream.payload_case for letter in letters} <= {"trade"}
        arrivals = [event for _, event in self.first_arrivals(bus) if not event.HasField("session_end")]
        arrived = {event.event_id for event in arrivals}
        buried = {bytes.fromhex(letter.event_id) for letter in letters}
        assert arrived | buried == {event.event_id for event in session.events}
        last: dict[tuple[str, str, str], int] = defaultdict(lambda: -1)
        for event in arrivals:
            lane = (event.exchange, event.symbol, str(event.WhichOneof("payload")))
            assert event.sequence > last[lane], f"{lane} was overtaken"
            last[lane] = event.sequence

    @needs_fault("partial")
    async def test_dead_letters_are_copied_to_their_destination_with_the_reason(self, bus: BusUnderTest) -> None:
        copied_to, refused = bus.new_destination("letters"), bus.new_destination("refused")
        letters = await self._dead_letters(bus, refused, copied_to)
        copies = {event.event_id: (record, event) for record, event in self.read(bus) if record.destination == copied_to}
        assert set(copies) == {bytes.fromhex(letter.event_id) for letter in letters}
        for letter in letters:
            record, event = copies[bytes.fromhex(letter.event_id)]
            said = {**event.meta, **record.headers}
            assert said["errorReason"] == " ".join(letter.reason.split())[:500]
            assert said["errorDestination"] == letter.destination
            assert said["errorTime"][:4] == letter.time[:4]
            assert record.value.startswith(letter.value)
            assert to_json(decode(record.value)) == to_json(decode(letter.value))

    @needs_fault("partial")
    async def test_dead_letters_whose_destination_refuses_them_too_are_in_their_files(self, bus: BusUnderTest) -> None:
        refused = bus.new_destination("refused")
        failed = metric("bus_dead_letter_copies_total", bus=bus.prefix, outcome="failed")
        letters = await self._dead_letters(bus, refused, refused)
        lost = metric("bus_dead_letter_copies_total", bus=bus.prefix, outcome="failed") - failed
        copies = [record for record, event in self.read(bus) if "errorReason" in {**event.meta, **record.headers}]
        assert lost > 0
        assert lost + len(copies) == len(letters)

    async def _dead_letters(self, bus: BusUnderTest, refused: str, copied_to: str) -> list[DeadLetter]:
        """Publishes while trades are refused; each is then where it belongs, or a letter on disk."""
        option, _ = bus.destination_option()
        letters_option = f"dead-letter-{option.removesuffix('-routing')}"
        session, before = Session("s-1"), self._copied(bus)
        keywords = {option: f"trade:{refused}", letters_option: copied_to, "max-retries": 2}
        async with self.publisher(bus, **keywords) as publisher:
            await publisher.publish(session.encode(sample_messages(60)))
            await publisher.flush(30)
            await asyncio.to_thread(bus.inject, "partial")
            await publisher.publish(session.encode(sample_messages(180)[60:]))
            async with asyncio.timeout(60):
                while not publisher.receipts[0].dead_lettered or self._copied(bus) == before:
                    # A record is given up where others pass meanwhile.
                    await publisher.publish(session.encode(sample_messages(len(session.messages) + 24)[-24:]))
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(bus.heal)
            (receipt,) = await publisher.close(60)
        letters = [letter for path in dead_letter_files(bus.folder / "dead-letters") for letter in read_dead_letters(path)]
        assert len(letters) == receipt.dead_lettered > 0
        assert receipt.unconfirmed == receipt.dropped == 0
        arrived = {event.event_id for record, event in self.read(bus) if not event.HasField("session_end")}
        assert arrived | {bytes.fromhex(letter.event_id) for letter in letters} == {event.event_id for event in session.events}
        return letters

    def _copied(self, bus: BusUnderTest) -> float:
        """How many copies were sent, or given up, by all tests."""
        return sum(metric("bus_dead_letter_copies_total", bus=bus.prefix, outcome=how) for how in ("sent", "failed"))

    @needs_fault("gone")
    async def test_a_service_that_comes_later_is_waited_for(self, bus: BusUnderTest) -> None:
        await asyncio.to_thread(bus.inject, "gone")
        session = Session("s-1")
        publisher = Publisher([bus.plan()], spool_dir=bus.folder / "spool")
        await publisher.start(connect_timeout_s=2)
        await publisher.publish(session.encode(sample_messages(120)))
        await asyncio.sleep(0.5)
        (health,) = publisher.health()
        assert health.state in ("retrying", "connecting")
        assert health.queue_events == len(session.events)
        await asyncio.to_thread(bus.heal)
        (receipt,) = await publisher.close(60)
        assert receipt.is_complete
        self.check_session(self.first_arrivals(bus), session)
