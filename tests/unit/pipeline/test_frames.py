"""Finished bytes: lines and frames as clients read them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tardis_machine.exchanges import LevelRows
from tardis_machine.messages import (
    UNSET,
    BookChange,
    BookLevel,
    BookSnapshot,
    Disconnect,
    JsNumber,
    Liquidation,
    Trade,
    js_number,
    to_json,
)
from tardis_machine.pipeline.frames import to_json_frames, to_raw_frames, to_raw_lines, to_text_frames
from tardis_machine.pipeline.marks import MARK
from tests.compiled_or_not import import_as_python, import_compiled

(compiled,), (python,) = (load("tardis_machine.pipeline.frames") for load in (import_compiled, import_as_python))

AT = b"2020-01-01T00:00:01.0020039Z"


def read_frames(data: bytes) -> list[bytes]:
    """An independent reading of RFC 6455's framing."""
    payloads = []
    while data:
        assert data[0] == 0x81
        size, head = data[1], 2
        if size == 126:
            size, head = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, head = int.from_bytes(data[2:10], "big"), 10
        payloads.append(data[head : head + size])
        data = data[head + size :]
    return payloads


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 100_000])
def test_a_frame_of_any_size_reads_back(size: int) -> None:
    assert read_frames(to_text_frames([b"x" * size] * 2)) == [b"x" * size] * 2


def test_raw_lines_wrap_the_message_untouched_and_show_disconnects_as_empty_lines() -> None:
    lines = [AT + b' {"a": 1.0}', b"", AT + b" [2]"]
    first, second, third = to_raw_lines(lines).split(b"\n")[:-1]
    assert first == b'{"localTimestamp":"2020-01-01T00:00:01.0020039Z","message":{"a": 1.0}}'
    assert second == b""
    assert json.loads(third)["message"] == [2]
    assert to_raw_lines(lines[:1]) == first + b"\n"


def test_raw_frames_are_the_messages_alone() -> None:
    assert read_frames(to_raw_frames([AT + b' {"a": 1.0}', b"", AT + b" [2]"])) == [b'{"a": 1.0}', b"[2]"]


def test_normalized_frames_are_the_messages_json() -> None:
    messages = [Disconnect("bitmex", "2020-01-01T00:00:01.002Z"), Disconnect("x", "2020-01-01T00:00:01.002Z", ["y" * 200])]
    assert read_frames(to_json_frames(messages)) == [to_json(message) for message in messages]


def test_the_compiled_ones_are_in_use() -> None:
    for name in ("to_json_frames", "to_json_lines", "to_marked_messages", "to_raw_frames", "to_raw_lines"):
        assert getattr(compiled, name).__module__ == "tardis_machine.pipeline.frames_compiled"
    assert python.to_json_frames.__module__ == "tardis_machine.pipeline.frames"
    assert (compiled.READS_ROWS, python.READS_ROWS) == (True, False)


texts = st.one_of(
    st.sampled_from(["XBTUSD", "", "é", 'a"b', "a\\b", "a\x01", "12345678é", "1234567\x7f", "x" * 300]), st.text(max_size=40)
)
numbers = st.one_of(
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False).map(js_number),
    st.decimals(-1_000_000, 1_000_000, places=8).map(float).map(js_number),
    st.decimals(-1_000_000, 1_000_000, places=2).map(float).map(js_number),
    st.sampled_from(
        [0.1, 1e-5, 1.1e-5, 9.9e-6, 1e-7, -0.5, 999999.99999999, 1e6 + 0.1, 1e15, JsNumber(1e-6), float("nan"), 2**63]
    ),
)
odd = st.sampled_from([None, UNSET, "12", True, 5.0])
fields = st.one_of(texts, numbers, odd)
levels = st.lists(st.tuples(st.one_of(numbers, odd), st.one_of(numbers, odd)).map(lambda pair: BookLevel(*pair)), max_size=3)
trades = st.tuples(texts, texts, fields, fields, fields, fields, fields, texts)
changes = st.tuples(texts, texts, st.one_of(st.booleans(), odd), levels, levels, fields, texts)


class ToldLevels:
    """Levels that know their JSON, as those of a snapshot may."""

    def __init__(self, levels: list[BookLevel]) -> None:
        self.printed = b"[" + b",".join(map(to_json, levels)) + b"]"  # type: ignore[arg-type]


sides = st.one_of(levels, levels.map(ToldLevels))
snapshots = st.tuples(texts, texts, texts, numbers, numbers, fields, sides, sides, fields, texts)
messages = st.one_of(
    trades.map(lambda values: Trade(*values)),
    trades.map(lambda values: Liquidation(*values)),
    changes.map(lambda values: BookChange(*values)),
    snapshots.map(lambda values: BookSnapshot(*values)),
)


