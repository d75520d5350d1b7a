"""Finished bytes: lines and frames as clients read them."""

from __future__ import annotations

import json

import pytest

from tardis_machine.messages import Disconnect, to_json
from tardis_machine.pipeline.frames import to_json_frames, to_raw_frames, to_raw_lines, to_text_frames

AT = b"2020-01-01T00:00:01.0020039Z"


def read_frames(data: bytes) -> list[bytes]:
    """An independent reading of RFC 6455's framing."""
    payloads = []
    while data:
        assert data[0] == 0x81
        size, head = data[1], 2
        if size == 126:
            size, head = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, head = int.from_bytes(data[2:10], "big"), 10
        payloads.append(data[head : head + size])
        data = data[head + size :]
    return payloads


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 100_000])
def test_a_frame_of_any_size_reads_back(size: int) -> None:
    assert read_frames(to_text_frames([b"x" * size] * 2)) == [b"x" * size] * 2


def test_raw_lines_wrap_the_message_untouched_and_show_disconnects_as_empty_lines() -> None:
    lines = [AT + b' {"a": 1.0}', b"", AT + b" [2]"]
    first, second, third = to_raw_lines(lines).split(b"\n")[:-1]
    assert first == b'{"localTimestamp":"2020-01-01T00:00:01.0020039Z","message":{"a": 1.0}}'
    assert second == b""
    assert json.loads(third)["message"] == [2]
    assert to_raw_lines(lines[:1]) == first + b"\n"


def test_raw_frames_are_the_messages_alone() -> None:
    assert read_frames(to_raw_frames([AT + b' {"a": 1.0}', b"", AT + b" [2]"])) == [b'{"a": 1.0}', b"[2]"]


def test_normalized_frames_are_the_messages_json() -> None:
    messages = [Disconnect("bitmex", "2020-01-01T00:00:01.002Z"), Disconnect("x", "2020-01-01T00:00:01.002Z", ["y" * 200])]
    assert read_frames(to_json_frames(messages)) == [to_json(message) for message in messages]
