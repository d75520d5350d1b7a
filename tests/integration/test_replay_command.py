"""`tardis-machine replay` as a process: the server's own bytes, and events that are all accounted for, however it ends."""

from __future__ import annotations

import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import zstandard

from tardis_machine.bronze.decoding import decode, decode_event
from tardis_machine.bronze.encoding import BronzeEncoder
from tardis_machine.bronze.event import digest_of
from tardis_machine.commands.cli import main
from tardis_machine.commands.replay_progress import ReplayProgress
from tardis_machine.commands.request_flags import replay_requests
from tardis_machine.errors import OptionsError, TerminalDeliveryError
from tardis_machine.eventbus.contract import Record
from tardis_machine.eventbus.dead_letters import DeadLetters, read_dead_letters
from tardis_machine.eventbus.routing import Router, Routing
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.messages import to_json
from tardis_machine.pipeline import frames
from tardis_machine.pipeline.request import parse_normalized_requests
from tardis_machine.processes.jobs.contract import Chunk
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.settings import resolve
from tests.closed_sessions import read_closed_sessions
from tests.contract.sample_messages import sample_messages
from tests.integration.machine import DAY, options, running_machine
from tests.integration.served import fill_bitmex

MINUTES = 5
ASKED = ("--exchange", "bitmex", "--symbols", "XBTUSD", "--from", DAY[:-1], "--to", f"{DAY}00:02:00Z")
NORMALIZED = (*ASKED, "--data-types", "trade,book_change")
LONG = ("--options", json.dumps(options(to=f"{DAY}00:0{MINUTES}:00Z")))


@pytest.fixture(scope="module")
def api() -> Iterator[SampleHistoryApi]:
    with SampleHistoryApi(SampleMarket(seed=1)).serve_in_thread() as running:
        yield running


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    fill_bitmex(folder, MINUTES)
    return folder


class Program:
    """Runs the command with folders of its own; history is in the cache, and what is not there can't be fetched."""

    def __init__(self, folder: Path, cache_dir: Path, api_url: str = "http://127.0.0.1:9/v1") -> None:
        self.folder = folder
        self.events_dir = folder / "events"
        self.letters_dir = folder / "letters"
        self._common = ["--cache-dir", str(cache_dir), "--api-url", api_url, "--workers", "1"]
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("TM_") and name != "PORT"}

    @property
    def bus(self) -> tuple[str, ...]:
        folders = {"file-dir": self.events_dir, "spool-dir": self.folder / "spool", "file-dead-letter-dir": self.letters_dir}
        return tuple(word for name, folder in folders.items() for word in (f"--{name}", str(folder)))

    def command(self, *argv: str) -> list[str]:
        return [sys.executable, "-m", "tardis_machine", "replay", *self._common, *argv]

    def start(self, *argv: str, environ: dict[str, str] | None = None, **streams: Any) -> subprocess.Popen[bytes]:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        return subprocess.Popen(self.command(*argv), env=self._environ | (environ or {}), **streams)

    def run(self, *argv: str, code: int = 0, **arguments: Any) -> tuple[bytes, str]:
        with self.start(*argv, **arguments) as process:
            out, errors = process.communicate(timeout=60)
        assert process.returncode == code, errors.decode()
        assert b"Traceback" not in errors, errors.decode()
        return out, errors.decode()

    def start_and_stall(self, *argv: str) -> subprocess.Popen[bytes]:
        """A replay in its middle: it has written a little, and its reader takes no more."""
        process = self.start("--output", "-", *argv)
        assert process.stdout is not None
        process.stdout.read(100_000)
        return process

    def events(self) -> list[NormalizedEvent]:
        tables = [pyarrow.parquet.read_table(path) for path in sorted(self.events_dir.glob("part-*"))]
        return [decode_event(value) for table in tables for value in table["value"].to_pylist()]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> bytes:
    """What NORMALIZED writes."""
    return Program(tmp_path_factory.mktemp("program"), cache_dir).run(*NORMALIZED)[0]


@pytest.fixture
def program(tmp_path: Path, cache_dir: Path) -> Program:
    return Program(tmp_path, cache_dir)


def last_line(errors: str) -> str:
    return errors.splitlines()[-1]


def session_end_of(events: list[NormalizedEvent]) -> NormalizedEvent:
    (end,) = [event for event in events if event.HasField("session_end")]
    return end


