"""Compiled or not, recorded lines are parsed the same; what runs as Python says what is right."""

from __future__ import annotations

import gc
import random
import sys
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tardis_machine.exchanges._rows import LevelRows, Rows, is_array
from tardis_machine.messages import BookLevel
from tardis_machine.recorded_line import Lines
from tests.compiled_or_not import import_as_python, import_compiled

(compiled,), (python,) = (load("tardis_machine.exchanges._decoding") for load in (import_compiled, import_as_python))

# Names and texts that come again, as they do, and others.
texts = st.one_of(
    st.sampled_from(["a", "ab", "price", "a-name-of-seventeen", "x" * 24, "x" * 25, "é", 'a"b', ""]), st.text(max_size=30)
)
numbers = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-1_000_000, 1_000_000, places=4).map(float),
)
levels = st.lists(
    st.lists(st.one_of(numbers, st.from_regex(r"-?[0-9]{1,9}\.[0-9]{1,9}", fullmatch=True)), max_size=4), max_size=4
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts, levels),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=8)),
    max_leaves=20,
)


def recorded(*messages: bytes) -> list[bytes]:
    return [b"2020-02-01T00:00:0%d.1234567Z %b" % (n % 10, message) for n, message in enumerate(messages)]


def without_rows(value: Any) -> Any:
    """With the lists that rows stand for; their texts are checked where they stand."""
    if isinstance(value, Rows):
        rows = value.read()
        assert min(map(len, rows)) == value.columns
        return rows
    if isinstance(value, dict):
        return {name: without_rows(item) for name, item in value.items()}
    return [without_rows(item) for item in value] if isinstance(value, list) else value


def outcome(decoded: tuple[Any, Any, Exception | None]) -> tuple[str, str, str]:
    """As it prints, so that 1 is not 1.0."""
    clocks, messages, error = decoded
    return repr(clocks), repr(without_rows(messages)), repr(error)


def assert_same(lines: Any) -> None:
    expected = outcome(python.decode_lines(lines))
    # Twice: what the first one learns, the second one uses.
    for with_rows in (False, True, False, True):
        assert outcome(compiled.decode_lines(lines, with_rows)) == expected
        # The same lines in one piece, which others stand around; there a line has no newline in it.
        if not any(b"\n" in bytes(line) for line in lines):
            joined = b"".join(bytes(line) + b"\n" for line in lines)
            for piece in (Lines(b"}\n" + joined + b"{}", 2, 2 + len(joined)), Lines(joined)):
                assert outcome(compiled.decode_lines(piece, with_rows)) == outcome(python.decode_lines(piece)) == expected
            # Those that begin so are passed over by both.
            some = Lines(joined, unread=(b'{"a', b"[1", b"{}"))
            assert outcome(compiled.decode_lines(some, with_rows)) == outcome(python.decode_lines(some.cut()))


def test_the_compiled_one_is_in_use() -> None:
    assert compiled.decode_lines.__module__ == "tardis_machine.exchanges._decoding_compiled"
    assert python.decode_lines.__module__ == "tardis_machine.exchanges._decoding"


@given(st.lists(values, max_size=4))
@example([{"a": [[1, "2"]], "b": [["1e5", 2]], "c": [[]], "d": [[True]]}])
@example([[[1, 2]], {"x": [[0.1, -0]]}, -0.0, 1e300, 10**17, 10**18, 123456789012345.6, 2**64 - 1])
def test_any_message(messages: list[Any]) -> None:
    assert_same(recorded(*map(orjson.dumps, messages)))
    assert_same(recorded(*(orjson.dumps(message, option=orjson.OPT_INDENT_2).replace(b"\n", b" ") for message in messages)))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b" ",
        b"nul",
        b"nulll",
        b"tru",
        b"01",
        b"-",
        b"-0",
        b"1.",
        b".5",
        b"1.5.2",
        b"1e5",
        b"1E+5",
        b"1e",
        b"+1",
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b'{"a":1,}',
        b'{"a" 1}',
        b"{a:1}",
        b'{"a":1}}',
        b'{"a":1',
        b'"abc',
        b'"a\tb"',
        b'"a\\u0062"',
        b'"a\\"b"',
        b'"\xff"',
        b'"\xc3\xa9"',
        b'{"a":1,"a":2}',
        b' { "a" : [ [ 1 , 2 ] ] } ',
        b'{"a":[[1,2],[3]]}',
        b'{"a":[[1,2],[3,]]}',
        b'{"a":[[1,2],3]}',
        b'{"a":[[1,2]',
        b'{"a":[[01,2]]}',
        b'{"a":[[1.,2]]}',
        b'{"a":[["1","2\\n"]]}',
        b'{"a":[["1","2"]]x}',
        b"[" * 70 + b"]" * 70,
        b"[" * 2_000,
        b"123456789012345678901234567890",
        b"1" * 400 + b".5",
        b"\x001",
        b"1\x00",
    ],
)
def test_unusual_messages(message: bytes) -> None:
    assert_same(recorded(b"{}", message, b"{}"))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        tuple(recorded(b"{}", b"{}")),
        [*recorded(b"{}"), b"", *recorded(b"{}")],
        [b""],
        [b"short"],
        recorded(b""),
        [recorded(b"")[0][:-1]],
        [b"no time but something that is long enough"],
        [bytearray(recorded(b"{}")[0])],
        recorded(*(b"%d" % n for n in range(3_000))),
        recorded(*(b'{"%d":"%d"}' % (n, n) for n in range(20_000))),
    ],
)
def test_lines_of_any_form(lines: Any) -> None:
    assert_same(lines)


