"""However many take turns with a job, the answer is the same, byte for byte."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.history.slice import Slice
from tardis_machine.pipeline.replay import Segment
from tardis_machine.pipeline.request import NormalizedRequest, parse_normalized_request
from tardis_machine.processes.jobs import Job, make_job, normalized
from tardis_machine.processes.jobs.contract import Chunk, Done, Failed, JobSpec, Output, PublishSpec, TurnDone
from tardis_machine.processes.jobs.slices import SliceQueue

DAY_US = 1_580_515_200_000_000


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalized, "PIECE_BYTES", 600)
    monkeypatch.setattr(normalized, "LEAST_SHARE_BYTES", 200)


def request(*data_types: str, with_disconnects: bool = False) -> NormalizedRequest:
    return parse_normalized_request(
        {
            "exchange": "bitmex",
            "from": "2020-02-01",
            "to": "2020-02-02",
            "dataTypes": list(data_types),
            "withDisconnectMessages": with_disconnects,
        }
    )


def book_line(tenths_us: int, level_id: int, size: int, action: str = "update") -> bytes:
    """Of a book whose state matters: only inserts tell a level's price."""
    clock = f"2020-02-01T00:00:{tenths_us // 10_000_000:02d}.{tenths_us % 10_000_000:07d}Z"
    price = f'"price":{100 + level_id / 2},' if action != "update" else ""
    level = f'{{"symbol":"XBTUSD","id":{level_id},"side":"{"Buy" if level_id < 50 else "Sell"}",{price}"size":{size}}}'
    return f'{clock} {{"table":"orderBookL2","action":"{action}","data":[{level}]}}'.encode()


@st.composite
def recordings(draw: st.DrawFn, steps: Sequence[int] = (0, 1, 7, 10, 30_000)) -> list[list[bytes]]:
    """One request's lines, in slices: times may be equal, connections may be lost, slices may be empty."""
    slices: list[list[bytes]] = []
    now = 0
    for _ in range(draw(st.integers(1, 4))):
        lines: list[bytes] = []
        for _ in range(draw(st.integers(0, 12))):
            now = max(0, now + draw(st.sampled_from(steps)))
            if draw(st.integers(0, 9)) == 0:
                lines.append(b"")
            else:
                action = draw(st.sampled_from(["partial", "insert", "update", "update", "update"]))
                lines.append(book_line(now, draw(st.integers(48, 51)), draw(st.integers(0, 3)), action))
        slices.append(lines)
    return slices


def to_slice(lines: Sequence[bytes]) -> Slice:
    return Slice("bitmex", DAY_US, 1, None, gzip.compress(b"".join(line + b"\n" for line in lines), 1), "gz")


def run(requests: Sequence[NormalizedRequest], recorded: Sequence[Sequence[Sequence[bytes]]], places: int) -> bytes:
    """Drives the workers of a job as the server does: outputs by turn."""
    jobs: list[Job] = [make_job(JobSpec(requests, "lines", place=place, places=places)) for place in range(places)]
    for job in jobs:
        for stream, slices in enumerate(recorded):
            for lines in slices:
                job.add_slice(stream, 0, to_slice(lines))
            job.end_input(stream)
    sent: list[list[Output]] = [[] for _ in jobs]
    for _ in range(10_000):
        for place, job in enumerate(jobs):
            if not job.runnable:
                continue
            for output in job.step():
                assert not isinstance(output, Failed), output
                sent[place].append(output)
                if isinstance(output, Chunk):
                    job.grant(1)
        if not any(job.runnable for job in jobs):
            break
    answer, place = b"", 0
    while True:
        output = sent[place].pop(0)
        if isinstance(output, Chunk):
            answer += bytes(output.data)
        elif isinstance(output, TurnDone):
            place = (place + 1) % places
        elif isinstance(output, Done):
            assert not any(isinstance(item, Chunk) for items in sent for item in items), "all was in turn"
            return answer


@settings(max_examples=60, deadline=None)
@given(st.lists(recordings((0, 1, 7, 10, 30_000, -40_000)), min_size=1, max_size=3), st.sampled_from([2, 3]))
def test_several_workers_send_what_one_does(recorded: list[list[list[bytes]]], places: int) -> None:
    requests = [request("trade", "book_change", with_disconnects=stream == 1) for stream in range(len(recorded))]
    assert run(requests, recorded, places) == run(requests, recorded, 1)


def test_nobody_waits_for_the_other() -> None:
    lines = [book_line(number * 100, 48 + number % 4, 1, "insert") for number in range(50)]
    jobs = [make_job(JobSpec([request("book_change")], "lines", place=place, places=2)) for place in range(2)]
    for job in jobs:
        job.add_slice(0, 0, to_slice(lines))
        job.end_input(0)
    for job in jobs:
        assert any(isinstance(output, Chunk) for _ in range(4) if job.runnable for output in job.step())


def test_only_what_gains_by_it_is_shared() -> None:
    book, quote = request("trade", "book_change"), request("quote")
    assert JobSpec([book, book], "frames").takes_turns
    assert not JobSpec([book, quote], "lines").takes_turns
    assert not JobSpec([book], "lines", "zstd").takes_turns
    assert not JobSpec([book], "lines", publish=PublishSpec("s-1", "replay", {}, "tardis-machine/test")).takes_turns
    assert not JobSpec([request("derivative_ticker")], "lines").takes_turns


def test_equal_times_go_to_the_earlier_request_however_they_are_cut() -> None:
    """Lines differ in the seventh digit; messages have six, and so are equal."""
    later = [[book_line(1, 48, 1, "insert"), book_line(5, 48, 2, "insert")]]
    earlier = [[book_line(9, 50, 3, "insert")]]
    answer = run([request("book_change")] * 2, [earlier, later], 1)
    assert [line.count(b'"amount":3') for line in answer.splitlines()] == [1, 0, 0]


class TestCutting:
    """Binary search in bytes finds what looking at every line would."""

    @given(recordings(), st.integers(0, 130_000))
    def test_lines_up_to_a_key_are_taken(self, slices: list[list[bytes]], tenths_us: int) -> None:
        lines = [line for part in slices for line in part]
        queue = SliceQueue(0, [Segment(0, 1, ())])
        queue.add(0, to_slice(lines))
        queue.open([])
        key = book_line(tenths_us, 1, 1)[:26]
        expected = next((number for number, line in enumerate(lines) if line and line[:26] > key), len(lines))
        if lines:
            assert queue.take_to(key).lines() == lines[:expected]
            assert queue.has_lines == (expected < len(lines))

    @given(recordings(), st.integers(0, 900))
    def test_the_last_key_is_of_the_line_in_which_a_share_ends(self, slices: list[list[bytes]], size_bytes: int) -> None:
        lines = [line for part in slices for line in part]
        queue = SliceQueue(0, [Segment(0, 1, ())])
        queue.add(0, to_slice(lines))
        queue.open([])
        if not lines:
            return
        taken, end = 0, 0
        while taken < len(lines) and end <= size_bytes:
            end += len(lines[taken]) + 1
            taken += 1
        assert queue.last_key(size_bytes) == next((line[:26] for line in reversed(lines[:taken]) if line), b"")
