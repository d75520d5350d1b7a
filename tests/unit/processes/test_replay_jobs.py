"""A replay step by step: the answer is the same however it is cut, and no further ahead than its client can take."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.errors import SliceError
from tardis_machine.history.slice import Slice
from tardis_machine.messages import from_json
from tardis_machine.pipeline import portions
from tardis_machine.pipeline.frames import Form
from tardis_machine.pipeline.replay import NormalizedReplay, Period
from tardis_machine.pipeline.request import NormalizedRequest, RawRequest, parse_normalized_request, parse_raw_request
from tardis_machine.processes.jobs import answer, backlog, normalized
from tardis_machine.processes.jobs.contract import (
    CHUNK_BYTES,
    CHUNK_WINDOW,
    Chunk,
    Done,
    Events,
    Failed,
    Output,
    PublishSpec,
    ReplaySpec,
    SliceDamaged,
    SliceOpened,
)
from tardis_machine.processes.jobs.replay import ReplayJob, ReplayJobs, make_job
from tardis_machine.processes.jobs.slices import SliceQueue

DAY_US = 1_580_515_200_000_000
PUBLISH = PublishSpec("s-1", "replay", {}, "tardis-machine/test")


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalized, "STEP_BYTES", 600)
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


def raw_request() -> RawRequest:
    return parse_raw_request({"exchange": "bitmex", "from": "2020-02-01", "to": "2020-02-02", "withDisconnects": True})


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


def started(spec: ReplaySpec, recorded: Sequence[Sequence[Sequence[bytes]]]) -> ReplayJob:
    """A job that has all of its slices."""
    job = make_job(spec)
    for place, slices in enumerate(recorded):
        for lines in slices:
            job.add_slice(place, 0, to_slice(lines))
        job.end_input(place)
    return job


def outputs_of(job: ReplayJob) -> list[Output]:
    """All that comes of a job whose client takes everything at once."""
    outputs: list[Output] = []
    while job.runnable:
        for output in job.step():
            assert not isinstance(output, Failed), output
            outputs.append(output)
            if isinstance(output, Chunk):
                job.grant(1)
    assert isinstance(outputs[-1], Done)
    return outputs


def chunks_of(spec: ReplaySpec, recorded: Sequence[Sequence[Sequence[bytes]]]) -> list[Chunk]:
    return [output for output in outputs_of(started(spec, recorded)) if isinstance(output, Chunk)]


def answer_of(
    requests: Sequence[NormalizedRequest], recorded: Sequence[Sequence[Sequence[bytes]]], form: Form = "lines"
) -> bytes:
    return b"".join([bytes(chunk.data) for chunk in chunks_of(ReplaySpec(requests, form), recorded)])


@settings(max_examples=60, deadline=None)
@given(st.lists(recordings(), min_size=1, max_size=3))
def test_an_answer_is_the_same_however_it_is_cut(recorded: list[list[list[bytes]]]) -> None:
    requests = [request("trade", "book_change", with_disconnects=place == 1) for place in range(len(recorded))]
    in_small_steps = answer_of(requests, recorded)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalized, "STEP_BYTES", 1_000_000)
        patch.setattr(normalized, "LEAST_SHARE_BYTES", 1_000_000)
        assert answer_of(requests, recorded) == in_small_steps


@settings(max_examples=60, deadline=None)
@given(st.lists(recordings((0, 1, 7, 10, 30_000, -40_000)), min_size=2, max_size=3))
def test_a_clock_that_steps_back_changes_no_message(recorded: list[list[list[bytes]]]) -> None:
    requests = [request("trade", "book_change") for _ in recorded]
    alone = [answer_of([one], [slices]).splitlines() for one, slices in zip(requests, recorded, strict=True)]
    assert sorted(answer_of(requests, recorded).splitlines()) == sorted(line for lines in alone for line in lines)


def test_equal_times_go_to_the_earlier_request() -> None:
    """Lines differ in the seventh digit; messages have six, and so are equal."""
    later = [[book_line(1, 48, 1, "insert"), book_line(5, 48, 2, "insert")]]
    earlier = [[book_line(9, 50, 3, "insert")]]
    answer = answer_of([request("book_change")] * 2, [earlier, later])
    assert [line.count(b'"amount":3') for line in answer.splitlines()] == [1, 0, 0]


LINES = [book_line(number * 100_000, 48 + number % 4, 1, "insert") for number in range(50)]


def test_a_chunk_says_when_its_last_message_was() -> None:
    for form in ("lines", "frames"):
        [chunk] = chunks_of(ReplaySpec([request("book_change")], form), [[LINES]])  # type: ignore[arg-type]
        assert (chunk.messages, chunk.reached_us) == (50, DAY_US + 490_000)
    [raw] = chunks_of(ReplaySpec([raw_request()], "lines"), [[[*LINES, b""]]])
    assert (raw.messages, raw.reached_us) == (51, DAY_US + 490_000)
    in_step = chunks_of(ReplaySpec([raw_request(), raw_request()], "frames"), [[LINES], [LINES[:10]]])
    assert [max(chunk.reached_us for chunk in in_step if chunk.request == place) - DAY_US for place in range(2)] == [
        490_000,
        90_000,
    ]


def test_a_line_without_a_time_is_sent_all_the_same() -> None:
    broken = b"2020-02-01T00:00:99.1234567Z {}"
    [chunk] = chunks_of(ReplaySpec([raw_request()], "lines"), [[[LINES[0], broken]]])
    assert (chunk.messages, chunk.reached_us) == (2, 0)
    [chunk] = chunks_of(ReplaySpec([raw_request()], "lines"), [[[broken, LINES[1]]]])
    assert (chunk.messages, chunk.reached_us) == (2, DAY_US + 10_000)


class TestWithoutBytes:
    """Where only events are wanted, nothing is printed and shipped; how far it came is told all the same."""

    def test_chunks_count_and_tell_the_time(self) -> None:
        asked: dict[str, Any] = {"requests": [request("book_change")], "publish": PUBLISH}
        recorded = [[LINES[:20], [b""], LINES[20:]]]
        outputs = outputs_of(started(ReplaySpec(form="none", **asked), recorded))
        with_lines = outputs_of(started(ReplaySpec(form="lines", **asked), recorded))
        chunks = [output for output in outputs if isinstance(output, Chunk)]
        assert {bytes(chunk.data) for chunk in chunks} == {b""}
        assert sum(chunk.messages for chunk in chunks) == sum(o.messages for o in with_lines if isinstance(o, Chunk)) == 50
        assert [chunk.reached_us for chunk in chunks] == sorted({chunk.reached_us for chunk in chunks})
        assert chunks[-1].reached_us == DAY_US + 490_000
        ids, expected = (
            [e.event_id for o in given if isinstance(o, Events) for e in o.events] for given in (outputs, with_lines)
        )
        assert ids == expected
        assert len(ids) == 51  # the disconnect is published, and was not asked to be shown

    def test_it_waits_for_whoever_publishes(self) -> None:
        job = started(ReplaySpec([request("book_change")], "none", publish=PUBLISH), [[LINES]])
        outputs: list[Output] = []
        while job.runnable:
            outputs += job.step()
        assert sum(isinstance(output, Chunk) for output in outputs) == CHUNK_WINDOW
        assert not isinstance(outputs[-1], Done)
        job.grant(1)
        assert job.runnable


def test_a_slow_client_holds_up_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardis_machine.processes.jobs.answer.CHUNK_BYTES", 100)
    job = started(ReplaySpec([request("book_change")], "lines"), [[LINES]])
    sent = 0
    while job.runnable:
        sent += sum(isinstance(output, Chunk) for output in job.step())
    assert sent == CHUNK_WINDOW
    job.grant(2)
    while job.runnable:
        sent += sum(isinstance(output, Chunk) for output in job.step())
    assert sent == CHUNK_WINDOW + 2


COMPUTED = ("trade", "book_change", "quote", "book_snapshot_3_0ms", "book_snapshot_2_grouped10_0ms", "book_snapshot_2_5ms")


class TestComputedMessages:
    """However many one line causes, they leave a little at a time, and are those that computing all at once gives."""

    @settings(max_examples=60, deadline=None)
    @given(st.lists(recordings(), min_size=1, max_size=3), st.sampled_from(["lines", "frames"]))
    def test_portions_change_nothing(self, recorded: list[list[list[bytes]]], form: Form) -> None:
        kinds = [COMPUTED, ("book_change",), COMPUTED[2:]]
        requests = [request(*kinds[place], with_disconnects=place == 1) for place in range(len(recorded))]
        whole = answer_of(requests, recorded, form)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(portions, "MAX_LEVELS", 10)
            patch.setattr(backlog, "MAX_LEVELS", 10)
            patch.setattr(answer, "CHUNK_BYTES", 300)
            assert answer_of(requests, recorded, form) == whole

    def test_hundreds_for_each_line_leave_in_chunks(self) -> None:
        names = [f"book_snapshot_100_{number}ms" for number in range(300)]
        lines = [
            book_line(number * 10_000_000, 48 + number % 4, 1 + number, "insert" if number else "partial") for number in range(50)
        ]
        job = started(ReplaySpec([request(*names)], "lines", publish=PUBLISH), [[lines]])
        held: list[Output] = []
        while job.runnable:
            held += job.step()
        chunks = [output for output in held if isinstance(output, Chunk)]
        assert len(chunks) == CHUNK_WINDOW, "it waits for its client long before the end"
        assert max(len(chunk.data) for chunk in chunks) < 2 * CHUNK_BYTES
        assert max(len(output.events) for output in held if isinstance(output, Events)) <= 2 * len(names)
        assert sum(chunk.messages for chunk in chunks) < 50 * len(names) / 4
        rest = outputs_of_rest(job)
        whole = sum(output.messages for output in (*held, *rest) if isinstance(output, Chunk))
        assert whole == chunks_of_all_at_once(names, lines)


def outputs_of_rest(job: ReplayJob) -> list[Output]:
    job.grant(CHUNK_WINDOW)
    return outputs_of(job)


def chunks_of_all_at_once(names: Sequence[str], lines: list[bytes]) -> int:
    replay = NormalizedReplay(request(*names))
    [period] = replay.periods()
    return len(replay.feed(period, lines))


async def test_jobs_of_a_process_take_turns() -> None:
    """Whoever has much to do has one step, then the next has one."""
    put: list[int] = []
    jobs = ReplayJobs(lambda number, output: put.append(number) if isinstance(output, Chunk) else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "CHUNK_BYTES", 100)
        for number in range(1, 4):
            jobs.obey(number, "start", (ReplaySpec([request("book_change")], "lines", window=1000),))
            for _ in range(2):
                jobs.obey(number, "add_slice", (0, 0, to_slice(LINES)))
            jobs.obey(number, "end_input", (0,))
        while len(put) < 12:
            await asyncio.sleep(0)
        # A command between two steps is heard at once.
        jobs.obey(2, "cancel", ())
        heard = len(put)
        while len(put) < heard + 6:
            await asyncio.sleep(0)
    turns = [number for number, _ in groupby(put)]
    assert turns[:6] == [1, 2, 3, 1, 2, 3]
    assert 2 not in put[heard:]
    assert {1, 3} == set(put[heard : heard + 6])


class TestDamage:
    """A slice that can't be read is asked for anew, once."""

    broken = replace(to_slice(LINES), data=b"garbage")

    def job(self) -> tuple[ReplayJob, SliceDamaged]:
        job = make_job(ReplaySpec([request("book_change")], "lines"))
        job.add_slice(0, 0, self.broken)
        job.end_input(0)
        [damaged] = job.step()
        assert isinstance(damaged, SliceDamaged)
        assert not job.runnable
        return job, damaged

    def test_what_comes_instead_is_read_and_counts_as_one(self) -> None:
        job, damaged = self.job()
        assert (damaged.request, damaged.period, damaged.item) == (0, 0, self.broken)
        job.replace_slice(0, damaged.period, [to_slice(LINES[:20]), to_slice([]), to_slice(LINES[20:])])
        outputs = outputs_of(job)
        assert sum(output.messages for output in outputs if isinstance(output, Chunk)) == 50
        assert sum(isinstance(output, SliceOpened) for output in outputs) == 1

    def test_so_is_one_that_was_read_ahead(self) -> None:
        job = make_job(ReplaySpec([request("book_change")], "lines"))
        for item in (to_slice(LINES[:20]), self.broken, to_slice(LINES[30:])):
            job.add_slice(0, 0, item)
        job.end_input(0)
        held: list[Output] = []
        while job.runnable:
            held += job.step()
        [damaged] = [output for output in held if isinstance(output, SliceDamaged)]
        job.replace_slice(0, damaged.period, [to_slice(LINES[20:30])])
        outputs = [*held, *outputs_of(job)]
        data = b"".join(bytes(output.data) for output in outputs if isinstance(output, Chunk))
        assert data == answer_of([request("book_change")], [[LINES]])
        assert sum(isinstance(output, SliceOpened) for output in outputs) == 3

    def test_there_is_no_third_try(self) -> None:
        job, damaged = self.job()
        job.replace_slice(0, damaged.period, [self.broken])
        [failed] = job.step()
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, SliceError)


