"""Compiled or not, envelopes are the same: `envelope_compiled` against `envelope.to_envelopes`, which says what is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.wire import delimited, tag, varint
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as schema
from tardis_machine.lakehouse.bronze import to_events
from tardis_machine.lakehouse.decoding import PAYLOAD_CASES, REASON, decode_each
from tardis_machine.lakehouse.sources import contract, records
from tardis_machine.lakehouse.storage import Folder
from tardis_machine.lakehouse.table_files import read_reports, write_task
from tardis_machine.lakehouse.tables import EVENTS, QUARANTINE
from tardis_machine.messages import Message, to_timestamp
from tests.compiled_or_not import import_as_python, import_compiled
from tests.strategies import MESSAGES_BY_TYPE, messages

(envelope,), (as_python,) = (load("tardis_machine.lakehouse.envelope") for load in (import_compiled, import_as_python))

LOCAL = to_timestamp(1_580_515_200_000_007)
NOTHING = b"\xff\xff"


def encoder() -> BronzeEncoder:
    meta = {"request_id": "r", "route": "/replay-normalized", "zone": ""}
    return BronzeEncoder(session_id="s-1", origin="replay", meta=meta, clock_us=lambda: 1_700_000_000_123_456)


def event(**fields: Any) -> schema.NormalizedEvent:
    plain = {"source": "t", "exchange": "bitmex", "symbol": "XBTUSD", "origin": 2, "event_id": b"i" * 16, "sequence": 3}
    made = schema.NormalizedEvent(**{**plain, "meta": {"session_id": "s1", "a": "b"}, **fields})
    made.local_ts.FromMicroseconds(1_580_515_200_000_007)
    made.ingest_ts.FromMicroseconds(1_580_515_200_500_000)
    return made


def trade(**fields: Any) -> bytes:
    return event(trade=schema.Trade(), **fields).SerializeToString(deterministic=True)


def events_of_all_cases() -> list[schema.NormalizedEvent]:
    made = [event() for _ in PAYLOAD_CASES]
    for one, case in zip(made, PAYLOAD_CASES, strict=True):
        getattr(one, case).SetInParent()
    made[0].trade.price_str = "1.5"
    made[-1].ClearField("symbol")
    made[-1].ClearField("exchange")
    return made


def array(values: Iterable[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary())


def read_plain(values: pa.Array) -> list[dict[str, Any]] | None:
    """What the compiled reader gives; None where it leaves them to the definition."""
    columns = envelope._read_usual(values)
    if columns is None:
        return None
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns[:-1], [field.name for field in envelope.ENVELOPE]).to_pylist()
    return rows


def define(values: pa.Array) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = envelope.to_envelopes(values).to_pylist()
    return rows


@pytest.mark.parametrize("case", MESSAGES_BY_TYPE)
@given(data=st.data())
def test_what_is_published_is_plain(case: str, data: st.DataObject) -> None:
    drawn: list[Message] = data.draw(st.lists(MESSAGES_BY_TYPE[case], min_size=1, max_size=4))
    plain = {"exchange": "bitmex", "symbol": "XBTUSD", "local_timestamp": LOCAL}
    kept = [
        msgspec.structs.replace(message, **{name: plain[name] for name in plain if name in message.__struct_fields__})
        for message in drawn
    ]
    values = array(made.value for made in encoder().encode(kept))
    rows = read_plain(values)
    assert rows == define(values)
    assert {row["payload_case"] for row in rows} == {case}


def test_the_end_of_a_session_is_plain() -> None:
    end = schema.SessionEnd(complete=True)
    end.ended_ts.FromMicroseconds(1_580_515_200_000_007)
    values = array(made.value for made in encoder().encode_session_end(end))
    rows = read_plain(values)
    assert rows == define(values)
    (row,) = rows
    assert (row["exchange"], row["symbol"], row["payload_case"]) == (None, None, "session_end")


@given(st.lists(messages(), min_size=1, max_size=8))
def test_any_messages(drawn: list[Message]) -> None:
    for made in encoder().encode(drawn):
        rows = read_plain(array([made.value]))
        assert rows is None or rows == define(array([made.value]))


def framed(value: bytes, path: bytes = b"\0") -> bytes:
    """In the frame of a schema registry, with the path to its message."""
    return b"\0\0\0\0\x2a" + path + value


def test_parts_of_arrays_frames_and_ids_of_any_length_are_read() -> None:
    ids = [b"", b"i", b"i" * 16, b"\xff" * 700]
    made = [trade(event_id=one) for one in ids]
    values = array([None, NOTHING, *made, *map(framed, made), NOTHING]).slice(2, 8)
    rows = read_plain(values)
    assert rows == define(values)
    assert [row["event_id"] for row in rows] == ids * 2


NOT_PLAIN: dict[str, bytes | None] = {
    "no value": None,
    "an empty value": b"",
    "a zero": b"\0",
    "another path in its frame": framed(trade(), path=b"\1"),
    "two frames": framed(framed(trade())),
    "no payload": event().SerializeToString(deterministic=True),
    "cut off": trade()[:-1],
    "two payloads": trade() + event(quote=schema.Quote()).SerializeToString(deterministic=True),
    "no exchange": trade(exchange=None),
    "an exchange that is not ASCII": trade(exchange="\u00e9"),
    "a large sequence": trade(sequence=1 << 63),
    "an unknown origin": trade(origin=4),
    "no id": trade(event_id=None),
    "no session": trade(meta={}),
    "a session that is not ASCII": trade(meta={"session_id": "\u00e9"}),
}


@pytest.mark.parametrize("value", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_all_else_is_left_to_the_definition(value: bytes | None) -> None:
    plain = trade()
    assert read_plain(array([plain])) is not None
    assert read_plain(array([plain, value, plain])) is None
    assert read_plain(pa.array([plain], pa.large_binary())) is None


def split_fields(value: bytes) -> list[bytes]:
    """The fields of a message that has delimited ones and varints only."""

    def skip_varint(at: int) -> int:
        while value[at] > 127:
            at += 1
        return at + 1

    fields, at = [], 0
    while at < len(value):
        end = length_at = skip_varint(at)
        end = skip_varint(end)
        if value[at] & 7 == 2:
            length = sum((byte & 127) << 7 * place for place, byte in enumerate(value[length_at:end]))
            end += length
        fields.append(value[at:end])
        at = end
    return fields


def odd_varint(random: Random) -> bytes:
    number = random.choice([0, 1, 2, 3, 4, 127, 128, 999_999_999, 10**9, 253_402_300_799, 253_402_300_800, 1 << 31, 1 << 32])
    if random.random() < 0.3:
        number = random.choice(
            [(1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 70) - 1, random.getrandbits(random.randrange(1, 66))]
        )
    written = varint(number)
    # Longer than it has to be.
    return written[:-1] + bytes([written[-1] | 128]) + b"\x80" * random.randrange(3) + b"\0" if random.random() < 0.2 else written


def odd_text(random: Random) -> bytes:
    texts = [b"", b"a", b"session_id", b"bitmex", "\u00e9".encode(), b"\xff", b"\xc3", b"\xed\xa0\x80", b"a\0b", b"x" * 200]
    return random.choice([*texts, random.randbytes(5)])


def odd_entries(random: Random) -> bytes:
    key, value = tag(1) + delimited(odd_text(random)), tag(2) + delimited(odd_text(random))
    known = tag(1) + delimited(b"session_id")
    entries = [key + value, known + value, value + key, key, value, known, b"", key + key + value, key + value + b"\x18\1"]
    return random.choice(entries)


def odd_instant(random: Random) -> bytes:
    seconds, nanoseconds = tag(1, is_varint=True) + odd_varint(random), tag(2, is_varint=True) + odd_varint(random)
    return random.choice(
        [seconds + nanoseconds, seconds, nanoseconds, nanoseconds + seconds, seconds * 2, b"", b"\x1a\0", b"\x08"]
    )


def odd_field(random: Random) -> bytes:
    number = random.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 21, 100, 104, 110, 150, 151, 152, 153, 2047, 2048, 1 << 28])
    wire_type = random.randrange(8) if random.random() < 0.2 else 0 if number in (6, 8, 21) else 2
    body = b""
    if wire_type == 2:
        bodies = {4: odd_instant, 5: odd_instant, 10: odd_entries}
        body = delimited(bodies.get(number, odd_text)(random))
    elif wire_type == 0:
        body = odd_varint(random)
    elif wire_type in (1, 5):
        body = random.randbytes(8 if wire_type == 1 else 4)
    written = varint(number << 3 | wire_type)
    if random.random() < 0.05:
        written = written[:-1] + bytes([written[-1] | 128]) + b"\0"
    return written + body


def mutate(value: bytes, random: Random) -> bytes:
    fields = split_fields(value)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        way, place = random.randrange(8), random.randrange(len(fields))
        if way == 0 and len(fields) > 1:
            del fields[place]
        elif way == 1:
            fields.insert(random.randrange(len(fields) + 1), fields[place])
        elif way == 2:
            random.shuffle(fields)
        elif way == 3:
            fields.insert(random.randrange(len(fields) + 1), odd_field(random))
        elif way in (4, 5):
            # One in the place of its like, where there is one.
            odd = odd_field(random)
            like = [other for other, field in enumerate(fields) if field[:1] == odd[:1]]
            fields[random.choice(like or [place])] = odd
        elif way == 6:
            changed = bytearray(fields[place])
            changed[random.randrange(len(changed))] ^= random.choice([1, 2, 4, 8, 128, random.randrange(256)])
            fields[place] = bytes(changed)
        else:
            fields[place] = fields[place][: random.randrange(1, len(fields[place]) + 1)]
    value = b"".join(fields)
    return framed(value, random.choice([b"\0", b"\0", b"\1"])) if random.random() < 0.03 else value


def check_mutations(seed: int, count: int) -> int:
    """How many of so many mutated events the compiled reader took; the definition takes them too, to the same rows."""
    random = Random(seed)
    seeds = [made.SerializeToString(deterministic=True) for made in events_of_all_cases()]
    mutated = [mutate(random.choice(seeds), random) for _ in range(count)]
    values = array(mutated)
    rows = [(place, read_plain(values.slice(place, 1))) for place in range(count)]
    taken = array(mutated[place] for place, row in rows if row)
    defined = define(taken)
    assert [row[0] for _, row in rows if row] == defined
    # What it remembers of the values before does no harm, be they the same or others.
    assert read_plain(taken) == defined
    twice = [place for place in range(len(taken)) for _ in range(2)]
    assert read_plain(taken.take(twice)) == [defined[place] for place in twice]
    return len(taken)


def test_odd_values_are_read_as_the_definition_reads_them_or_not_at_all() -> None:
    count = 20_000
    assert 0.2 * count < check_mutations(7, count) < 0.8 * count


def check_same(values: pa.Array) -> None:
    found = envelope.decode_envelopes(values)
    assert found.to_pylist() == decode_each(values, envelope.to_envelopes, envelope.ENVELOPE).to_pylist()
    assert [field.name for field in found.type] == [*(field.name for field in envelope.ENVELOPE), REASON]
    assert [field.type for field in found.type][:-1] == [
        pa.dictionary(pa.int32(), field.type) if field.type == pa.string() else field.type for field in envelope.ENVELOPE
    ]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_columns_have_the_same_types_whoever_reads_them(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(envelope, "read_envelopes", as_python.read_envelopes)
    plain = [made.SerializeToString() for made in events_of_all_cases()]
    assert (read_plain(array(plain)) is not None) is is_compiled
    for values in ([], [b""], [NOTHING], plain, [*plain, NOTHING, *plain], [None, *plain]):
        check_same(array(values))
    check_same(array(plain).slice(3, 0))


def test_batches_of_both_readers_lie_in_one_file(tmp_path: Path) -> None:
    plain, odd = trade(), trade(symbol="\u00e9")
    end = events_of_all_cases()[-1].SerializeToString()

    def to_batch(values: Sequence[bytes]) -> pa.RecordBatch:
        columns = {field.name: pa.nulls(len(values), field.type) for field in records.SCHEMA}
        return pa.RecordBatch.from_pydict({**columns, "value": array(values)})

    folders = {table.name: str(tmp_path / table.name) for table in (EVENTS, QUARANTINE)}
    batches = [to_batch([plain] * 3), to_batch([plain, NOTHING, odd]), to_batch([plain]), to_batch([end])]
    to_rows = partial(to_events, "file", contract.as_they_are)
    task = write_task(to_rows, Folder(str(tmp_path)), folders, batches)
    files = read_reports(report for batch in task for report in batch.to_pylist())
    tables = [pq.read_table(Path(folders[file.table], file.path), partitioning=None) for file in files]
    assert [(file.table, file.partition.get("exchange")) for file in files] == [
        (EVENTS.name, "bitmex"),
        (QUARANTINE.name, None),
        (EVENTS.name, None),
    ]
    assert tables[0].column("symbol").to_pylist() == ["XBTUSD"] * 4 + ["\u00e9", "XBTUSD"]
    assert tables[0].column("symbol").type == pa.string()
    assert tables[1].column("value").to_pylist() == [NOTHING]
    assert tables[2].column("payload_case").to_pylist() == ["session_end"]
