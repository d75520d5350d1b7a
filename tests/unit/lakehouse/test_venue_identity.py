"""Executions of several recorders, paired, against the plainest way to count them."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.lakehouse.silver.venue_identity import VENUE_COLUMNS, find_unpaired

_DECIMAL = pa.decimal128(38, 18)
_INSTANT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    {
        "symbol": pa.string(),
        "event_ts": _INSTANT,
        "trade_id": pa.string(),
        "price": _DECIMAL,
        "amount": _DECIMAL,
        "side": pa.string(),
        "session": pa.string(),
        "sequence": pa.int64(),
        "local_ts": _INSTANT,
    }
)
EXECUTIONS = st.tuples(
    st.sampled_from(["A", "B"]),
    st.sampled_from([1, 2, None]),
    st.sampled_from(["t1", "t2", None]),
    st.sampled_from([Decimal(1), Decimal("1.5"), None]),
    st.just(Decimal(2)),
    st.sampled_from(["buy", "sell"]),
)


def table(rows: list[dict[str, Any]], cut: int = 3) -> pa.Table:
    """In chunks, as they come from files."""
    batches = [pa.RecordBatch.from_pylist(rows[start : start + cut], SCHEMA) for start in range(0, len(rows), cut)]
    return pa.Table.from_batches(batches, SCHEMA)


def of_session(session: str, executions: list[tuple[Any, ...]], late_us: int) -> list[dict[str, Any]]:
    return [
        dict(zip(SCHEMA.names, (*execution, session, sequence, late_us + sequence), strict=True))
        for sequence, execution in enumerate(executions)
    ]


@given(st.lists(st.tuples(EXECUTIONS, st.booleans(), st.booleans()), max_size=20), st.booleans(), st.integers(0, 5))
def test_what_two_recorders_heard_is_there_as_often_as_the_one_has_it_that_has_most(
    heard: list[tuple[tuple[Any, ...], bool, bool]], are_apart: bool, late_us: int
) -> None:
    one = of_session("one", [execution for execution, by_one, _ in heard if by_one], 0)
    other = of_session("other", [execution for execution, _, by_other in heard if by_other], late_us)
    if are_apart:
        first = [row for row, is_new in zip(one, find_unpaired(table(one), table([]), "trades"), strict=True) if is_new]
        second = find_unpaired(table(other), table(first), "trades")
        kept = [*first, *(row for row, is_new in zip(other, second, strict=True) if is_new)]
    else:
        both = [*other, *one]
        kept = [row for row, is_new in zip(both, find_unpaired(table(both), table([]), "trades"), strict=True) if is_new]

    def counted(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row[name] for name in VENUE_COLUMNS["trades"]) for row in rows)

    in_one, in_other = counted(one), counted(other)
    expected = Counter(
        {
            key: in_one[key] + in_other[key] if key[1] is None else 1 if key[2] is not None else max(in_one[key], in_other[key])
            for key in in_one.keys() | in_other.keys()
        }
    )
    assert counted(kept) == expected


def test_the_one_that_was_received_first_stays() -> None:
    execution = ("A", 1, "t1", Decimal(1), Decimal(1), "buy")
    rows = [*of_session("a", [execution], 9), *of_session("b", [execution], 5), *of_session("c", [execution], 7)]
    assert find_unpaired(table(rows), table([]), "trades").tolist() == [False, True, False]


def test_of_one_session_without_ids_nothing_is_lost_however_it_is_cut() -> None:
    execution = ("A", 1, None, Decimal(1), Decimal(1), "buy")
    rows = of_session("a", [execution] * 5, 0)
    kept: list[dict[str, Any]] = []
    for row in rows:
        assert find_unpaired(table([row]), table(kept), "trades").all()
        kept.append(row)
    # Another recorder missed one of them at first, and then heard one more than this.
    again = of_session("b", [execution] * 6, 0)
    assert find_unpaired(table(again[1:5]), table(kept), "trades").tolist() == [False] * 4
    assert find_unpaired(table(again), table(kept), "trades").tolist() == [False] * 5 + [True]