def test_messages_are_json_that_can_be_read_again() -> None:
    messages = [from_json(line) for line in answer_of([request("book_change")], [[LINES]]).splitlines()]
    assert [message.local_timestamp_us for message in messages] == [DAY_US + number * 10_000 for number in range(50)]


class TestTaking:
    """Binary search in bytes finds what looking at every line would."""

    @given(recordings(), st.integers(0, 130_000))
    def test_lines_up_to_a_key_are_taken(self, slices: list[list[bytes]], tenths_us: int) -> None:
        lines = [line for part in slices for line in part]
        queue = SliceQueue(0, [Period(0, 1, ())])
        queue.add(0, to_slice(lines))
        queue.open([])
        key = book_line(tenths_us, 1, 1)[:26]
        expected = next((number for number, line in enumerate(lines) if line and line[:26] > key), len(lines))
        if lines:
            assert queue.take_to(key) == lines[:expected]
            assert queue.has_lines == (expected < len(lines))

    @given(recordings(), st.integers(0, 900))
    def test_the_last_key_is_of_the_line_in_which_a_share_ends(self, slices: list[list[bytes]], size_bytes: int) -> None:
        lines = [line for part in slices for line in part]
        queue = SliceQueue(0, [Period(0, 1, ())])
        queue.add(0, to_slice(lines))
        queue.open([])
        if not lines:
            return
        taken, end = 0, 0
        while taken < len(lines) and end <= size_bytes:
            end += len(lines[taken]) + 1
            taken += 1
        assert queue.last_key(size_bytes) == next((line[:26] for line in reversed(lines[:taken]) if line), b"")
