"""The spool: order, bounds, acknowledgement, and what is left of it after damage, tearing and death."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tardis_machine.bronze.event import Event
from tardis_machine.errors import SettingsError, TransientDeliveryError
from tardis_machine.eventbus.spool import Recovered, Spool, SpoolGroup
from tests.unit.eventbus.events import make_events, make_stream
from tests.unit.synced_disk import Disk

MIB = 1024**2
TRADES = make_stream("XBTUSD", "trade", note="x")
BOOKS = make_stream("ETHUSD", "book_change")


def opened(folder: Path, **options: object) -> tuple[Spool, Recovered]:
    spool = Spool(folder, **{"max_bytes": 100 * MIB, "sync": False, **options})  # type: ignore[arg-type]
    spool.lock()
    return spool, spool.open()


def read_all(spool: Spool, window: int = 64 * 1024) -> list[SpoolGroup]:
    groups: list[SpoolGroup] = []
    while True:
        found, lost, _ = spool.read(window)
        assert lost == 0
        if not found:
            return groups
        groups += found


def events_of(groups: list[SpoolGroup]) -> list[Event]:
    return [event for group in groups for event in group.events]


def test_events_come_back_as_they_were_and_in_order(tmp_path: Path) -> None:
    spool, recovered = opened(tmp_path)
    assert recovered == Recovered(0, [])
    first, second = make_events(TRADES, 1500), make_events(BOOKS, 10, size=0)
    spool.append([(first, 11), (second, 12)])
    groups = read_all(spool, MIB)
    assert events_of(groups) == first + second
    assert len(groups[0].events) == 1000
    assert groups[0].accepted_us == 11
    assert groups[0].events[0].stream == TRADES
    spool.close()


@pytest.mark.parametrize("sync", [True, False])
def test_what_is_written_ahead_is_on_the_disk_itself_when_append_returns(tmp_path: Path, sync: bool) -> None:
    spool, _ = opened(tmp_path, sync=sync)
    spool.append([(make_events(TRADES, 3), 0)])
    [segment] = [name for name in Path("/proc/self/fd").iterdir() if name.resolve().parent == tmp_path and name.resolve().suffix]
    assert bool(fcntl.fcntl(int(segment.name), fcntl.F_GETFL) & os.O_DSYNC) is sync
    spool.close()


def test_what_was_not_acknowledged_is_found_again(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    events = make_events(TRADES, 300)
    spans = spool.append([(events[:100], 1), (events[100:200], 2), (events[200:], 3)])
    spool.ack([spans[2], spans[0]])
    spool.close()
    again, recovered = opened(tmp_path)
    # The last group was acknowledged too, but the one before it was not: at least once.
    assert recovered.events == 200
    assert events_of(read_all(again)) == events[100:]
    again.close()


def test_a_segment_that_is_done_with_is_removed(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path, segment_bytes=10_000)
    spans = [span for _ in range(5) for span in spool.append([(make_events(TRADES, 100), 0)])]
    assert len(list(tmp_path.glob("*.spool"))) == 5
    before = spool.size_bytes
    spool.ack(spans[1:3])
    assert spool.persist() == before - sum((tmp_path / f"{n:012d}.spool").stat().st_size for n in (2, 8, 10))
    assert sorted(path.name for path in tmp_path.glob("*.spool")) == [f"{n:012d}.spool" for n in (2, 8, 10)]
    spool.ack([spans[0], *spans[3:]])
    spool.persist()
    assert spool.size_bytes == 0
    assert not list(tmp_path.glob("*.spool"))
    spool.close()


def test_what_is_in_memory_too_is_not_read_back(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    (span,) = spool.append([(make_events(TRADES, 10), 0)])
    spool.skip([span])
    later = make_events(TRADES, 5, first=10)
    spool.append([(later, 0)])
    assert events_of(read_all(spool)) == later
    spool.close()


def test_a_session_end_is_read_by_itself(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    end = make_stream("", "session_end")
    events = [*make_events(TRADES, 3), *make_events(end, 1), *make_events(BOOKS, 2), *make_events(end, 2)]
    spool.append([(events, 0)])
    groups = read_all(spool)
    assert [len(group.events) for group in groups] == [3, 1, 2, 1, 1]
    assert events_of(groups) == events
    spool.ack(group.span for group in groups)
    spool.persist()
    assert spool.size_bytes == 0
    spool.close()


def test_a_shutdown_puts_what_was_in_memory_at_its_place(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    oldest, old, new, newest = (make_events(TRADES, 2, first=10 * n) for n in range(4))
    spool.append([(old, 0)], in_new_segment=True)
    between = spool.last_segment
    spool.append([(newest, 0)], in_new_segment=True)
    spool.insert(between, [(new, 0)])
    spool.insert(0, [(oldest, 0)])
    last = make_events(TRADES, 2, first=100)
    spool.insert(None, [(last, 0)])
    spool.close()
    again, recovered = opened(tmp_path)
    assert recovered.events == 10
    assert events_of(read_all(again)) == oldest + old + new + newest + last
    later = make_events(TRADES, 1, first=200)
    again.append([(later, 0)])
    assert events_of(read_all(again)) == later
    again.close()
    assert events_of(read_all(opened(tmp_path)[0]))[-1] == later[0]


def test_a_full_spool_takes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path, max_bytes=20_000)
    kept = make_events(TRADES, 150)
    spool.append([(kept, 0)])
    events = make_events(TRADES, 50)
    with pytest.raises(TransientDeliveryError, match=r"is full: it holds \d+ of 20000 bytes"):
        spool.append([(events, 0)])
    assert spool.size_bytes <= 20_000
    groups = read_all(spool)
    assert events_of(groups) == kept
    spool.ack(group.span for group in groups)
    assert spool.persist() > 0
    spool.append([(events, 0)])
    assert events_of(read_all(spool)) == events
    spool.close()


@pytest.mark.parametrize("cut", [1, 5, 12, 13, 40, 100])
def test_a_torn_end_is_cut(tmp_path: Path, cut: int) -> None:
    spool, _ = opened(tmp_path)
    events = make_events(TRADES, 50)
    spool.append([(events, 0)])
    spool.close()
    (path,) = tmp_path.glob("*.spool")
    os.truncate(path, path.stat().st_size - cut)
    again, recovered = opened(tmp_path)
    assert recovered.events == 49
    assert len(recovered.problems) == 1
    assert "cut a torn end of" in recovered.problems[0]
    later = make_events(TRADES, 1, first=50)
    again.append([(later, 0)])
    assert events_of(read_all(again)) == events[:49] + later
    again.close()
    reopened, recovered = opened(tmp_path)
    assert recovered == Recovered(50, [])
    assert reopened.size_bytes == again.size_bytes


def test_a_damaged_middle_costs_only_what_it_hit(tmp_path: Path) -> None:
    random = Random(7)
    for round_number in range(30):
        folder = tmp_path / str(round_number)
        spool, _ = opened(folder)
        events = make_events(TRADES, 60) + make_events(BOOKS, 60, size=3)
        for start in range(0, 120, 20):
            spool.append([(events[start : start + 20], 0)])
        spool.close()
        (path,) = folder.glob("*.spool")
        data = bytearray(path.read_bytes())
        position = random.randrange(len(data) - 200)
        width = random.choice([1, 4, 30])
        for offset in range(position, position + width):
            data[offset] ^= random.randrange(1, 256)
        path.write_bytes(data)
        again, recovered = opened(folder)
        found = events_of(read_all(again))
        assert recovered.events == len(found)
        assert len(recovered.problems) in (1, 2)
        assert all("damaged bytes" in problem for problem in recovered.problems)
        assert list((folder / "damaged").iterdir())
        ids = [event.event_id for event in found]
        assert ids == [event.event_id for event in events if event.event_id in set(ids)], "order"
        assert all(event in events for event in found)
        assert len(found) >= 117
        again.close()


def test_a_lost_description_is_found_elsewhere_in_the_segment(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    events = make_events(TRADES, 100, size=2000)  # past what makes streams be described again
    for start in range(0, 100, 10):
        spool.append([(events[start : start + 10], 0)])
    spool.close()
    (path,) = tmp_path.glob("*.spool")
    data = bytearray(path.read_bytes())
    assert data.count(b"tardis-machine/test") > 2
    data[data.index(b"tardis-machine/test")] ^= 1
    path.write_bytes(data)
    again, recovered = opened(tmp_path)
    assert recovered.events == 100
    assert events_of(read_all(again)) == events
    again.close()


def test_events_whose_only_description_is_lost_are_counted(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    spool.append([(make_events(TRADES, 20) + make_events(BOOKS, 5), 0)])
    spool.close()
    (path,) = tmp_path.glob("*.spool")
    data = bytearray(path.read_bytes())
    data[data.index(b"XBTUSD")] ^= 1
    path.write_bytes(data)
    again, recovered = opened(tmp_path)
    assert recovered.events == 25
    groups, lost, _ = again.read(MIB)
    assert [event.stream for event in events_of(groups)] == [BOOKS] * 5
    assert lost == 20
    again.ack(group.span for group in groups)
    again.persist()
    assert again.size_bytes == 0
    again.close()


def test_damage_after_opening_is_counted_when_it_is_read(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    events = make_events(TRADES, 10)
    spool.append([(events, 0)])
    (path,) = tmp_path.glob("*.spool")
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    groups, lost, problems = spool.read(MIB)
    assert events_of(groups) == events[:9]
    assert lost == 1
    assert "damaged bytes" in problems[0]
    spool.ack(group.span for group in groups)
    spool.persist()
    assert spool.size_bytes == 0
    spool.close()


def test_a_second_process_is_refused_by_name(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    with pytest.raises(SettingsError, match=rf"{tmp_path} is in use by process {os.getpid()}; choose another with --spool-dir"):
        opened(tmp_path)
    spool.close()
    opened(tmp_path)[0].close()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="can't be used"):
        opened(tmp_path / "file" / "spool")


def test_notes_that_cannot_be_read_mean_that_all_is_sent_again(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    spans = spool.append([(make_events(TRADES, 5), 0), (make_events(TRADES, 5), 0)])
    spool.ack(spans[:1])
    spool.close()
    (tmp_path / "acked.json").write_text("{")
    assert opened(tmp_path)[1].events == 10


def test_a_note_of_a_segment_that_was_removed_is_not_taken_for_one_of_the_next_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three processes two are killed: one after it removed a segment and before it noted so, one before it noted anything."""
    folder = tmp_path / "spool"
    first, _ = opened(folder)
    spans = first.append([(make_events(TRADES, 5), 0), (make_events(TRADES, 5), 0)])
    first.ack(spans[:1])
    first.persist()
    noted = (folder / "acked.json").read_bytes()
    first.ack(spans[1:])
    first.close()
    (folder / "acked.json").write_bytes(noted)

    disk = Disk(folder, monkeypatch)
    second, recovered = opened(folder, sync=True)
    assert recovered.events == 0
    events = make_events(TRADES, 20)
    second.append([(events, 0)])
    cut = disk.after_power_cut(tmp_path / "after a power cut")
    for found in (cut, Path(shutil.copytree(folder, tmp_path / "after a kill"))):
        third, recovered = opened(found)
        assert recovered.events == 20
        assert events_of(read_all(third)) == events
        third.close()
    second.close()


