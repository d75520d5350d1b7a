"""Bytes are merged by their marks, compiled or not, in the order in which one that had all of them would send them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.pipeline.marks import MARK, instant_us
from tests.compiled_or_not import import_as_python, import_compiled

(compiled,), (python,) = (load("tardis_machine.pipeline.marks") for load in (import_compiled, import_as_python))

# What one source gives at a time: instants, and the messages of each. Clocks may step back, and some have nothing to tell but the time.
gifts = st.lists(st.tuples(st.integers(0, 6), st.lists(st.integers(0, 3), max_size=2)), max_size=5)
sources = st.lists(st.lists(gifts, max_size=4), min_size=1, max_size=4)


def to_gift(source: int, gift: list[tuple[int, list[int]]]) -> tuple[bytes, bytes]:
    messages = [[b"%d@%d%s;" % (source, instant, b"x" * size) for size in sizes] for instant, sizes in gift]
    marks = [MARK.pack(instant, sum(map(len, texts)), len(texts)) for (instant, _), texts in zip(gift, messages, strict=True)]
    return b"".join(text for texts in messages for text in texts), b"".join(marks)


def merged_by(module: object, given_by: list[list[list[tuple[int, list[int]]]]]) -> list[tuple[bytes, bytes, int, int]]:
    """All that leaves, as it leaves."""
    waiting = [[to_gift(source, gift) for gift in its_gifts] for source, its_gifts in enumerate(given_by)]
    merging = [module.MarkedSource() for _ in waiting]  # type: ignore[attr-defined]
    merged = []
    while any(source.is_open or not source.is_empty for source in merging):
        for source, gifts_left in zip(merging, waiting, strict=True):
            if source.is_open and source.is_empty:
                if gifts_left:
                    source.give(*gifts_left.pop(0))
                else:
                    source.is_open = False
        merged.append(module.merge_marked(merging))  # type: ignore[attr-defined]
    return merged


def test_the_compiled_one_is_in_use() -> None:
    assert compiled.merge_marked.__module__ == "tardis_machine.pipeline.marks_compiled"
    assert python.merge_marked.__module__ == "tardis_machine.pipeline.marks"


@given(sources)
def test_both_merge_alike_and_in_order(given_by: list[list[list[tuple[int, list[int]]]]]) -> None:
    merged = merged_by(compiled, given_by)
    assert merged == merged_by(python, given_by)
    keyed = []
    for source, its_gifts in enumerate(given_by):
        reached = 0
        for instant, sizes in (item for gift in its_gifts for item in gift):
            reached = max(reached, instant)
            keyed += [(reached, source, b"%d@%d%s" % (source, instant, b"x" * size)) for size in sizes]
    keyed.sort(key=lambda item: item[:2])
    assert b"".join(data for data, *_ in merged).split(b";")[:-1] == [text for _, _, text in keyed]
    assert sum(messages for _, _, messages, _ in merged) == len(keyed)
    for data, marks, messages, _ in merged:
        told = list(MARK.iter_unpack(marks))
        assert (sum(size for _, size, _ in told), sum(count for *_, count in told)) == (len(data), messages)


def test_what_is_no_time_has_none() -> None:
    assert instant_us("2020-02-01T00:00:00.000001Z") == 1_580_515_200_000_001
    assert instant_us("2020-02-01T00:00:99.000000Z") == 0
