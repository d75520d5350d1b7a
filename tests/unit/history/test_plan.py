"""A range cut into cached and missing pieces."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.history.cache import CachedFile, FeedCache
from tardis_machine.history.plan import Plan, PlannedSlice
from tardis_machine.history.slice import MINUTE_US, Encoding

START_US = 1_559_347_200_000_000 + 30 * MINUTE_US  # 2019-06-01T00:30Z


class ListedCache(FeedCache):
    """A cache whose folders hold what a test says."""

    def __init__(self, *files: tuple[int, int, Encoding]) -> None:
        super().__init__(Path("/nowhere"), "bitmex", ())
        self.files = [
            CachedFile(START_US + at * MINUTE_US, size, encoding, f"{at}+{size}.{encoding}") for at, size, encoding in files
        ]
        self.listings: list[int] = []

    def list_hour(self, hour_us: int) -> list[CachedFile]:
        self.listings.append(hour_us)
        return [file for file in self.files if hour_us <= file.start_us < hour_us + 60 * MINUTE_US]


def shown(pieces: list[PlannedSlice]) -> list[tuple[int, int, str | None]]:
    return [
        ((piece.start_us - START_US) // MINUTE_US, piece.minutes, piece.file.path if piece.file else None) for piece in pieces
    ]


def planned(cache: FeedCache, minutes: int, fetch_minutes: int = 1) -> list[tuple[int, int, str | None]]:
    return shown(Plan(cache, START_US, START_US + minutes * MINUTE_US).take(1_000_000, fetch_minutes))


def test_an_empty_cache_is_fetched_in_slices_of_the_asked_size() -> None:
    assert planned(ListedCache(), 3) == [(0, 1, None), (1, 1, None), (2, 1, None)]
    assert planned(ListedCache(), 7, 3) == [(0, 3, None), (3, 3, None), (6, 1, None)]
    assert planned(ListedCache(), 0) == []


def test_files_of_any_size_are_used_and_gaps_between_them_fetched() -> None:
    cache = ListedCache((0, 1, "gz"), (1, 5, "zst"), (9, 2, "gz"))
    assert planned(cache, 12, 10) == [(0, 1, "0+1.gz"), (1, 5, "1+5.zst"), (6, 3, None), (9, 2, "9+2.gz"), (11, 1, None)]


def test_a_file_is_cut_where_the_range_begins_or_ends_inside_of_it() -> None:
    assert planned(ListedCache((-3, 5, "zst"), (4, 10, "zst")), 6) == [
        (0, 2, "-3+5.zst"),
        (2, 1, None),
        (3, 1, None),
        (4, 2, "4+10.zst"),
    ]


def test_prefers_whole_files_then_zst_then_long_ones() -> None:
    assert planned(ListedCache((0, 1, "gz"), (0, 1, "zst")), 1) == [(0, 1, "0+1.zst")]
    assert planned(ListedCache((0, 1, "zst"), (0, 2, "zst"), (0, 5, "zst")), 2) == [(0, 2, "0+2.zst")]
    assert planned(ListedCache((-1, 3, "zst"), (0, 1, "gz"), (1, 1, "gz")), 2) == [(0, 1, "0+1.gz"), (1, 1, "1+1.gz")]


def test_a_file_reaches_over_the_hour() -> None:
    assert planned(ListedCache((28, 10, "zst")), 40, 60) == [(0, 28, None), (28, 10, "28+10.zst"), (38, 2, None)]


def test_is_taken_in_parts_and_lists_each_folder_once() -> None:
    cache = ListedCache()
    plan = Plan(cache, START_US, START_US + 3 * 60 * MINUTE_US)
    pieces = []
    while not plan.done:
        taken = plan.take(7, 4)
        assert len(taken) <= 7
        pieces += taken
    assert [piece.start_us for piece in pieces] == list(range(START_US, START_US + 180 * MINUTE_US, 4 * MINUTE_US))
    assert plan.take(7, 4) == []
    assert len(cache.listings) == len(set(cache.listings)) == 5


sizes = st.tuples(st.integers(-70, 130), st.integers(1, 12), st.sampled_from(["zst", "gz"]))


@given(st.lists(sizes, max_size=40), st.integers(0, 120), st.integers(1, 10), st.integers(1, 9))
def test_pieces_cover_the_range_once_each(files: list[tuple[int, int, Encoding]], minutes: int, fetch: int, count: int) -> None:
    plan = Plan(ListedCache(*files), START_US, START_US + minutes * MINUTE_US)
    cursor_us = START_US
    while not plan.done:
        for piece in plan.take(count, fetch):
            assert piece.start_us == cursor_us
            assert piece.minutes >= 1
            cursor_us = piece.end_us
            if piece.file:
                assert piece.file.start_us <= piece.start_us
                assert piece.end_us <= piece.file.end_us
            else:
                assert piece.minutes <= fetch
    assert cursor_us == START_US + minutes * MINUTE_US
