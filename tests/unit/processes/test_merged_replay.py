"""Requests that run as jobs of their own are one answer, which is what one job makes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.errors import TardisMachineError, WorkerError
from tardis_machine.messages import parse_timestamp_us
from tardis_machine.pipeline.frames import Form
from tardis_machine.pipeline.marks import MARK
from tardis_machine.pipeline.request import NormalizedRequest
from tardis_machine.processes.jobs import answer, normalized
from tardis_machine.processes.jobs.contract import Chunk, Failed, PublishSpec, ReplaySpec
from tardis_machine.processes.merged_replay import MergedReplay
from tardis_machine.processes.output_queue import OutputQueue
from tardis_machine.processes.runner import RunningJob
from tardis_machine.processes.started_replay import StartedReplay
from tardis_machine.processes.steering import Steering
from tests.unit.processes.test_cut_replays import pieces_of
from tests.unit.processes.test_replay_jobs import COMPUTED, answer_of, book_line, chunks_of, raw_request, recordings, request

Recorded = Sequence[Sequence[Sequence[bytes]]]
KINDS = [("trade", "book_change"), COMPUTED, ("book_change",)]


@st.composite
def minutes(draw: st.DrawFn) -> list[list[bytes]]:
    """As recordings are: what is of one instant is in one slice."""
    lines = [line for part in draw(recordings()) for line in part]
    slices: list[list[bytes]] = [[]]
    last = b""
    for line in lines:
        if line and line[:23] != last:
            last = line[:23]
            slices.append([])
        slices[-1].append(line)
    return slices


class Part:
    """What a job has made."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = iter(chunks)
        self.steering = Steering(lambda name: None, self._fail)
        self._error: TardisMachineError | None = None

    def _fail(self, error: TardisMachineError) -> None:
        self._error = error

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        for chunk in self._chunks:
            return chunk
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration


def merging(requests: Sequence[NormalizedRequest], recorded: Recorded, form: Form, is_cut: bool = False) -> MergedReplay:
    parts = [
        Part(chunks_of(ReplaySpec([one], form, is_marked=True), [slices])) for one, slices in zip(requests, recorded, strict=True)
    ]
    return MergedReplay(cast(Any, parts), is_cut)


async def merged(requests: Sequence[NormalizedRequest], recorded: Recorded, form: Form, is_cut: bool = False) -> list[Chunk]:
    return [chunk async for chunk in merging(requests, recorded, form, is_cut).chunks()]


def requests_for(recorded: Recorded) -> list[NormalizedRequest]:
    return [request(*KINDS[place], with_disconnects=place == 1) for place in range(len(recorded))]


@settings(max_examples=60, deadline=None)
@given(st.lists(minutes(), min_size=2, max_size=3), st.sampled_from(["lines", "frames"]), st.sampled_from([200, 100_000]))
async def test_it_is_what_one_job_makes_of_all(recorded: list[list[list[bytes]]], form: Form, chunk_bytes: int) -> None:
    requests = requests_for(recorded)
    whole = chunks_of(ReplaySpec(requests, form), recorded)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(normalized, "STEPS_UNTOLD", 2)
        patch.setattr(normalized, "STEP_BYTES", 600)
        patch.setattr(normalized, "LEAST_SHARE_BYTES", 200)
        chunks = await merged(requests, recorded, form)
    assert b"".join(bytes(chunk.data) for chunk in chunks) == b"".join(bytes(chunk.data) for chunk in whole)
    assert sum(chunk.messages for chunk in chunks) == sum(chunk.messages for chunk in whole)
    assert max((chunk.reached_us for chunk in chunks), default=0) == max((chunk.reached_us for chunk in whole), default=0)


@settings(max_examples=40, deadline=None)
@given(st.lists(minutes(), min_size=2, max_size=3))
async def test_it_can_be_cut_where_one_job_can(recorded: list[list[list[bytes]]]) -> None:
    requests = requests_for(recorded)
    pieces = pieces_of(await merged(requests, recorded, "lines", is_cut=True))
    assert b"".join(data for _, _, data, _ in pieces) == answer_of(requests, recorded)
    for instant_us, place, data, messages in pieces:
        clocks = [line.rpartition(b'"localTimestamp":"')[2].removesuffix(b'"}').decode() for line in data.splitlines()]
        assert ({parse_timestamp_us(clock) for clock in clocks}, len(clocks), place) == ({instant_us}, messages, 0)