def check_ledger(events: list[NormalizedEvent], end: NormalizedEvent) -> None:
    """The session's end names all of its events, and no other."""
    session_id = end.meta["session_id"]
    mine = {event.event_id: event for event in events if event.meta["session_id"] == session_id and event is not end}
    assert len(mine) == sum(entry.count for entry in end.session_end.entries)
    for entry in end.session_end.entries:
        ids = [event_id for event_id, event in mine.items() if event.WhichOneof("payload") == entry.payload_case]
        assert len(ids) == entry.count == entry.last_sequence + 1
        assert int.from_bytes(entry.digest, "big") == digest_of(ids)


async def test_standard_output_has_the_bytes_of_the_http_route(api: SampleHistoryApi, tmp_path: Path) -> None:
    raw = {
        "exchange": "bitmex",
        "from": DAY[:-1],
        "to": f"{DAY}00:01:00Z",
        "filters": [{"channel": "trade", "symbols": ["XBTUSD"]}],
    }
    merged = [options(withDisconnectMessages=True), options(exchange="binance", symbols=["BTCUSDT"], dataTypes=["quote_1s"])]
    (tmp_path / "merged.json").write_text(json.dumps(merged))
    program = Program(tmp_path, tmp_path / "cache", api.url)
    flags = {
        "flags": (*NORMALIZED,),
        "merged": ("--options", f"@{tmp_path / 'merged.json'}"),
        "raw": ("--raw", *ASKED[:2], "--from", raw["from"], "--to", raw["to"], "--filters", json.dumps(raw["filters"])),
    }
    async with running_machine(api, tmp_path / "cache") as client:
        expected = {
            "flags": await client.get("/replay-normalized", options()),
            "merged": await client.get("/replay-normalized", merged),
            "raw": await client.get("/replay", raw),
        }
    for name, argv in flags.items():
        out, errors = program.run(*argv)
        assert (200, out) == expected[name], name
        assert out.count(b"\n") > 50
        assert errors == "", name


def test_a_file_appears_whole_and_compressed_as_its_name_says(program: Program, lines: bytes) -> None:
    for name, unpack in {
        "a.jsonl": bytes,
        "a.gz": gzip.decompress,
        "a.zst": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
    }.items():
        target = program.folder / "out" / name
        target.parent.mkdir(exist_ok=True)
        target.write_text("what was there before")
        out, _ = program.run(*NORMALIZED, "--output", str(target))
        assert out == b""
        assert unpack(target.read_bytes()) == lines  # type: ignore[operator]
    assert sorted(path.name for path in (program.folder / "out").iterdir()) == ["a.gz", "a.jsonl", "a.zst"]


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(program: Program) -> None:
    disk = program.folder / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=1m tmpfs "$0" && echo old > "$0/a" && "$@"; code=$?; ls -A "$0"; cat "$0/a"; exit $code'
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(disk)]
    command = [*alone, *program.command(*NORMALIZED, "--output", str(disk / "a"))]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == f"error: --output: can't write to {disk}/a: No space left on device\n"
    assert ended.stdout == "a\nold\n"
    _, errors = program.run(*NORMALIZED, code=1, stdout=Path("/dev/full").open("wb"))  # noqa: SIM115
    assert last_line(errors) == "error: --output: can't write to standard output: No space left on device"


def test_options_may_stand_in_the_environment_and_in_a_file(program: Program, lines: bytes) -> None:
    (program.folder / "tm.toml").write_text(f'[replay]\nto = "{DAY}00:02:00Z"\ndata-types = ["trade", "book_change"]\n')
    environ = {"TM_EXCHANGE": "bitmex", "TM_SYMBOLS": "XBTUSD", "TM_FROM": DAY[:-1], "TM_CONFIG": str(program.folder / "tm.toml")}
    out, _ = program.run(environ=environ)
    assert out == lines


def test_a_terminal_sees_a_bar(program: Program) -> None:
    ours, theirs = pty.openpty()
    with program.start(*LONG, *program.bus, stderr=theirs, stdout=subprocess.DEVNULL, environ={"COLUMNS": "200"}) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 65536)
            except OSError:
                break
    os.close(ours)
    assert process.returncode == 0
    text = seen.decode()
    assert f"{DAY}00:0{MINUTES}:00.000Z" in text
    assert "messages" in text
    assert "confirmed" in text
    assert "file: " in text.splitlines()[-1]


