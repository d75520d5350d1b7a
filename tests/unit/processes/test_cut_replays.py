"""A replay that is cut in time sends what it sends otherwise; one that opens in the midst has the books of who heard everything."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tardis_machine.messages import parse_timestamp_us
from tardis_machine.pipeline.faults import BadDay
from tardis_machine.processes.jobs import normalized
from tardis_machine.processes.jobs.contract import Chunk, Events, Failed, ReplaySpec
from tests.unit.processes.test_replay_jobs import (
    DAY_US,
    PUBLISH,
    book_line,
    chunks_of,
    outputs_of,
    raw_request,
    recordings,
    request,
    started,
)

Recorded = Sequence[Sequence[Sequence[bytes]]]


def pieces_of(chunks: Sequence[Chunk]) -> list[tuple[int, int, bytes, int]]:
    """Instant, request, bytes and messages of every moment."""
    pieces = []
    for chunk in chunks:
        start = 0
        for instant_us, end, messages, place in chunk.moments:
            pieces.append((instant_us, place, bytes(chunk.data[start:end]), messages))
            start = end
        assert start == len(chunk.data)
        assert sum(moment[2] for moment in chunk.moments) == chunk.messages
    return pieces


def answer_to(spec: ReplaySpec, recorded: Recorded) -> bytes:
    return b"".join([bytes(chunk.data) for chunk in chunks_of(spec, recorded)])


@settings(max_examples=40, deadline=None)
@given(st.lists(recordings(), min_size=1, max_size=3))
def test_cuts_change_no_byte_and_lie_between_instants(recorded: list[list[list[bytes]]]) -> None:
    requests = [request("trade", "book_change", with_disconnects=place == 1) for place in range(len(recorded))]
    whole = ReplaySpec(requests, "lines")
    pieces = pieces_of(chunks_of(replace(whole, is_cut=True), recorded))
    assert b"".join([data for _, _, data, _ in pieces]) == answer_to(whole, recorded)
    for instant_us, _, data, messages in pieces:
        clocks = [json.loads(line)["localTimestamp"] for line in data.splitlines()]
        assert {parse_timestamp_us(clock) for clock in clocks} == {instant_us}
        assert len(clocks) == messages


@settings(max_examples=40, deadline=None)
@given(st.lists(recordings(), min_size=2, max_size=3))
def test_clients_of_a_session_are_sent_the_same_in_the_order_of_time(recorded: list[list[list[bytes]]]) -> None:
    whole = ReplaySpec([raw_request() for _ in recorded], "lines")
    pieces = pieces_of(chunks_of(replace(whole, is_cut=True), recorded))
    assert [piece[0] for piece in pieces] == sorted(piece[0] for piece in pieces)
    uncut = chunks_of(whole, recorded)
    for place in range(len(recorded)):
        mine = b"".join([data for _, its, data, _ in pieces if its == place])
        assert mine == b"".join([bytes(chunk.data) for chunk in uncut if chunk.request == place])


def test_one_that_is_cut_later_is_cut_from_there() -> None:
    lines = [book_line(number * 1000, number % 100, 1, "insert") for number in range(5000)]
    job = started(ReplaySpec([request("book_change")], "lines"), [[lines[:2500], lines[2500:]]])
    chunks: list[Chunk] = []
    while job.runnable:
        chunks += [output for output in job.step() if isinstance(output, Chunk)]
        if chunks:
            job.cut()
        job.grant(1)
    assert not chunks[0].moments
    assert all(chunk.moments for chunk in chunks[1:])
    whole = answer_to(ReplaySpec([request("book_change")], "lines"), [[lines]])
    assert b"".join([bytes(chunk.data) for chunk in chunks]) == whole


def test_each_moment_of_a_compressed_answer_can_be_read() -> None:
    lines = [book_line(number * 10, number, 1, "insert") for number in range(5)]
    spec = ReplaySpec([request("book_change")], "lines", "gzip", is_cut=True)
    chunks = chunks_of(spec, [[lines]])
    assert gzip.decompress(b"".join([bytes(chunk.data) for chunk in chunks])) == answer_to(
        replace(spec, compression=None), [[lines]]
    )


def books_after(lines: bytes, books: dict[str, Any] | None = None) -> dict[str, Any]:
    """Prices and amounts of each side, by what book changes say; a book without a snapshot is none."""
    books = {} if books is None else books
    for line in lines.splitlines():
        message = json.loads(line)
        if message["isSnapshot"]:
            books[message["symbol"]] = ({}, {})
        for side, name in enumerate(("bids", "asks")):
            if message["symbol"] in books:
                for level in message[name]:
                    books[message["symbol"]][side][level["price"]] = level["amount"]
    return {
        symbol: [{price: amount for price, amount in side.items() if amount} for side in sides] for symbol, sides in books.items()
    }


@settings(max_examples=60, deadline=None)
@given(recordings(), st.integers(0, 400_000), st.booleans())
def test_it_opens_with_the_books_as_of_then(recorded: list[list[bytes]], after_us: int, is_published: bool) -> None:
    whole = ReplaySpec([request("book_change")], "lines", publish=PUBLISH if is_published else None)
    opening_us = DAY_US + after_us
    outputs = outputs_of(started(replace(whole, is_cut=True, opening_us=opening_us), [recorded]))
    pieces = pieces_of([output for output in outputs if isinstance(output, Chunk)])
    everything = answer_to(whole, [recorded])
    assert books_after(b"".join([data for _, _, data, _ in pieces])) == books_after(everything)
    assert all(instant_us >= opening_us for instant_us, *_ in pieces)
    # What comes after the books is what would have come anyway.
    later = [line for line in everything.splitlines() if parse_timestamp_us(json.loads(line)["localTimestamp"]) >= opening_us]
    shown = [line for _, _, data, _ in pieces for line in data.splitlines()]
    opening = shown[: len(shown) - len(later)]
    assert shown[len(opening) :] == later
    assert all(json.loads(line)["isSnapshot"] for line in opening)
    if is_published:
        published = [event for output in outputs if isinstance(output, Events) for event in output.events]
        later_us = [parse_timestamp_us(json.loads(line)["localTimestamp"]) for line in later]
        changes_us = [event.local_ts_us for event in published if event.stream.payload_case == "book_change"]
        assert changes_us[len(changes_us) - len(later) :] == later_us
        assert all(instant_us < opening_us for instant_us in changes_us[: len(changes_us) - len(later)])


FAULTS = BadDay(seed=5, drop=0.2, duplicate=0.2, delay=0.2, delay_ms=1, disconnects_per_hour=60, disconnect_ms=2)


@settings(max_examples=40, deadline=None)
@given(recordings(), st.booleans(), st.sampled_from(["normalized", "raw"]))
def test_the_same_seed_gives_the_same_bytes(recorded: list[list[bytes]], is_cut: bool, kind: str) -> None:
    asked: Any = request("book_change") if kind == "normalized" else raw_request()
    spec = ReplaySpec([asked], "lines", faults=FAULTS)
    once = answer_to(spec, [recorded])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalized, "STEP_BYTES", 1_000_000)
        assert answer_to(replace(spec, is_cut=is_cut), [recorded]) == once


def test_clients_of_a_session_have_the_same_bad_day() -> None:
    lines = [book_line(number * 1_000_000, number % 100, 1, "insert") for number in range(599)]
    spec = ReplaySpec([raw_request(), raw_request()], "lines", faults=FAULTS)
    pieces = pieces_of(chunks_of(spec, [[lines], [lines]]))
    lost = [[piece[0] for piece in pieces if piece[1] == place and piece[2] == b"\n"] for place in (0, 1)]
    assert lost[0] == lost[1] != []
    assert pieces == pieces_of(chunks_of(replace(spec, is_cut=True), [[lines], [lines]]))


def test_what_is_published_suffers_only_where_that_is_asked_for() -> None:
    lines = [book_line(number * 1000, number % 100, 1, "insert") for number in range(200)]
    spec = ReplaySpec([request("book_change")], "lines", publish=PUBLISH)

    def published(faults: BadDay | None) -> list[int]:
        outputs = outputs_of(started(replace(spec, faults=faults), [[lines]]))
        return [event.local_ts_us for output in outputs if isinstance(output, Events) for event in output.events]

    faults = BadDay(seed=1, drop=0.5)
    assert published(faults) == published(None)
    assert len(published(replace(faults, published=True))) == len(answer_to(replace(spec, faults=faults), [[lines]]).splitlines())


@pytest.mark.parametrize("kind", ["normalized", "raw"])
def test_a_connection_that_is_closed_on_purpose_says_so_after_all_that_came_before(kind: str) -> None:
    asked: Any = request("book_change") if kind == "normalized" else raw_request()
    lines = [book_line(number * 1_000_000, number % 100, 1, "insert") for number in range(599)]
    spec = ReplaySpec([asked], "lines", faults=BadDay(seed=1, disconnects_per_hour=60, disconnect_closes=True))
    job = started(spec, [[lines]])
    outputs = []
    while job.runnable:
        outputs += job.step()
        job.grant(1)
    *chunks, failed = outputs
    assert isinstance(failed, Failed)
    assert "on purpose" in str(failed.error)
    sent = b"".join([bytes(chunk.data) for chunk in chunks if isinstance(chunk, Chunk)])
    everything = answer_to(replace(spec, faults=None), [[lines]])
    assert everything.startswith(sent)
    assert 0 < len(sent) < len(everything)
