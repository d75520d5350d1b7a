"""Recorded minutes on disk: journals, what a dead process leaves, and one that writes at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tardis_machine.errors import SliceError
from tardis_machine.filters import Filter
from tardis_machine.history.recordings import RecordedFeed, find_feeds, recorded_exchanges, recover_journals

START_US = 1_580_515_200_000_000
FILTERS = (Filter("trade", ["XBTUSD"]),)
LINE = b"2020-02-01T00:00:01.0000000Z {}\n"
LATER = b"2020-02-01T00:00:02.0000000Z {}\n"


@pytest.fixture
def feed(tmp_path: Path) -> RecordedFeed:
    feed = RecordedFeed(tmp_path, "bitmex", FILTERS)
    assert feed.claim()
    return feed


def test_a_minute_is_there_when_it_is_whole(feed: RecordedFeed, tmp_path: Path) -> None:
    feed.append(START_US, LINE)
    feed.append(START_US, LATER)
    assert feed.read(START_US) is None
    feed.seal(START_US)
    assert feed.read(START_US) == LINE + LATER
    assert feed.first_us == START_US
    assert feed.journals == []
    assert recorded_exchanges(tmp_path) == ["bitmex"]
    [found] = find_feeds(tmp_path, "bitmex")
    assert (found.filters, found.read(START_US)) == (FILTERS, LINE + LATER)
    assert {file.stat().st_mode & 0o077 for file in feed.folder.rglob("*")} == {0}


def test_one_at_a_time_writes(feed: RecordedFeed, tmp_path: Path) -> None:
    other = RecordedFeed(tmp_path, "bitmex", FILTERS)
    assert not other.claim()
    feed.append(START_US, LINE)
    assert recover_journals(tmp_path) == []
    feed.release()
    assert recover_journals(tmp_path) == ["bitmex 2020-02-01T00:00Z"]
    assert other.read(START_US) == LINE + b"\n"
    assert other.claim()


def test_what_a_dead_process_left_torn_is_cut_off_and_marked(feed: RecordedFeed, tmp_path: Path) -> None:
    feed.append(START_US, LINE + LATER[:-3])
    feed.release()
    assert feed.claim()
    assert feed.read(START_US) == LINE + b"\n"
    # It goes on within the minute.
    feed.append(START_US, b"\n" + LATER)
    feed.seal(START_US)
    assert feed.read(START_US) == LINE + b"\n" + LATER
    # It died after the minute was written, and before its journal was gone.
    feed.append(START_US, LATER)
    feed.release()
    assert feed.claim()
    assert feed.read(START_US) == LINE + b"\n" + LATER


def test_a_minute_that_can_not_be_read_is_an_error_and_makes_room_for_the_next(feed: RecordedFeed) -> None:
    feed.append(START_US, LINE)
    feed.seal(START_US)
    [file] = feed.folder.rglob("*.json.zst")
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(SliceError, match=r"bitmex 2020-02-01T00:00Z is truncated"):
        feed.read(START_US)
    feed.append(START_US, LATER)
    feed.seal(START_US)
    assert feed.read(START_US) == LATER


def test_a_full_disk_leaves_whole_lines_and_says_that_some_are_missing(feed: RecordedFeed) -> None:
    feed.append(START_US, LINE)
    full = feed.folder / f"{START_US + 60_000_000}.journal"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        feed.append(START_US + 60_000_000, LINE)
    full.unlink()
    feed.seal(START_US, is_cut=True)
    assert feed.read(START_US) == LINE + b"\n"