@given(st.lists(messages, max_size=4))
@example([Trade("a" * size, "b", "1", 1, 0.1, "buy", "t", "t") for size in (1, 8, 256, 257, 70_000)])
@example([BookSnapshot("a", "b", "c", 1, 0, UNSET, ToldLevels([BookLevel(1, 2)] * 3_000), [], "t", "t")])
@example([BookChange("a", "b", False, [BookLevel(0.1, 1e-7)] * size, [], None, "t") for size in (0, 1, 4, 3_000)])
def test_messages_are_written_the_same(some: list[Any]) -> None:
    assert compiled.to_json_lines(some) == python.to_json_lines(some)
    assert compiled.to_json_frames(some) == python.to_json_frames(some)
    assert read_frames(compiled.to_json_frames(some)) == [to_json(message) for message in some]


clocks = st.one_of(
    st.integers(0, 3_000_000).map(lambda micros: f"2020-02-29T23:59:5{micros // 1_000_000}.{micros % 1_000_000:06d}Z"),
    st.sampled_from(["2020-02-30T00:00:00.000000Z", "2020-01-01T00:00:00.001Z", "2020-01-01T00:00:00.00000xZ", "é" * 27]),
)


@given(st.lists(st.tuples(clocks, st.integers(1, 3)), max_size=6))
def test_messages_are_marked_with_their_instants(some: list[tuple[str, int]]) -> None:
    messages = [
        message
        for clock, copies in some
        for message in (
            BookChange("a", "b", False, [], [], "t", clock),
            Disconnect("b", clock),
            Trade("a", "b", "1", 1, 1, "buy", "t", clock),
        )[:copies]
    ]
    for form in ("lines", "frames", "none"):
        data, marks = compiled.to_marked_messages(messages, form)
        assert (data, marks) == python.to_marked_messages(messages, form)
        told = list(MARK.iter_unpack(marks))
        assert (sum(size for _, size, _ in told), sum(count for *_, count in told)) == (len(data), len(messages))


number_texts = st.one_of(
    st.from_regex(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?", fullmatch=True),
    st.sampled_from(["0.000001", "0.00000099", "0.0000001", "-0", "-0.0", "123456789012345678901234567890"]),
)
cells = st.tuples(number_texts, st.booleans()).map(lambda cell: f'"{cell[0]}"' if cell[1] else cell[0])
heads = st.sampled_from(['"buy"', '"sell"', '"buyer"', "1"])


@given(st.lists(st.tuples(heads, cells, cells), min_size=1, max_size=5), st.booleans())
@example([('"buy"', "1", "2")] * 5_000, False)
@example([('"buy"', '"0.0000001"', "1")] * 5_000, True)
def test_rows_are_written_as_the_levels_that_they_are(rows: list[tuple[str, str, str]], quoted: bool) -> None:
    three = ("[" + ",".join(f"[{','.join(row)}]" for row in rows) + "]").encode()
    two = ("[" + ",".join(f"[{','.join(row[1:])}]" for row in rows) + "]").encode()
    for bids in (
        LevelRows(two),
        LevelRows(two.replace(b'"', b""), is_as_sent=True),
        LevelRows(three, 1),
        LevelRows(re.sub(rb'"(-?[0-9.]+)"', rb"\1", three), 1, is_as_sent=True, removed_by="buy"),
        LevelRows(three, 1, side="buy"),
    ):
        # What is not plain in its symbol is left to the encoder whole.
        symbol = '"' if quoted else "XBTUSD"
        left, read = (BookChange(symbol, "bitmex", True, side, [], None, "t") for side in (bids, list(bids)))
        assert compiled.to_json_lines([left, left]) == python.to_json_lines([read, read])


raw = st.one_of(
    st.binary(max_size=40), st.builds(lambda message: AT + b" " + message, st.binary(max_size=200)), st.just(b""), st.just(AT)
)


@given(st.lists(raw, max_size=4))
@example([AT + b" " + b"x" * size for size in (0, 1, 125, 126, 65_535, 65_536)])
@example([AT[:20] + b" " + AT[20:] + b" {}"])
def test_recorded_lines_are_written_the_same(lines: list[bytes]) -> None:
    for name in ("to_raw_frames", "to_raw_lines"):
        for some in (lines, tuple(lines), [bytearray(line) for line in lines]):
            assert getattr(compiled, name)(some) == getattr(python, name)(some)