def test_reading_back_takes_little_memory(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    for start in range(0, 20_000, 1000):
        spool.append([(make_events(TRADES, 1000, first=start, size=300), 0)])
    sizes = []
    while found := spool.read(256 * 1024)[0]:
        sizes.append(sum(span.stop - span.start for span in (group.span for group in found)))
    assert max(sizes) <= 256 * 1024
    spool.close()


WRITER = """
import sys
from pathlib import Path
from tardis_machine.eventbus.spool import Spool
from tests.unit.eventbus.events import make_events, make_stream
spool = Spool(Path(sys.argv[1]), 1 << 30, sync=False, segment_bytes=1 << 20)
spool.lock()
spool.open()
stream = make_stream()
sequence = 0
while True:
    spool.append([(make_events(stream, 100, first=sequence, size=200), 0)])
    sequence += 100
    print(sequence, flush=True)
"""


def test_what_was_appended_survives_kill_9(tmp_path: Path) -> None:
    for delay in (0.05, 0.2, 0.35):
        folder = tmp_path / str(delay)
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        appended = int(process.stdout.read().split()[-1])
        process.wait()
        spool, recovered = opened(folder)
        sequences = [event.sequence for event in events_of(read_all(spool))]
        assert sequences == list(range(len(sequences)))
        assert len(sequences) >= appended
        assert recovered.events == len(sequences)
        spool.close()