def test_a_time_that_is_no_text_is_refused() -> None:
    for module in (compiled, python):
        with pytest.raises(UnicodeDecodeError):
            module.decode_lines([b"\xff" * 40])


def test_damaged_messages() -> None:
    """A byte of a message is another, is missing, or comes twice."""
    chance = random.Random(7)
    whole = orjson.dumps({"e": "u", "data": {"b": [["8500.50", "100"], ["8501", "0.0"]], "a": [[1, -2.5]], "t": [1, None, True]}})
    for _ in range(3_000):
        place = chance.randrange(len(whole))
        new = chance.choice(
            [bytes([chance.randrange(256)]), b"", whole[place : place + 1] * 2, chance.choice([b'"', b"[", b"]", b","])]
        )
        message = (whole[:place] + new + whole[place + 1 :]).replace(b"\n", b" ")
        assert_same(recorded(message))


def test_rows_are_what_they_stand_for() -> None:
    [message] = compiled.decode_lines(recorded(b'{"rows":[["1","2"],["3","4","5"]],"none":[]}'), True)[1]
    rows = message["rows"]
    assert type(rows) is Rows
    assert is_array(rows)
    assert is_array(message["none"])
    assert not is_array("rows")
    assert (list(rows), len(rows), rows[1][2], bool(rows), rows.columns) == ([["1", "2"], ["3", "4", "5"]], 2, "5", True, 2)
    assert rows == [["1", "2"], ["3", "4", "5"]]
    assert rows == Rows(rows.text, 2)
    assert rows != []
    with pytest.raises(TypeError):
        hash(rows)


def test_level_rows_are_the_levels_that_are_made_of_rows() -> None:
    text = b'[["buy","1.50","0"],["sell","2","3"]]'
    assert LevelRows(text, 1, side="sell") == [BookLevel(2, 3)]
    assert LevelRows(b'[["delete",1.0,5],["new",2,0.5]]', 1, is_as_sent=True, removed_by="delete") == [
        BookLevel(1, 0),
        BookLevel(2, 0.5),
    ]
    assert LevelRows(b'[["1.50","0"]]') == [BookLevel(1.5, 0)]


@given(st.lists(values, max_size=5), st.sampled_from([b"", b"{", b"[1,]", b"nul", b'{"a":1}']))
def test_messages_without_a_clock(given_values: list[Any], last: bytes) -> None:
    texts = [*map(orjson.dumps, given_values), last]
    (messages, error), (expected, mistake) = (module.decode_messages(texts) for module in (compiled, python))
    assert (repr(messages), repr(error)) == (repr(expected), repr(mistake))


shapes = st.lists(
    st.lists(st.sampled_from(["a", "ab", "price", "size", "x" * 25, "1", "é"]), min_size=1, max_size=7), min_size=1, max_size=3
)


@settings(deadline=None, max_examples=50)
@given(shapes, st.integers(0, 40))
def test_objects_of_a_shape_that_is_known_are_objects_of_their_own(some: list[list[str]], more: int) -> None:
    """So often that each shape is known; names may come twice, and there may be more than a shape has."""
    texts_of = [
        b"{" + b",".join(orjson.dumps(name) + b':{"n":[%d,{}]}' % place for place, name in enumerate(names)) + b"}"
        for names in [*some, [f"f{number}" for number in range(more)]]
    ]
    for _ in range(12):
        expected = [orjson.loads(text) for text in texts_of]
        decoded, error = compiled.decode_messages(texts_of)
        assert (decoded, error) == (expected, None)
        assert [list(message) for message in decoded] == [list(message) for message in expected]
        for message in decoded:
            # Who changes one changes no other.
            message["new"] = message.pop("a", None)
            for name in list(message)[:2]:
                del message[name]
            gc.collect(0)


def test_a_message_of_a_known_shape_that_breaks_off_leaves_nothing_behind() -> None:
    whole = [b'{"first":"%d","second":[1.5,{"third":"long enough to be a text of its own %d"}]}' % (n, n) for n in range(20)]
    assert compiled.decode_messages(whole)[1] is None
    counts = []
    for _ in range(3):
        for text in whole:
            for end in range(1, len(text)):
                assert compiled.decode_messages([text[:end]])[1] is not None
        gc.collect()
        counts.append(sys.getallocatedblocks())
    assert abs(counts[2] - counts[1]) < 100
