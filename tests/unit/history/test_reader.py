"""Slices read whole or refused; lines cut by time."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.errors import SliceError
from tardis_machine.history.reader import (
    check_lines,
    decompress,
    fits,
    lines_between,
    load_slice,
    read_lines,
    read_slice,
    split_lines,
)
from tardis_machine.history.slice import MINUTE_US, Encoding, Slice
from tardis_machine.recorded_line import Lines, to_time

START_US = 1_559_347_200_000_000  # 2019-06-01T00:00Z
DATA = b"".join(to_time(START_US + n * 1_000_000) + b' {"n":%d,"pad":"%s"}\n' % (n, b"x" * (n * 37 % 500)) for n in range(60))


def zst(data: bytes, frames: int = 1) -> bytes:
    step = -(-len(data) // frames) or 1
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    return b"".join(compressor.compress(data[at : at + step]) for at in range(0, max(len(data), 1), step))


def gz(data: bytes, members: int = 1) -> bytes:
    step = -(-len(data) // members) or 1
    return b"".join(gzip.compress(data[at : at + step]) for at in range(0, max(len(data), 1), step))


def streamed_zst(data: bytes) -> bytes:
    """As a server writes it that does not know the size beforehand."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


def in_memory(data: bytes, encoding: Encoding, minutes: int = 1, partial: bool = False) -> Slice:
    return Slice("bitmex", START_US, minutes, None, data, encoding, (), partial)


