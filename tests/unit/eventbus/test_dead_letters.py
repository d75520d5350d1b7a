"""Dead letters: what is written is found again, and files in use are left alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tardis_machine.errors import TransientDeliveryError
from tardis_machine.eventbus.dead_letters import DeadLetters, batches_of, dead_letter_files, read_dead_letters
from tests.unit.eventbus.events import make_record, make_route


def test_letters_are_lines_that_people_can_read_and_events_that_can_be_sent_again(tmp_path: Path) -> None:
    letters = DeadLetters("kafka", tmp_path / "new" / "folder")
    records = [make_record(make_route("a"), number) for number in range(3)]
    letters.write([(record, "too large") for record in records[:2]])
    letters.write([(records[2], "not authorised")])
    letters.close()
    (path,) = dead_letter_files(tmp_path / "new" / "folder")
    found = list(read_dead_letters(path))
    assert [letter.event for letter in found] == [record.event for record in records]
    line = json.loads(path.read_text().splitlines()[2])
    assert (line["reason"], line["bus"], line["destination"], line["key"]) == ("not authorised", "kafka", "base", "a")
    assert line["stream"]["payload_case"] == "trade"
    assert line["event_id"] == records[2].event.event_id.hex()


def test_a_file_that_is_being_written_is_not_offered_for_replay(tmp_path: Path) -> None:
    letters = DeadLetters("kafka", tmp_path, file_bytes=1)
    letters.write([(make_record(make_route("a"), 0), "x")])
    assert dead_letter_files(tmp_path) == []
    letters.write([(make_record(make_route("a"), 1), "x")])  # the first file is full
    assert len(dead_letter_files(tmp_path)) == 1
    letters.close()
    assert len(dead_letter_files(tmp_path)) == 2


def test_a_torn_line_is_no_letter(tmp_path: Path) -> None:
    letters = DeadLetters("kafka", tmp_path)
    letters.write([(make_record(make_route("a"), number), "x") for number in range(2)])
    letters.close()
    (path,) = dead_letter_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert [letter.sequence for letter in read_dead_letters(path)] == [0]


def test_a_folder_that_cannot_be_written_is_a_transient_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TransientDeliveryError, match="dead letters can't be written to"):
        DeadLetters("kafka", tmp_path / "file" / "x").write([(make_record(make_route("a"), 0), "x")])


def test_batches(tmp_path: Path) -> None:
    letters = DeadLetters("kafka", tmp_path)
    letters.write([(make_record(make_route("a"), number), "x") for number in range(5)])
    letters.close()
    (path,) = dead_letter_files(tmp_path)
    assert [[letter.sequence for letter in batch] for batch in batches_of(read_dead_letters(path), 2)] == [[0, 1], [2, 3], [4]]


def test_the_folder_is_no_larger_than_told_and_takes_more_when_some_are_gone(tmp_path: Path) -> None:
    letters = DeadLetters("kafka", tmp_path, 2000, file_bytes=1)
    letter = (make_record(make_route("a"), 0), "no")
    line_bytes = len(letters._to_line(*letter, datetime.now(UTC)))
    for _ in range(2000 // line_bytes):
        letters.write([letter])
    with pytest.raises(TransientDeliveryError, match=r"past --kafka-dead-letter-max-bytes \(2000\): send them again with"):
        letters.write([letter])
    held = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 2000 - line_bytes < held == letters.size_bytes <= 2000
    again = DeadLetters("kafka", tmp_path, 2000)
    with pytest.raises(TransientDeliveryError, match="past --kafka-dead-letter-max-bytes"):
        again.write([letter])
    for path in dead_letter_files(tmp_path):
        path.unlink()
    again.write([letter])
    letters.write([letter])
    assert letters.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
