"""Merging by local timestamp equals the plain definition: repeatedly take the earliest head, of equals the earlier stream's."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.messages import Disconnect
from tardis_machine.pipeline.merger import Merger, combine, merge_batches

Keys = list[list[int]]


def by_heads(streams: list[list[tuple[int, str]]]) -> list[str]:
    heads = [list(stream) for stream in streams]
    merged = []
    while any(heads):
        earliest = min((stream[0][0], index) for index, stream in enumerate(heads) if stream)[1]
        merged.append(heads[earliest].pop(0)[1])
    return merged


batches = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=4), min_size=1, max_size=4)


@given(batches)
def test_merging_takes_the_earliest_head(streams: list[Keys]) -> None:
    labelled = [
        [[(key, f"{s}.{b}.{i}") for i, key in enumerate(batch)] for b, batch in enumerate(stream)]
        for s, stream in enumerate(streams)
    ]
    merger: Merger[str] = Merger(len(streams))
    waiting = [list(stream) for stream in labelled]
    merged: list[str] = []
    while not merger.finished:
        for stream in merger.hungry:
            if waiting[stream]:
                batch = waiting[stream].pop(0)
                merger.push(stream, [str(key) for key, _ in batch], [label for _, label in batch])
            else:
                merger.finish(stream)
        merged += merger.pop()
    assert merged == by_heads([[item for batch in stream for item in batch] for stream in labelled])


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4))
def test_batches_are_merged_as_streams_are_also_where_a_clock_steps_back(streams: Keys) -> None:
    batches = [
        [
            Disconnect("bitmex", f"2020-01-01T00:00:0{second}.000000Z", reason=f"{stream}.{place}")
            for place, second in enumerate(seconds)
        ]
        for stream, seconds in enumerate(streams)
    ]
    heads = [[(second, f"{stream}.{place}") for place, second in enumerate(seconds)] for stream, seconds in enumerate(streams)]
    assert [message.reason for message in merge_batches(batches)] == by_heads(heads)


def test_nothing_leaves_while_a_stream_may_still_be_earlier() -> None:
    merger: Merger[str] = Merger(2)
    merger.push(0, ["5"], ["a"])
    assert merger.hungry == [1]
    assert merger.pop() == []
    merger.push(1, ["5"], ["b"])
    # Stream 0 may go on with another 5, which would come before b.
    assert merger.pop() == ["a"]
    merger.finish(0)
    assert merger.pop() == ["b"]


async def test_combine_orders_three_and_six_digit_timestamps_by_instant() -> None:
    async def stream(*texts: str) -> AsyncIterator[list[Disconnect]]:
        for text in texts:
            yield [Disconnect("bitmex", f"2020-01-01T00:00:0{text}Z")]

    merged = [
        m.local_timestamp[17:-1] async for batch in combine(stream("1.000", "1.003"), stream("1.002999", "1.003")) for m in batch
    ]
    assert merged == ["01.000", "01.002999", "01.003", "01.003"]


async def test_combine_closes_its_streams_when_left_early() -> None:
    closed = []

    async def stream(name: str) -> AsyncIterator[list[Disconnect]]:
        try:
            while True:
                yield [Disconnect(name, "2020-01-01T00:00:01.000Z")]
        finally:
            closed.append(name)

    merged = combine(stream("a"), stream("b"))
    await anext(merged)
    await merged.aclose()  # type: ignore[attr-defined]
    assert closed == ["a", "b"]
