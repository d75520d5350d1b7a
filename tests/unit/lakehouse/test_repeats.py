"""Which events are new, against the plainest way to find out."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.lakehouse.silver.repeats import ORDER, find_new

# Ids that differ in the first bytes, only in later ones, and in length.
IDS = st.sampled_from([b"a" * 16, b"a" * 15 + b"b", b"b" * 16, b"c", b"a" * 8, b"", b"\0" * 8, b"d" * 16])
EVENTS = st.lists(
    st.tuples(IDS, st.sampled_from(["s1", "s2", None]), st.integers(0, 3), st.sampled_from(["p", "q"])), max_size=12
)


@given(EVENTS, st.lists(IDS, max_size=4), st.integers(0, 12))
def test_each_event_is_new_once_and_not_where_it_is_known(
    events: list[tuple[bytes, str | None, int, str]], known: list[bytes], cut: int
) -> None:
    ids = [event[0] for event in events]
    order = pa.table(
        {
            "session": pa.array([event[1] for event in events], pa.string()),
            "sequence": pa.array([event[2] for event in events], pa.int64()),
            "bus": pa.array(["files"] * len(events), pa.string()),
            "position": pa.array([event[3] for event in events], pa.string()),
        }
    )
    assert set(ORDER) == set(order.column_names)
    best: dict[bytes, tuple[object, ...]] = {}
    for row, (event_id, session, sequence, position) in enumerate(events):
        place = (session is None, session or "", sequence, position, row)
        if event_id not in known:
            best[event_id] = min(best.get(event_id, place), place)
    expected = [any(place[-1] == row for place in best.values()) for row in range(len(events))]
    chunks = pa.chunked_array([pa.array(ids[:cut], pa.binary()), pa.array(ids[cut:], pa.binary())])
    assert find_new(chunks, pa.chunked_array([pa.array(known, pa.binary())]), lambda: order).tolist() == expected


def test_what_decides_between_copies_is_read_only_where_there_are_some() -> None:
    ids = pa.chunked_array([[bytes([n]) * 16 for n in range(9)]])

    def never() -> pa.Table:
        raise AssertionError("read")

    assert find_new(ids, ids.slice(0, 3), never).tolist() == [False] * 3 + [True] * 6