@settings(max_examples=40, deadline=None)
@given(st.lists(recordings((0, 1, 7, 10, 30_000, -40_000)), min_size=2, max_size=3))
async def test_a_clock_that_steps_back_changes_no_message(recorded: list[list[list[bytes]]]) -> None:
    requests = [request("trade", "book_change") for _ in recorded]
    alone = [answer_of([one], [slices]).splitlines() for one, slices in zip(requests, recorded, strict=True)]
    lines = b"".join(bytes(chunk.data) for chunk in await merged(requests, recorded, "lines")).splitlines()
    assert sorted(lines) == sorted(line for its_lines in alone for line in its_lines)


async def test_from_when_it_is_to_be_cut_it_is() -> None:
    recorded = [[[book_line(number * 10, 48, 1, "insert")] for number in range(20)] for _ in range(2)]
    replay = merging([request("book_change")] * 2, recorded, "lines")
    chunks = replay.chunks()
    assert not (await anext(chunks)).moments
    replay.steering.command("cut")
    rest = [chunk async for chunk in chunks]
    assert rest
    assert all(chunk.moments for chunk in rest)


async def test_one_that_fails_ends_all_after_what_came_before() -> None:
    recorded = [[[book_line(number * 10, 48, 1, "insert") for number in range(20)]] for _ in range(2)]
    replay = merging([request("book_change")] * 2, recorded, "lines")
    replay.steering.fail(WorkerError("its client is gone"))
    chunks = replay.chunks()
    assert (await anext(chunks)).messages >= 20
    with pytest.raises(WorkerError, match="its client is gone"):
        await anext(chunks)


def test_who_reads_much_and_has_little_to_tell_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalized, "STEPS_UNTOLD", 3)
    monkeypatch.setattr(normalized, "STEP_BYTES", 600)
    monkeypatch.setattr(normalized, "LEAST_SHARE_BYTES", 200)
    quiet = [[book_line(number * 10, 48, 1, "insert") for number in range(100)]]
    chunks = chunks_of(ReplaySpec([request("trade")], "lines", is_marked=True), [quiet])
    marks = [mark for chunk in chunks for mark in MARK.iter_unpack(chunk.marks)]
    assert len(marks) > 3
    assert {(size, messages) for _, size, messages in marks} == {(0, 0)}
    assert [instant for instant, *_ in marks] == sorted(instant for instant, *_ in marks)


def test_only_what_is_made_for_each_request_alone_is_divided() -> None:
    two = [request("trade")] * 2
    assert ReplaySpec(two, "lines").is_divisible
    assert ReplaySpec(two, "frames", is_cut=True).is_divisible
    for spec in (
        ReplaySpec(two[:1], "lines"),
        ReplaySpec(two * 9, "lines"),
        ReplaySpec(two, "csv"),
        ReplaySpec(two, "lines", compression="gzip"),
        ReplaySpec(two, "lines", publish=PublishSpec("s", "replay", {}, "")),
        ReplaySpec(two, "lines", opening_us=1),
        ReplaySpec([raw_request()] * 2, "frames"),
    ):
        assert not spec.is_divisible


class Recording:
    """An executor that notes what it is told."""

    def __init__(self) -> None:
        self.queues: dict[int, Any] = {}
        self.told: list[tuple[str, Any]] = []

    def attach(self, job: int, queue: Any) -> None:
        self.queues[job] = queue

    def command(self, job: int, name: str, *arguments: Any) -> None:
        self.told.append((name, arguments))


class Window:
    """One that does not grow."""

    def grow(self) -> int:
        return 0


async def test_a_chunk_that_was_taken_makes_room_for_another() -> None:
    executor, queue = Recording(), OutputQueue()
    with RunningJob(cast(Any, executor), 1, ReplaySpec([request("trade")], "lines"), queue) as job:
        started = StartedReplay(job, queue, cast(Any, Window()))
        for _ in range(2):
            queue.put(Chunk(b"x", 1))
        await anext(started)
        assert executor.told[1:] == []
        await anext(started)
        assert executor.told[1:] == [("grant", (1,))]
        queue.put(Failed(WorkerError("no")))
        with pytest.raises(WorkerError):
            await anext(started)
