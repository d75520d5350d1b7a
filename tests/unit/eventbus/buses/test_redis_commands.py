from __future__ import annotations

import gc
from typing import Any

import hiredis
import pytest

from tardis_machine.errors import TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus.buses.redis_streams.commands import (
    NO_TRIM,
    ErrorReply,
    Packer,
    Redirect,
    pack_command,
    refusals_in,
    to_age_trim,
    to_error,
    to_length_trim,
    to_shipments,
)
from tardis_machine.eventbus.contract import Record
from tardis_machine.eventbus.routing import Router, Routing
from tests.unit.eventbus.events import make_events, make_stream

ROUTING = Routing(
    destination="events", destination_template="é:{{symbol}}", static_headers={"desk": "δ"}, meta_headers_prefix="m-"
)


def make_records(routing: Routing, *symbols: str, count: int = 3) -> list[Record]:
    router = Router("redis", routing)
    by_symbol = [make_events(make_stream(symbol), count, size=20) for symbol in symbols]
    return [Record(router.route(event.stream), event) for turn in zip(*by_symbol, strict=True) for event in turn]


def unpack(packed: bytes) -> list[list[bytes]]:
    """By hiredis: a command looks as an array of strings does."""
    reader = hiredis.Reader()
    reader.feed(packed)
    found = []
    while (command := reader.gets()) is not False:
        found.append(command)
    return found


@pytest.mark.parametrize("trim", [[], [b"MAXLEN", b"~", b"1000"], [b"MINID", b"~", b"40000"]])
def test_an_entry_has_value_key_and_each_header_by_its_name(trim: list[bytes]) -> None:
    records = make_records(ROUTING, "A", "B")
    asked = {b"MAXLEN": to_length_trim(1000), b"MINID": to_age_trim(60, now_s=100)}[trim[0]] if trim else NO_TRIM
    packer = Packer()
    for _ in range(2):  # the second time with what was kept
        commands = unpack(packer.pack(records, asked))
        assert len(commands) == len(records)
        for command, record in zip(commands, records, strict=True):
            fields = [b"value", record.value, b"key", record.key.encode()]
            for name, value in record.headers:
                fields += [name.encode(), value]
            assert command == [b"XADD", record.destination.encode(), *trim, b"*", *fields]


def test_what_is_kept_of_a_route_goes_with_it() -> None:
    packer = Packer()
    packer.pack(make_records(ROUTING, "A"), NO_TRIM)
    gc.collect()
    assert not packer._by_route


def test_an_age_longer_than_time_itself_keeps_all() -> None:
    assert unpack(pack_command("X") + b"*3\r\n" + to_age_trim(10, now_s=1).packed)[1] == [b"MINID", b"~", b"0"]


def test_a_batch_becomes_a_transaction_for_each_stream() -> None:
    records = make_records(ROUTING, "A", "B", count=400)
    single = make_records(ROUTING, "C", count=1)
    batch = [*records[:500], *single, *records[500:]]
    shipments = to_shipments(batch)
    assert [shipment.stream for shipment in shipments] == ["é:A", "é:B", "é:C"]
    assert sorted(index for shipment in shipments for index in shipment.indexes) == list(range(len(batch)))
    for shipment in shipments:
        assert [batch[index] for index in shipment.indexes] == list(shipment.records)
        assert {record.destination for record in shipment.records} == {shipment.stream}
        commands = unpack(b"".join(shipment.packed(Packer(), NO_TRIM)))
        assert len(commands) == shipment.replies
        if len(shipment) > 1:
            assert (commands.pop(0), commands.pop()) == ([b"MULTI"], [b"EXEC"])
        assert [command[4] for command in commands] == [record.value for record in shipment.records]
    (whole,) = to_shipments(records[::2])
    assert (whole.stream, list(whole.indexes)) == ("é:A", list(range(400)))


OOM, WRONG, ABORT = "OOM command not allowed", "WRONGTYPE Operation", "EXECABORT Transaction discarded because of"


@pytest.mark.parametrize(
    ("replies", "refused"),
    [
        ([b"1-0"], {}),
        ([ErrorReply(OOM)], {0: OOM}),
        ([b"OK", b"QUEUED", b"QUEUED", [b"1-0", b"1-1"]], {}),
        # Queued, and refused one by one when carried out.
        ([b"OK", b"QUEUED", b"QUEUED", [b"1-0", ErrorReply(WRONG)]], {1: WRONG}),
        # The first word against a command that was to be queued is the reason for all.
        ([b"OK", b"QUEUED", ErrorReply(OOM), ErrorReply(f"{ABORT} previous errors.")], {0: OOM, 1: OOM}),
        # The transaction as a whole was refused.
        ([b"OK", b"QUEUED", b"QUEUED", ErrorReply(f"{ABORT}: {OOM}")], {0: OOM, 1: OOM}),
        ([b"OK", b"QUEUED", b"QUEUED", ErrorReply("MOVED 1 h:1")], {0: "MOVED 1 h:1", 1: "MOVED 1 h:1"}),
        # There never was a transaction: what was taken is stored.
        ([ErrorReply("NOPERM multi"), b"1-0", ErrorReply(OOM), ErrorReply("ERR EXEC without MULTI")], {1: OOM}),
    ],
)
def test_what_the_replies_say_of_each_record(replies: list[Any], refused: dict[int, str]) -> None:
    assert refusals_in(replies) == refused


@pytest.mark.parametrize(
    ("reply", "address", "is_lasting"),
    [
        ("MOVED 3999 10.0.0.1:6381", ("10.0.0.1", 6381), True),
        ("ASK 3999 node-2.example:6381", ("node-2.example", 6381), False),
        ("MOVED 3999 :6381", ("asked", 6381), True),
        ("MOVED 3999 2001:db8::1:6381", ("2001:db8::1", 6381), True),
    ],
)
def test_redirects(reply: str, address: tuple[str, int], is_lasting: bool) -> None:
    assert Redirect.parse(reply, "asked") == (address, is_lasting)
    assert Redirect.parse("ERR MOVED", "asked") is None


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", TransientDeliveryError),
        ("READONLY You can't write against a read only replica.", TransientDeliveryError),
        ("LOADING Redis is loading the dataset in memory", TransientDeliveryError),
        ("MOVED 1 h:1", TransientDeliveryError),
        ("CLUSTERDOWN Hash slot not served", TransientDeliveryError),
        ("NOAUTH Authentication required.", TransientDeliveryError),
        ("ERR something that nobody has seen before", TransientDeliveryError),
        ("NOPERM this user has no permissions", TerminalDeliveryError),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", TerminalDeliveryError),
        ("ERR Elements are too large to be stored", TerminalDeliveryError),
        ("ERR unknown command 'XADD'", TerminalDeliveryError),
    ],
)
def test_every_refusal_is_transient_or_terminal(reply: str, kind: type[Exception]) -> None:
    error = to_error("trades", reply)
    assert type(error) is kind
    assert str(error).startswith("the Redis stream 'trades' did not take events, as ")
    assert str(error).endswith(reply)