def test_the_buses_get_every_message_of_a_session_and_standard_output_nothing(program: Program, lines: bytes) -> None:
    out, errors = program.run(*NORMALIZED, *program.bus)
    assert out == b""
    events = program.events()
    count = lines.count(b"\n")
    assert f"file: {count + 1} published, {count + 1} confirmed," in last_line(errors)
    messages = [event for event in events if not event.HasField("session_end")]
    assert Counter(to_json(decode(event.SerializeToString())) for event in messages) == Counter(lines.splitlines())
    assert {(event.meta["transport"], event.meta["route"]) for event in events} == {("cli", "replay")}
    end = session_end_of(events)
    assert end.session_end.complete
    check_ledger(events, end)
    both, _ = program.run(*NORMALIZED, *program.bus, "--output", "-")
    assert both == lines


def test_a_bus_that_is_gone_is_an_error_and_its_events_wait_in_the_spool(program: Program, lines: bytes) -> None:
    program.events_dir = program.folder / "no-folder" / "events"
    (program.folder / "no-folder").write_text("")
    _, errors = program.run(*NORMALIZED, *program.bus, "--shutdown-timeout", "1s", code=1)
    count = lines.count(b"\n") + 1
    assert last_line(errors).startswith(
        f"error: {count} events to file are unconfirmed (all in the spool): files can't be written"
    )
    (program.folder / "no-folder").unlink()
    out, errors = program.run("--dead-letter", *program.bus)
    assert out == b"file: 0 dead letters sent again\n"
    assert f"{count} confirmed" in last_line(errors)
    events = program.events()
    check_ledger(events, session_end_of(events))


def test_when_nobody_reads_any_more_the_session_is_incomplete_and_delivered(program: Program) -> None:
    process = program.start_and_stall(*LONG, *program.bus)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    events = program.events()
    end = session_end_of(events)
    assert not end.session_end.complete
    assert end.session_end.reason == "the replay was interrupted"
    check_ledger(events, end)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_signal_closes_the_session_as_incomplete_and_drains(program: Program, number: signal.Signals, code: int) -> None:
    process = program.start_and_stall(*LONG, *program.bus)
    process.send_signal(number)
    # Its reader still takes nothing: that must not hold it up.
    assert process.wait(20) == code
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    assert " 0 unconfirmed" in last_line(errors)
    events = program.events()
    end = session_end_of(events)
    assert (end.session_end.complete, end.session_end.reason) == (False, "the replay was interrupted")
    assert len(events) > 100
    check_ledger(events, end)


def test_what_was_accepted_before_kill_9_is_sent_at_the_next_start_with_its_ledger(program: Program) -> None:
    ahead = (*program.bus, "--spool-mode", "always", "--file-max-batch-delay-ms", "1h")
    process = program.start_and_stall(*LONG, *ahead)
    process.kill()
    process.wait()
    assert program.events() == []
    program.run(*NORMALIZED, *ahead)
    events = program.events()
    cut, whole = sorted(
        (event for event in events if event.HasField("session_end")), key=lambda event: event.session_end.complete
    )
    assert (cut.session_end.complete, whole.session_end.complete) == (False, True)
    assert cut.session_end.reason == "the machine ended before the session did"
    for end in (cut, whole):
        assert sum(entry.count for entry in end.session_end.entries) > 100
        check_ledger(events, end)
    assert len(read_closed_sessions(program.folder / "spool" / "file" / "sessions")) == 2


