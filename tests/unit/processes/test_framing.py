"""What crosses between the server and its children is the same on the other side, however the bytes come."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.processes.child_log import Logged, write_log
from tardis_machine.processes.framing import (
    HEADER,
    NO_JOB,
    parse_log,
    parse_output,
    take_commands,
    to_command,
    to_frame,
    to_log_frame,
)
from tardis_machine.processes.jobs.contract import Chunk, Done, SliceOpened

COMMANDS = [(1, "start", ("spec",)), (2, "grant", (1,)), (2**40, "cancel", ())]


@given(st.lists(st.sampled_from(COMMANDS)), st.integers(1, 50))
def test_commands_are_taken_when_they_are_whole(commands: list[tuple[int, str, tuple[object, ...]]], size: int) -> None:
    data = b"".join([to_command(*command) for command in commands])
    received, taken = bytearray(), []
    for start in range(0, len(data), size):
        received += data[start : start + size]
        taken += take_commands(received)
    assert taken == commands
    assert not received


@pytest.mark.parametrize(
    "output",
    [
        Chunk(b"abc", 3, 2, 1_580_515_200_000_000),
        Chunk(b"", 7),
        Chunk(b"abc", 3, 0, 1, marks=b"marks"),
        Chunk(b"abc", 3, 0, 1, moments=[(1, 3, 3, 0)]),
        SliceOpened(1),
        Done(),
    ],
)
def test_outputs(output: Chunk | SliceOpened | Done) -> None:
    frame = to_frame(5, output)
    job, kind, size = HEADER.unpack_from(frame)
    assert (job, size) == (5, len(frame) - HEADER.size)
    assert parse_output(kind, bytearray(frame[HEADER.size :])) == output


def test_log_lines_are_of_no_job_and_written_as_they_were_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tardis_machine")
    frame = to_log_frame(Logged("tardis_machine.realtime", logging.WARNING, "connection lost", {"exchange": "bitmex"}))
    assert HEADER.unpack_from(frame)[0] == NO_JOB
    write_log(parse_log(bytearray(frame[HEADER.size :])))
    [record] = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("tardis_machine.realtime", "WARNING", "connection lost")
    assert record.__dict__["fields"] == {"exchange": "bitmex"}
