"""Replays have whole windows while memory lasts, and one chunk each when it does not."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tardis_machine.processes.chunk_windows import ChunkWindow, ChunkWindows
from tardis_machine.processes.jobs.contract import CHUNK_BYTES, CHUNK_WINDOW, PublishSpec, ReplaySpec

PUBLISH = PublishSpec("s-1", "replay", {}, "tardis-machine/test")


@pytest.mark.parametrize(("publish", "chunk_bytes"), [(None, CHUNK_BYTES), (PUBLISH, 2 * CHUNK_BYTES)])
def test_all_windows_together_are_bounded(publish: PublishSpec | None, chunk_bytes: int) -> None:
    windows = ChunkWindows(5 * chunk_bytes)
    spec = ReplaySpec([], "lines", publish=publish)
    with ExitStack() as stack:
        opened = [stack.enter_context(ChunkWindow(windows, spec)) for _ in range(40)]
        assert [window.chunks for window in opened] == [CHUNK_WINDOW, 3, *[1] * 38]
        assert opened[-1].grow() == 0
    with ChunkWindow(windows, spec) as window:
        assert window.chunks == CHUNK_WINDOW, "what is over gives back what it had"


def test_who_began_with_little_grows_when_others_end() -> None:
    windows = ChunkWindows(3 * CHUNK_BYTES)
    spec = ReplaySpec([], "lines")
    early = ExitStack()
    early.enter_context(ChunkWindow(windows, spec))
    with ChunkWindow(windows, spec) as late:
        assert (late.chunks, late.grow()) == (1, 0)
        early.close()
        assert [late.grow() for _ in range(4)] == [1, 1, 1, 0]
        assert late.chunks == CHUNK_WINDOW


def test_without_a_bound_every_window_is_whole() -> None:
    windows = ChunkWindows(None)
    with ExitStack() as stack:
        opened = [stack.enter_context(ChunkWindow(windows, ReplaySpec([], "lines"))) for _ in range(1000)]
    assert {window.chunks for window in opened} == {CHUNK_WINDOW}