def test_dead_letters_are_sent_again_once(program: Program) -> None:
    router = Router("file", Routing(destination="events"))
    events = BronzeEncoder(session_id="s-1", origin="replay").encode(sample_messages(100))
    letters = DeadLetters("file", program.letters_dir)
    letters.write([(Record(router.route(event.stream), event), "it was refused") for event in events])
    letters.close()
    out, errors = program.run("--dead-letter", str(program.letters_dir), *program.bus)
    assert out == b"file: 100 dead letters sent again\n"
    assert "100 published, 100 confirmed" in last_line(errors)
    assert {event.event_id for event in program.events()} == {event.event_id for event in events}
    assert program.run("--dead-letter", *program.bus)[0] == b"file: 0 dead letters sent again\n"
    (program.letters_dir / "2.jsonl").write_text('{"reason": 1}\n')
    with pytest.raises(TerminalDeliveryError, match=r"line 1 of .*/2.jsonl is not a dead letter: "):
        list(read_dead_letters(program.letters_dir / "2.jsonl"))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "--exchange, --options or --dead-letter is required"),
        (("--exchange", "bitmx"), "--exchange: expected one of .*, got 'bitmx'"),
        (("--exchange", "bitmex"), "--data-types: expected an array"),
        ((*ASKED, "--data-types", "trades"), "--data-types: unknown data type 'trades'; expected trade"),
        ((*ASKED[:-2], "--data-types", "trade"), "--to: expected an ISO 8601 date .*, got nothing"),
        ((*NORMALIZED, "--filters", "[]"), "--filters is only for raw history; add --raw"),
        (("--raw", *NORMALIZED), "--symbols can't be combined with --raw; use --filters"),
        (
            ("--raw", *ASKED[:2], *ASKED[4:], "--filters", "x"),
            r"--filters: expected JSON, or @ and the name of a file that holds it \(",
        ),
        (
            ("--raw", *ASKED[:2], *ASKED[4:], "--filters", '[{"channel":"x"}]'),
            r"--filters\[0\].channel: bitmex has no channel 'x'; it has ",
        ),
        ((*NORMALIZED, "--options", "{}"), "--exchange can't be combined with --options, which holds the whole request"),
        (("--options", "[]"), "--options: expected at least one request, got an empty array"),
        ((*NORMALIZED, "--speed", "fast"), "--speed: expected max or a number from 0.01 to 100000, got 'fast'"),
        ((*NORMALIZED, "--faults", '{"drop":2}'), "--faults.drop: expected a number from 0 to 1, got 2"),
        (("--options", '[{"exchange":"x"}]'), r"--options: \[0\].exchange: expected one of .*, got 'x'"),
        (("--options", "@/no/such/file"), "--options: can't read '/no/such/file': No such file"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_flag(argv: tuple[str, ...], says: str) -> None:
    with pytest.raises(OptionsError, match=f"^{says}") as caught:
        replay_requests(resolve(argv, {}, command="replay"))
    assert "\n" not in str(caught.value)


def test_what_can_not_be_done_is_said_before_anything_starts(program: Program) -> None:
    taken = str(program.folder / "no" / "such" / "folder")
    for argv, says in (
        ((*NORMALIZED, "--output", str(program.folder)), f"error: --output: can't write to '{program.folder}': it is a folder"),
        (("--dead-letter",), "error: --dead-letter needs a bus to send the dead letters to, but none is on"),
        (("--dead-letter", taken, *program.bus), f"error: --dead-letter: '{taken}' is not a folder"),
    ):
        out, errors = program.run(*argv, code=2)
        assert out == b""
        assert last_line(errors).startswith(says)


def test_a_replay_takes_its_time_and_so_do_its_events(program: Program, lines: bytes) -> None:
    began = time.monotonic()
    out, _ = program.run(*NORMALIZED, "--speed", "60", "--pace-events", "--output", "-", *program.bus)
    assert time.monotonic() - began > 2
    assert out == lines
    events = program.events()
    check_ledger(events, session_end_of(events))
    assert len(events) == 1 + len(lines.splitlines())


def test_without_an_output_nothing_is_printed_that_nobody_reads(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(_: object) -> bytes:
        raise AssertionError("who reads this?")

    monkeypatch.setitem(frames.MESSAGES_TO_BYTES, "lines", printed)  # type: ignore[arg-type]
    in_process = [*program.command(*NORMALIZED, "--workers", "0")[3:], *program.bus]
    assert main([*in_process, "--output", str(program.folder / "lines")]) == 1
    assert main(in_process) == 0
    assert len(program.events()) > 1000


def test_progress_knows_the_time_of_the_last_message() -> None:
    progress = ReplayProgress(parse_normalized_requests([options(), options(to=f"{DAY}00:10:00Z")]))
    assert progress.to_us - progress.from_us == 600_000_000
    assert progress.reached_us == progress.from_us
    for chunk_us, reached_us in (
        (progress.from_us + 5_000_000, 5_000_000),
        (progress.from_us + 7_123_456, 7_123_456),
        (0, 7_123_456),  # only disconnects, which have no time
    ):
        progress.note(Chunk(b"", 1, reached_us=chunk_us))
        assert progress.reached_us - progress.from_us == reached_us
    progress.complete()
    assert progress.reached_us == progress.to_us
    assert progress.messages == 3
