"""`tardis-machine doctor` on buses that are well, dead, deaf, wrong and too small."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest

from tardis_machine.bronze.decoding import decode_event
from tardis_machine.commands.cli import main
from tests.contract.buses.nats_peek import NatsPeek
from tests.servers.nats import NatsServer
from tests.servers.process import free_port


def examine(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and output, the table's lines put together again."""
    code = main(["doctor", *words])
    shown = capsys.readouterr()
    return code, f"{shown.out}{shown.err}"


def rows(shown: str) -> list[list[str]]:
    cells = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in shown.splitlines() if line.startswith("│")]
    found: list[list[str]] = []
    for row in cells:
        if row[0]:
            found.append(row)
        else:
            found[-1] = [f"{before} {more}".strip() for before, more in zip(found[-1], row, strict=True)]
    return found


def nats_flags(server: NatsServer, **options: str) -> list[str]:
    given = {"servers": server.url, "subject": "md.all", **options}
    return [word for name, value in given.items() for word in (f"--nats-{name}", value)]


def test_nothing_is_on(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = examine(capsys)
    assert code == 0
    assert "No bus is on" in shown


def test_all_is_well_and_the_probe_is_seen_for_what_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, nats: NatsServer
) -> None:
    code, shown = examine(capsys, "--file-dir", str(tmp_path), *nats_flags(nats, stream="DOCTOR", subject="doctor.all"))
    assert code == 0, shown
    found = rows(shown)
    assert {row[1] for row in found} == {"ok"}
    for bus in ("file", "nats"):
        assert {row[2] for row in found if row[0] == bus} == {"connection", "destinations", "size limits", "probe"}
    assert "All checks passed: file, nats." in shown
    (file,) = tmp_path.glob("part-*.parquet")
    in_file = [decode_event(value) for value in pyarrow.parquet.read_table(file)["value"].to_pylist()]
    with NatsPeek(nats.port) as peek:
        in_stream = [decode_event(record.value) for record in peek.read_all() if record.destination == "doctor.all"]
        peek.ask("STREAM.DELETE.DOCTOR")
    for events in (in_file, in_stream):
        (event,) = events
        assert event.session_end.complete
        assert not event.session_end.entries
        assert event.meta["transport"] == "doctor"
        assert event.meta["session_id"].startswith("doctor-")
        assert event.meta["session_id"] in shown


def test_the_destination_of_dead_letters_is_checked_too(capsys: pytest.CaptureFixture[str], nats: NatsServer) -> None:
    flags = nats_flags(nats, stream="LETTERS", subject="letters.all", **{"dead-letter-subject": "letters.dead"})
    code, shown = examine(capsys, *flags)
    assert code == 0, shown
    assert ["nats", "ok", "dead letters", "letters.dead takes copies of them", ""] in rows(shown)
    with NatsPeek(nats.port) as peek:
        peek.ask("STREAM.DELETE.LETTERS")
        peek.make_stream("LETTERS", ["letters.all"])
    code, shown = examine(capsys, *nats_flags(nats, subject="letters.all", **{"dead-letter-subject": "letters.dead"}))
    with NatsPeek(nats.port) as peek:
        peek.ask("STREAM.DELETE.LETTERS")
    assert code == 1
    (failed,) = [row for row in rows(shown) if row[1] == "failed"]
    assert "has the subject letters.dead" in failed[3]


@pytest.mark.parametrize(
    ("allowed", "case"), [("trade", "session_end"), ("trade,error,-session_end", "error"), ("trade,-session_end", None)]
)
def test_the_allow_list_is_respected(capsys: pytest.CaptureFixture[str], tmp_path: Path, allowed: str, case: str | None) -> None:
    code, shown = examine(capsys, "--file-dir", str(tmp_path), "--file-include-payloads", allowed)
    assert code == 0, shown
    values = [value for file in tmp_path.glob("part-*") for value in pyarrow.parquet.read_table(file)["value"].to_pylist()]
    assert [decode_event(value).WhichOneof("payload") for value in values] == ([case] if case else [])
    assert ("not sent: --file-include-payloads has neither" in shown) == (case is None)


