"""The layout on disk that other clients share, and what keeps it sound."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tardis_machine.errors import CacheError, OptionsError
from tardis_machine.filters import Filter, optimize_filters
from tardis_machine.history.cache import CachedFile, FeedCache, clear_cache
from tardis_machine.history.slice import MINUTE_US

HOUR_US = 1_559_347_200_000_000  # 2019-06-01T00Z
START_US = HOUR_US + 3 * MINUTE_US


def cache_of(folder: Path, *filters: Filter) -> FeedCache:
    return FeedCache(folder, "bitmex", tuple(optimize_filters(filters)))


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_writes_where_the_other_clients_look(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, Filter("trade", ["XBTUSD", "ETHUSD", "XBTUSD"]), Filter("orderBookL2", ["XBTUSD"]))
    filters = '[{"channel":"orderBookL2","symbols":["XBTUSD"]},{"channel":"trade","symbols":["ETHUSD","XBTUSD"]}]'
    folder = tmp_path / "feeds" / "bitmex" / sha256(filters) / "2019" / "06" / "01" / "00"
    assert cache.store(START_US, 1, "zst", b"one") == str(folder / "03.json.zst")
    assert cache.store(START_US, 10, "gz", b"ten") == str(folder / "03.size-10.json.gz")
    assert (folder / "03.json.zst").read_bytes() == b"one"
    assert (folder / "03.size-10.json.gz").read_bytes() == b"ten"
    assert len(list(folder.iterdir())) == 2


def test_no_filters_hash_as_an_empty_list(tmp_path: Path) -> None:
    path = cache_of(tmp_path).store(START_US, 1, "gz", b"x")
    assert "/bitmex/4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945/" in path


@pytest.mark.parametrize(
    ("filters", "spelling"),
    [
        ([Filter("trade")], '[{"channel":"trade"}]'),
        ([Filter("trade")], '[{"channel":"trade","symbols":null}]'),
        ([Filter("trade", ["币安人生USDT"])], '[{"channel":"trade","symbols":["币安人生USDT"]}]'),
        ([Filter("trade", ["币USDT"])], '[{"channel":"trade","symbols":["\\u5e01USDT"]}]'),
    ],
)
def test_finds_what_the_node_and_the_python_client_wrote(tmp_path: Path, filters: list[Filter], spelling: str) -> None:
    path = tmp_path / "feeds" / "bitmex" / sha256(spelling) / "2019" / "06" / "01" / "00" / "03.size-2.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    cache = cache_of(tmp_path, *filters)
    assert cache.find(START_US, 2) == CachedFile(START_US, 2, "gz", str(path))
    assert cache.list_hour(HOUR_US) == [CachedFile(START_US, 2, "gz", str(path))]


def test_prefers_zst(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    assert cache.find(START_US, 1) is None
    gz = cache.store(START_US, 1, "gz", b"x")
    assert cache.find(START_US, 1) == CachedFile(START_US, 1, "gz", gz)
    zst = cache.store(START_US, 1, "zst", b"x")
    assert cache.find(START_US, 1) == CachedFile(START_US, 1, "zst", zst)


def test_ignores_what_crashed_processes_left(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    folder = Path(cache.store(START_US, 1, "gz", b"x")).parent
    for name in (
        "03.json.gz0011223344556677.unconfirmed",
        "04.json.zst.00112233.unconfirmed",
        "04.json",
        "04.size-0.json.gz",
        "04.size-x.json.gz",
        "60.json.gz",
        "4.json.gz",
        "04.json.gz.bak",
        ".04.json.gz",
    ):
        (folder / name).write_bytes(b"y")
    assert [file.start_us for file in cache.list_hour(HOUR_US)] == [START_US]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    folder = Path(cache.store(START_US, 1, "gz", b"x")).parent
    (folder / "04.json.gz").mkdir()
    with pytest.raises(OSError, match="directory"):
        cache.store(START_US + MINUTE_US, 1, "gz", b"x")
    assert sorted(file.name for file in folder.iterdir()) == ["03.json.gz", "04.json.gz"]


def test_what_can_not_be_read_is_not_cached(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = cache_of(tmp_path / "file" / "cache")
    assert cache.find(START_US, 1) is None
    assert cache.list_hour(HOUR_US) == []
    with pytest.raises(OSError, match="Not a directory"):
        cache.store(START_US, 1, "gz", b"x")


def test_removing_takes_empty_folders_along_but_nothing_else(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    first = cache.store(START_US, 1, "gz", b"x")
    second = cache.store(START_US + 24 * 60 * MINUTE_US, 1, "gz", b"x")
    cache.remove(first, first)
    assert not Path(first).parent.parent.exists()
    assert Path(second).exists()
    cache.remove(second)
    assert list((tmp_path / "feeds").iterdir()) == []


def test_writing_and_cleaning_up_at_once(tmp_path: Path) -> None:
    """Folders that one clean-up removes as they are empty come back for the next file."""

    def write_and_clean_up(minute: int) -> None:
        cache = cache_of(tmp_path)
        for _ in range(150):
            path = cache.store(START_US + minute * MINUTE_US, 1, "gz", b"x")
            assert Path(path).read_bytes() == b"x"
            cache.remove(path)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write_and_clean_up, range(2)))
    assert list((tmp_path / "feeds").iterdir()) == []


@pytest.mark.parametrize("exchange", ["", "..", "../bitmex", "bit/mex", "Bitmex", "bitmex\n", "bitmex%2f", "bit mex", "bitméx"])
def test_an_exchange_can_not_leave_its_folder(tmp_path: Path, exchange: str) -> None:
    with pytest.raises(OptionsError, match="exchange: expected") as caught:
        FeedCache(tmp_path, exchange, ())
    assert caught.value.field == "exchange"


def test_clearing_empties_feeds_only(tmp_path: Path) -> None:
    clear_cache(tmp_path)
    cache_of(tmp_path).store(START_US, 1, "gz", b"x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x")
    (tmp_path / "datasets").mkdir()
    (tmp_path / "feeds" / "link").symlink_to(outside)
    (tmp_path / "feeds" / "stray").write_bytes(b"x")
    clear_cache(tmp_path)
    assert list((tmp_path / "feeds").iterdir()) == []
    assert (outside / "kept").exists()
    assert (tmp_path / "datasets").exists()


def test_clearing_what_is_no_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "feeds").write_bytes(b"")
    with pytest.raises(CacheError, match=r"the cache in .*feeds can't be cleared: Not a directory"):
        clear_cache(tmp_path)


def test_clearing_does_not_follow_a_link_in_the_place_of_the_cache(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "kept").write_bytes(b"x")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "feeds").symlink_to(outside)
    with pytest.raises(CacheError, match=r"cache/feeds can't be cleared: it is a link, and links are not followed"):
        clear_cache(tmp_path / "cache")
    assert sorted(path.name for path in outside.iterdir()) == ["folder", "kept"]


def test_clearing_does_not_follow_a_link_deep_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x")
    stored = Path(cache_of(tmp_path).store(START_US, 1, "gz", b"x"))
    (stored.parent / "link").symlink_to(outside)
    clear_cache(tmp_path)
    assert list((tmp_path / "feeds").iterdir()) == []
    assert (outside / "kept").exists()


def test_what_is_made_is_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache_dir = tmp_path / "new" / "cache"
        stored = Path(cache_of(cache_dir).store(START_US, 1, "gz", b"x"))
    finally:
        os.umask(before)
    assert stored.stat().st_mode & 0o777 == 0o600
    made = [folder for folder in stored.parents if folder.is_relative_to(tmp_path / "new")]
    assert len(made) == 9
    assert {folder.stat().st_mode & 0o777 for folder in made} == {0o700}