WHOLE: list[tuple[bytes, Encoding]] = [
    (zst(DATA), "zst"),
    (zst(DATA, 7), "zst"),
    (zst(DATA, 600), "zst"),
    (streamed_zst(DATA), "zst"),
    (b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip" + zst(DATA, 2), "zst"),
    (gz(DATA), "gz"),
    (gz(DATA, 5), "gz"),
]


@pytest.mark.parametrize(("data", "encoding"), WHOLE)
def test_reads_every_frame_and_member(data: bytes, encoding: Encoding) -> None:
    assert read_slice(in_memory(data, encoding)) == DATA


@pytest.mark.parametrize(("data", "encoding"), [WHOLE[0], WHOLE[3], WHOLE[5]])
def test_refuses_data_cut_at_any_length(data: bytes, encoding: Encoding) -> None:
    for length in range(len(data)):
        with pytest.raises(SliceError, match=r"slice bitmex 2019-06-01T00:00Z is truncated"):
            decompress(data[:length], encoding, "bitmex 2019-06-01T00:00Z")


@pytest.mark.parametrize(("compress", "encoding"), [(zst, "zst"), (gz, "gz")])
def test_refuses_data_cut_inside_of_a_later_frame_or_member(compress: Callable[[bytes], bytes], encoding: Encoding) -> None:
    first, second = compress(DATA[:1000]), compress(DATA[1000:])
    for length in range(1, len(second)):
        with pytest.raises(SliceError, match=r"truncated"):
            decompress(first + second[:length], encoding, "bitmex 2019-06-01T00:00Z")


@given(st.binary(max_size=400), st.sampled_from(["zst", "gz"]))
def test_refuses_garbage_with_one_kind_of_error(data: bytes, encoding: Encoding) -> None:
    with pytest.raises(SliceError):
        read_slice(in_memory(data, encoding))


@given(st.sampled_from([WHOLE[1], WHOLE[6]]), st.data())
def test_a_flipped_byte_is_found_by_the_checksum(whole: tuple[bytes, Encoding], draw: st.DataObject) -> None:
    data, encoding = bytearray(whole[0]), whole[1]
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= draw.draw(st.integers(1, 255))
    with suppress(SliceError):
        # Headers have bits that say nothing of the data.
        assert read_slice(in_memory(bytes(data), encoding)) == DATA


@pytest.mark.parametrize(
    "text", [b'{"code":100,"message":"no"}', b"<html>oops</html>\n", b"2019-06-01T00:00:28.619Z {}\n", DATA + b"x"]
)
def test_refuses_what_is_not_recorded_lines(text: bytes) -> None:
    with pytest.raises(SliceError, match=r"bitmex 2019-06-01T00:00Z is corrupt: a line begins with b"):
        read_slice(in_memory(zst(text), "zst"))


@pytest.mark.parametrize("text", [b"", b"\n", b"\n\n\n", b"\n" + DATA + b"\n\n", DATA.rstrip(b"\n")])
def test_takes_empty_minutes_empty_lines_and_a_last_line_without_newline(text: bytes) -> None:
    check_lines(text, "bitmex 2019-06-01T00:00Z")
    assert read_slice(in_memory(gz(text), "gz")) == text


def test_split_keeps_empty_lines_and_a_last_line_without_newline() -> None:
    assert split_lines(b"") == []
    assert split_lines(b"\n") == [b""]
    assert split_lines(b"a\n\nb\n") == [b"a", b"", b"b"]
    assert split_lines(b"a\n\nb") == [b"a", b"", b"b"]
    assert split_lines(b"a\n\n") == [b"a", b""]


def test_reads_from_disk_and_says_where_it_can_not(tmp_path: Path) -> None:
    path = tmp_path / "00.json.zst"
    path.write_bytes(zst(DATA))
    item = Slice("bitmex", START_US, 1, str(path), None, "zst")
    assert read_lines(item) == split_lines(DATA)
    loaded = load_slice(item)
    path.unlink()
    assert (loaded.path, read_slice(loaded)) == (None, DATA)
    with pytest.raises(SliceError, match=r"slice bitmex 2019-06-01T00:00Z can't be read from .*00\.json\.zst: No such file"):
        read_slice(item)
    path.write_bytes(b"")
    with pytest.raises(SliceError, match="it is empty"):
        load_slice(item)


def test_a_partial_slice_is_cut_to_its_minutes() -> None:
    two = DATA + DATA.replace(b"T00:00:", b"T00:01:").rstrip(b"\n")
    assert read_slice(in_memory(zst(two), "zst", partial=True)) == DATA
    second = Slice("bitmex", START_US + MINUTE_US, 1, None, zst(two), "zst", (), partial=True)
    assert read_slice(second) == DATA.replace(b"T00:00:", b"T00:01:")
    assert read_slice(in_memory(zst(two), "zst", minutes=2)) == two


def line(second: float) -> bytes:
    return to_time(START_US + int(second * 1e6)) + b" {}"


def between(lines: list[bytes], low: float, high: float) -> list[bytes]:
    bounds = START_US + int(low * 1e6), START_US + int(high * 1e6)
    kept = lines_between(lines, *bounds)
    # In one piece they are cut at the same places.
    joined = b"".join(each + b"\n" for each in lines)
    assert lines_between(Lines(b"before\n" + joined, 7), *bounds) == kept
    return kept


def test_cuts_by_time_from_inclusive_to_exclusive() -> None:
    lines = [line(n) for n in range(60)]
    assert between(lines, 40, 50) == lines[40:50]
    assert between(lines, 39.000001, 50.000001) == lines[40:51]
    assert between(lines, 0, 60) is lines
    assert between(lines, -5, 600) is lines
    assert between(lines, 70, 80) == []
    assert between(lines, -10, 0) == []
    assert between(lines, 30.5, 30.6) == []
    assert between([], 0, 60) == []


def test_the_seventh_digit_counts() -> None:
    lines = [b"2019-06-01T00:00:10.0000000Z {}", b"2019-06-01T00:00:10.0000009Z {}", b"2019-06-01T00:00:10.0000010Z {}"]
    assert between(lines, 10, 10.000001) == lines[:2]


def test_an_empty_line_goes_with_the_line_before_it() -> None:
    lines = [b"", line(1), b"", line(2), b"", b"", line(3), b""]
    assert between(lines, 0, 60) is lines
    assert between(lines, 2, 3) == [line(2), b"", b""]
    assert between(lines, 2, 60) == [line(2), b"", b"", line(3), b""]
    assert between(lines, 0, 2) == [b"", line(1), b""]
    assert between([b"", b""], 0, 60) == [b"", b""]


@given(st.lists(st.one_of(st.none(), st.integers(0, 59)), max_size=30), st.integers(-5, 65), st.integers(0, 70))
def test_cuts_as_a_plain_filter_does(seconds: list[int | None], low: int, length: int) -> None:
    times = iter(sorted(second for second in seconds if second is not None))
    lines = [b"" if second is None else line(next(times)) for second in seconds]
    expected = [item for item in lines if item and line(low)[:28] <= item[:28] < line(low + length)[:28]]
    assert [item for item in between(lines, low, low + length) if item] == expected


def test_fits_looks_at_both_ends() -> None:
    assert fits(DATA, START_US, START_US + MINUTE_US)
    assert fits(b"\n\n", START_US, START_US + MINUTE_US)
    assert not fits(DATA, START_US + 1, START_US + MINUTE_US)
    assert not fits(DATA, START_US, START_US + 59_000_000)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that Python's own allocations took meanwhile."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["zst", "gz"])
@pytest.mark.parametrize("frames", [1, 50])
def test_data_that_grow_beyond_the_limit_are_given_up_early(encoding: Encoding, frames: int) -> None:
    part = bytes(200_000_000 // frames)
    packed = (zstandard.ZstdCompressor().compress(part) if encoding == "zst" else gzip.compress(part, 9)) * frames

    def unpack() -> None:
        with pytest.raises(SliceError, match=rf"slice s is too large: its {len(packed)} bytes become more than 65536"):
            decompress(packed, encoding, "s", 65_536)

    assert peak_bytes(unpack) < 10_000_000


@pytest.mark.parametrize(("packed", "encoding"), WHOLE)
def test_the_limit_is_what_comes_out(packed: bytes, encoding: Encoding) -> None:
    size = len(decompress(packed, encoding, "s"))
    assert len(decompress(packed, encoding, "s", size)) == size
    with pytest.raises(SliceError, match="too large"):
        decompress(packed, encoding, "s", size - 1)