def test_no_probe_on_request(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, shown = examine(capsys, "--file-dir", str(tmp_path), "--no-probe")
    assert code == 0
    assert "probe" not in {row[2] for row in rows(shown)}
    assert not list(tmp_path.glob("part-*"))


def test_what_works_and_may_lose_events_is_yellow(capsys: pytest.CaptureFixture[str], tmp_path: Path, nats: NatsServer) -> None:
    code, shown = examine(capsys, "--file-dir", str(tmp_path), "--file-overflow", "drop", *nats_flags(nats), "--nats-core")
    assert code == 0, shown
    risks = {row[0]: row[2:] for row in rows(shown) if row[1] == "risk"}
    assert set(risks) == {"file", "nats"}
    for bus, option in (("file", "--file-overflow drop"), ("nats", "--nats-core")):
        check, says, to_do = risks[bus]
        assert (check, option in says) == ("safety", True)
        assert to_do
    assert "Events may be lost: file, nats." in shown
    assert "All checks passed" not in shown


def test_a_dead_bus_is_red_and_the_others_are_checked_all_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dead = f"127.0.0.1:{free_port()}"
    code, shown = examine(capsys, "--file-dir", str(tmp_path), "--nats-servers", dead, "--nats-subject", "md.all")
    assert code == 1
    failed = [row for row in rows(shown) if row[1] == "failed"]
    assert [row[0] for row in failed] == ["nats"]
    assert failed[0][3] == f"the NATS server {dead} can't be reached: Connection refused"
    assert failed[0][4] == "start it, or correct its address and credentials"
    assert {row[1] for row in rows(shown) if row[0] == "file"} == {"ok"}
    assert "Failed: nats." in shown


def test_a_deaf_bus_is_red_in_time(
    capsys: pytest.CaptureFixture[str], own_server: Callable[[type[NatsServer]], NatsServer]
) -> None:
    server = own_server(NatsServer)
    server.pause()
    started = time.monotonic()
    code, shown = examine(capsys, *nats_flags(server), "--check-timeout", "1s")
    assert time.monotonic() - started < 10
    assert code == 1
    assert [row[3] for row in rows(shown)] == ["no answer within 1 s"]


def test_what_is_wrong_is_named_and_no_secret_is(capsys: pytest.CaptureFixture[str], tmp_path: Path, nats: NatsServer) -> None:
    (tmp_path / "taken").write_text("")
    wrong = ["--file-dir", str(tmp_path / "taken"), *nats_flags(nats, stream="DOCTOR", user="me", password="hush-hush")]
    with NatsPeek(nats.port) as peek:
        peek.make_stream("DOCTOR", ["elsewhere"])
        code, shown = examine(capsys, *wrong)
        peek.ask("STREAM.DELETE.DOCTOR")
    assert code == 1
    assert [row[1] for row in rows(shown)] == ["failed", "failed"]
    assert "is not a folder" in " ".join(" ".join(row) for row in rows(shown))
    assert "--nats-stream DOCTOR has the subjects elsewhere, but not md.all" in shown.replace("\n", " ")
    code, shown = examine(capsys, *nats_flags(nats, subject="md.*", token="hush-hush"))
    assert code == 1
    assert "--nats-subject: 'md.*' has a wildcard" in shown
    assert "hush" not in shown


def test_rights_and_limits_that_are_too_small(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    users = """authorization { users: [
        { user: me, password: "hush-hush", permissions: { publish: { allow: [">"], deny: ["md.>"] } } },
        { user: you, password: "hush-hush" }
    ] }
    max_payload: 4096"""
    with NatsServer(tmp_path / "nats", users) as server:
        code, shown = examine(
            capsys, *nats_flags(server, stream="MD", user="me", password="hush-hush"), "--nats-ack-timeout", "1s"
        )
        assert code == 1
        failed = {row[2]: (row[3], row[4]) for row in rows(shown) if row[1] == "failed"}
        assert failed["probe"] == ("the NATS user may not publish to md.all", "allow this user to write")
        assert failed["size limits"][0].startswith("accepts records of up to 3584 bytes")
        assert failed["size limits"][1].endswith("raise the limit of the service, or set --nats-oversize split")
        code, shown = examine(capsys, *nats_flags(server, user="you", password="wrong-hush"))
        assert code == 1
        assert "refuses the credentials: Authorization Violation" in shown
        assert "wrong-hush" not in shown


async def test_buses_are_examined_at_once(tmp_path: Path) -> None:
    from tardis_machine.commands.doctor import check_buses
    from tardis_machine.settings import resolve

    async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    deaf = await asyncio.start_server(never, "127.0.0.1", 0)
    address = f"127.0.0.1:{deaf.sockets[0].getsockname()[1]}"
    words = ["--nats-servers", address, "--nats-subject", "a", "--file-dir", str(tmp_path), "--check-timeout", "500ms"]
    started = time.monotonic()
    findings = await check_buses(resolve(words, {}, command="doctor"))
    assert time.monotonic() - started < 5
    assert [finding.bus for finding in findings if not finding.has_passed] == ["nats"]
    deaf.close()
