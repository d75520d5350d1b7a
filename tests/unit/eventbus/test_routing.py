"""Templates, routing maps, allow lists and headers to routes."""

from __future__ import annotations

import pytest

from tardis_machine.bronze.event import Event
from tardis_machine.bronze.payload_case import PAYLOAD_CASES
from tardis_machine.errors import SettingsError
from tardis_machine.eventbus.contract import Record
from tardis_machine.eventbus.routing import Router, Routing, Template
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tests.unit.eventbus.events import make_events, make_stream

STREAM = make_stream("XBTUSD", "book_change", session="s1", exchange="bitmex", request_id="r1")


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("plain", "plain"),
        ("{{exchange}}|{{symbol}}|{{payloadCase}}", "bitmex|XBTUSD|book_change"),
        ("a{{ dataType }}b{{origin}}", "abook_changebreplay"),
        ("{{source}}", "tardis-machine/test"),
        ("{{meta.request_id}}-{{meta.nothing}}-", "r1--"),
        ("{single} {{exchange}}", "{single} bitmex"),
    ],
)
def test_a_template_is_filled_in(text: str, rendered: str) -> None:
    assert Template(text).render(STREAM) == rendered


@pytest.mark.parametrize("text", ["{{symbl}}", "{{meta.}}", "{{exchange", "exchange}}", "{{}}", "  "])
def test_a_template_that_is_wrong_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Template(text)


def test_escaping_concerns_only_what_is_filled_in() -> None:
    routing = Routing(
        destination="md", destination_template="md.{{exchange}}.{{symbol}}", escape=lambda text: text.lower() or "_"
    )
    router = Router("nats", routing)
    assert router.route(STREAM).destination == "md.bitmex.xbtusd"
    assert router.route(make_stream("", "disconnect")).destination == "md.bitmex._"


def test_routing_beats_the_template_which_beats_the_base() -> None:
    routing = Routing(
        destination="base", destination_template="{{exchange}}.{{symbol}}", routing={"bookChange": "books", "trade": "t"}
    )
    router = Router("redis", routing)
    assert router.route(STREAM).destination == "books"
    assert router.route(make_stream("ETHUSD", "quote")).destination == "bitmex.ETHUSD"
    assert Router("redis", Routing(destination="base")).route(STREAM).destination == "base"


def test_a_session_end_goes_to_the_base_destination_unless_it_is_routed() -> None:
    end = make_stream("", "session_end", exchange="")
    template = "{{exchange}}.{{symbol}}"
    assert Router("redis", Routing(destination="base", destination_template=template)).route(end).destination == "base"
    routed = Routing(destination="base", destination_template=template, routing={"session_end": "ends"})
    assert Router("redis", routed).route(end).destination == "ends"


def test_a_route_is_computed_once_for_a_stream_and_its_equals() -> None:
    router = Router("kafka", Routing(destination="base"))
    route = router.route(STREAM)
    assert router.route(STREAM) is route
    assert router.route(make_stream("XBTUSD", "book_change", session="s1", exchange="bitmex", request_id="r1")) is route
    assert router.route(make_stream("XBTUSD", "book_change", session="s2")) is not route
    assert route.lane == ("base", "bitmex|XBTUSD|book_change")


def test_headers_come_in_their_order() -> None:
    routing = Routing(destination="base", static_headers={"desk": "delta", "tm-origin": "mine"}, meta_headers_prefix="tm-")
    stream = make_stream("XBTUSD", "trade", origin="theirs", request_id="r1")
    (event,) = make_events(stream, 1)
    record = Record(Router("kafka", routing).route(stream), event)
    assert record.headers == [
        ("payloadCase", b"trade"),
        ("dataType", b"trade"),
        ("eventId", event.event_id.hex().encode()),
        ("desk", b"delta"),
        ("tm-origin", b"mine"),
        ("tm-request_id", b"r1"),
        ("tm-session_id", b"s1"),
    ]
    assert record.size_bytes == len(event.value) + len(record.key) + sum(len(name) + len(value) for name, value in record.headers)
    assert record.deduplication_id == f"s1-{event.event_id.hex()}"
    assert record.value is event.value


def test_headers_can_be_turned_off() -> None:
    (event,) = make_events(STREAM, 1)
    record = Record(
        Router("kafka", Routing(destination="base", static_headers={"desk": "delta"}, headers=False)).route(STREAM), event
    )
    assert record.headers == []
    assert record.size_bytes == len(event.value) + len(record.key)


def test_where_a_bus_has_no_headers_the_static_ones_are_in_the_meta_of_the_event() -> None:
    value = NormalizedEvent(exchange="bitmex", meta={"request_id": "r1"}).SerializeToString()
    event = Event(STREAM, bytes(16), value, 0, 0)
    routing = Routing(destination="base", static_headers={"desk": "delta", "né": "1"})
    record = Record(Router("kinesis", routing, carries_headers=False).route(STREAM), event)
    assert record.headers == []
    assert dict(NormalizedEvent.FromString(record.value).meta) == {"request_id": "r1", "desk": "delta", "né": "1"}
    assert record.size_bytes == len(record.value) + len(record.key)


def test_the_allow_list() -> None:
    router = Router("kafka", Routing(destination="base", include_payloads=["bookChange", "trade"]))
    assert router.include == {"book_change", "trade", "session_end"}, "what proves that nothing is missing"
    assert router.admits("trade")
    assert not router.admits("quote")
    assert Router("kafka", Routing(destination="base")).admits("quote")
    assert Router("kafka", Routing(destination="base", include_payloads=["trade", "-sessionEnd"])).include == {"trade"}
    all_but_ends = Router("kafka", Routing(destination="base", include_payloads=["-session_end"])).include
    assert all_but_ends == frozenset(PAYLOAD_CASES) - {"session_end"}
    with pytest.raises(SettingsError, match="'-trade' can't be left out by name, only -session_end can"):
        Router("kafka", Routing(destination="base", include_payloads=["-trade"]))


def test_all_problems_come_together() -> None:
    routing = Routing(
        destination="base",
        routing={"trades": "x"},
        include_payloads=["candle"],
        key_template="{{sym}}",
        destination_template="{{x}}",
        static_headers={"PayloadCase": "x"},
    )
    with pytest.raises(SettingsError) as caught:
        Router("kafka", routing)
    assert len(caught.value.problems) == 5
    assert all("of the kafka bus is wrong: " in problem for problem in caught.value.problems)
    assert "trade, book_change" in caught.value.problems[0]


def test_options_as_settings_give_them() -> None:
    options = {
        "routing": {"trade": "t"},
        "include_payloads": None,
        "key_template": "{{symbol}}",
        "static_headers": None,
        "topic": "x",
    }
    routing = Routing.from_options(options, "x", headers=False)
    assert routing == Routing(destination="x", routing={"trade": "t"}, key_template="{{symbol}}", headers=False)


def test_headers_from_templates_stand_behind_static_ones_and_have_names_of_their_own() -> None:
    routing = Routing(destination="d", static_headers={"desk": "x"}, header_templates={"where": "{{exchange}}-{{symbol}}"})
    route = Router("sqs", routing).route(make_stream("A"))
    assert route.headers_after == (("desk", b"x"), ("where", b"bitmex-A"))
    for wrong, says in (({"desk": "y"}, "'desk' is a static header too"), ({"eventid": "y"}, "'eventid' can't be set")):
        with pytest.raises(SettingsError, match=f"the header templates of the sqs bus is wrong: {says}"):
            Router("sqs", Routing(destination="d", static_headers={"desk": "x"}, header_templates=wrong))
