"""The minutes of a recording: when they begin and end, and what says that nobody listened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tardis_machine.filters import Filter
from tardis_machine.history.recordings import RecordedFeed
from tardis_machine.realtime import recorder
from tardis_machine.realtime.clock import now_us, recorded_now
from tardis_machine.realtime.recorder import LineRecorder

START_US = 1_580_515_200_000_000
MINUTE_US = 60_000_000


def feed_in(folder: Path) -> RecordedFeed:
    return RecordedFeed(folder, "bitmex", (Filter("trade"),))


def line(minute: int, second: int = 1) -> bytes:
    return b"2020-02-01T00:%02d:%02d.0000000Z {}" % (minute, second)


async def test_minutes_follow_each_other_and_gaps_are_marked(tmp_path: Path) -> None:
    feed = feed_in(tmp_path)
    heard = LineRecorder([feed, feed])
    heard("bitmex", 0, [b"", line(0), line(0, 2)])
    heard("bitmex", 1, [line(0, 3), line(1), b"", line(1, 2)])
    heard("bitmex", 0, [line(4)])
    heard.close()
    await asyncio.sleep(0.1)
    minutes = [feed.read(START_US + minute * MINUTE_US) for minute in range(5)]
    assert minutes == [
        # What came before it began to listen, nobody knows.
        b"\n" + b"\n".join([line(0), line(0, 2), line(0, 3)]) + b"\n",
        b"\n".join([line(1), b"", line(1, 2)]) + b"\n",
        None,
        None,
        b"\n" + line(4) + b"\n\n",
    ]
    # It has let go.
    assert feed_in(tmp_path).claim()


async def test_silence_is_recorded_while_anyone_is_there_to_hear_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_GRACE_S", 0.0)
    feed = feed_in(tmp_path)
    heard = LineRecorder([feed])
    this_us = now_us() // MINUTE_US * MINUTE_US
    before = recorder.to_time(this_us - MINUTE_US)
    heard("bitmex", 0, [before + b" {}"])
    await asyncio.sleep(0.3)
    assert feed.read(this_us - MINUTE_US) == b"\n" + before + b" {}\n"
    assert feed.journals == [this_us]
    heard("bitmex", 0, [b""])
    assert recorded_now()
    heard.close()
    assert feed.read(this_us) == b"\n\n"


async def test_who_finds_another_recording_does_not(tmp_path: Path) -> None:
    first, second = feed_in(tmp_path), feed_in(tmp_path)
    heard, not_heard = LineRecorder([first]), LineRecorder([second])
    heard("bitmex", 0, [line(0)])
    not_heard("bitmex", 0, [line(0, 30)])
    heard("bitmex", 0, [line(0, 40)])
    heard.close()
    # From the next minute on it may.
    not_heard("bitmex", 0, [line(0, 50), line(1)])
    not_heard.close()
    assert first.read(START_US) == b"\n" + line(0) + b"\n" + line(0, 40) + b"\n\n"
    assert first.read(START_US + MINUTE_US) == b"\n" + line(1) + b"\n\n"


async def test_a_disk_that_fails_is_told_and_marked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    feed = feed_in(tmp_path)
    heard = LineRecorder([feed])
    heard("bitmex", 0, [line(0)])
    full = feed.folder / f"{START_US + MINUTE_US}.journal"
    full.symlink_to("/dev/full")
    heard("bitmex", 0, [line(1)])
    full.unlink()
    full.touch()
    heard("bitmex", 0, [line(1, 2), line(2)])
    heard.close()
    await asyncio.sleep(0.1)
    assert feed.read(START_US) == b"\n" + line(0) + b"\n"
    assert feed.read(START_US + MINUTE_US) == b"\n"
    assert feed.read(START_US + 2 * MINUTE_US) == line(2) + b"\n\n"
    assert "a recorded minute can't be written" in caplog.text
