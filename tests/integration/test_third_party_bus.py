"""A bus that an installed package brings: the example in `examples/`, found by its entry point, from the command line to its file."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.bronze.decoding import decode_event
from tardis_machine.errors import SettingsError
from tardis_machine.eventbus import plan_bus
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.settings import from_keywords, resolve
from tests.integration.machine import options, running_machine
from tests.servers.process import ROOT

EXAMPLE = ROOT / "examples" / "lines_bus"
ASKED = options(to="2020-02-01T00:01:00Z")


def install(folder: Path, modules: dict[str, str], entry_points: dict[str, str], name: str) -> None:
    """What `pip install --target` leaves: the modules, and what the package announces."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{bus} = {module}\n" for bus, module in entry_points.items())
    (metadata / "entry_points.txt").write_text(f"[tardis_machine.event_buses]\n{lines}")
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with the example in it, as its own pyproject.toml says."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    modules = {"tardis_lines": (EXAMPLE / "tardis_lines.py").read_text()}
    install(tmp_path / "site", modules, project["entry-points"]["tardis_machine.event_buses"], "tardis_lines_bus")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site"
    for name in ("tardis_lines", "broken", "hollow", "stray", "twin"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def api() -> Iterator[SampleHistoryApi]:
    with SampleHistoryApi().serve_in_thread() as api:
        yield api


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def payload_cases(lines: list[dict[str, Any]]) -> list[str]:
    return [str(decode_event(base64.b64decode(line["value"])).WhichOneof("payload")) for line in lines]


def run(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(site), "COLUMNS": "200"}
    command = [sys.executable, "-m", "tardis_machine", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_the_example_can_be_installed() -> None:
    """Its package holds what its entry point names."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    ((bus, module),) = project["project"]["entry-points"]["tardis_machine.event_buses"].items()
    assert (bus, project["tool"]["setuptools"]["py-modules"]) == ("lines", [module])
    assert (EXAMPLE / f"{module}.py").exists()
    code = [
        line for line in (EXAMPLE / f"{module}.py").read_text().splitlines() if line.strip() and not line.startswith(("#", '"'))
    ]
    assert len(code) <= 45


def test_it_is_published_to_from_the_command_line(api: SampleHistoryApi, site: Path, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    bus = [
        "--bus",
        "lines",
        "--bus-option",
        f"path={path}",
        "--bus-option",
        "topic-routing=trade:trades,static_headers=desk:delta",
    ]
    folders = ["--spool-dir", str(tmp_path / "spool"), "--cache-dir", str(tmp_path / "cache"), "--workers", "0"]
    done = run(site, "replay", "--options", json.dumps(ASKED), "--api-url", api.url, *bus, *folders)
    assert done.returncode == 0, done.stderr
    lines = read_lines(path)
    cases = payload_cases(lines)
    assert {"trade", "book_change"} < set(cases)
    assert cases[-1] == "session_end"
    for line, case in zip(lines, cases, strict=True):
        assert line["topic"] == ("trades" if case == "trade" else "events")
        assert line["headers"]["desk"] == "delta"
    doctor = run(site, "doctor", *bus)
    assert doctor.returncode == 0, doctor.stderr
    assert "events.jsonl can be written" in doctor.stdout.replace("\n", "")
    assert len(read_lines(path)) == len(lines) + 1


async def test_it_is_published_to_from_the_library(api: SampleHistoryApi, site: Path, tmp_path: Path) -> None:
    own = {"provider": "lines", "path": tmp_path / "events.jsonl", "include_payloads": ["trade", "-session_end"]}
    both = [own, {"provider": "file", "dir": tmp_path / "files"}]
    async with running_machine(api, tmp_path / "cache", event_bus=both, spool_dir=tmp_path / "spool") as client:
        got = await client.lines(ASKED)
    lines = read_lines(tmp_path / "events.jsonl")
    assert payload_cases(lines) == ["trade"] * sum(message["type"] == "trade" for message in got)
    assert list((tmp_path / "files").glob("part-*.parquet"))


def test_environment_and_file_name_it_too(site: Path, tmp_path: Path) -> None:
    settings = resolve([], {"TM_BUS": "lines", "TM_BUS_OPTION": "path=a.jsonl,max-retries=3"})
    assert settings.buses == ("lines",)
    assert settings.for_bus("lines")["max_retries"] == 3
    assert settings.for_bus("lines")["path"] == Path("a.jsonl")
    config = tmp_path / "conf.toml"
    config.write_text('bus = "lines"\n[bus-option]\npath = "b.jsonl"\nmax-batch-size = 7\n')
    settings = resolve(["--config", str(config)], {})
    assert settings.for_bus("lines")["path"] == Path("b.jsonl")
    assert settings.for_bus("lines")["max_batch_size"] == 7
    assert "bus-option" not in repr(settings).replace("bus_option=''", "")


def test_own_buses_answer_to_their_names_as_well(site: Path, tmp_path: Path) -> None:
    given = [
        "--bus",
        "file,lines",
        "--bus-option",
        f"dir={tmp_path},path=x",
        "--bus-option",
        "file.max-retries=4,lines.max-retries=5",
    ]
    settings = resolve(given, {})
    assert settings.buses == ("file", "lines")
    assert (settings.for_bus("file")["max_retries"], settings.for_bus("lines")["max_retries"]) == (4, 5)
    assert plan_bus("lines", settings.for_bus("lines")).bus.name == "lines"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--bus", "line"], r"--bus: expected file, .*, lines, stray or twin, got 'line'"),
        (["--bus", "lines"], r"the lines bus needs its path"),
        (
            ["--bus", "lines", "--bus-option", "max-retries=1"],
            r"--bus-option path is required when --bus-option max-retries is given",
        ),
        (
            ["--bus", "lines", "--bus-option", "pth=x"],
            r"--bus-option: 'pth' is not an option of lines; expected path, topic-routing",
        ),
        (
            ["--bus", "lines", "--bus-option", "path=x,max-retries=many"],
            r"--bus-option max-retries: expected a whole number .*, got 'many'",
        ),
        (["--bus", "lines", "--bus-option", "path=x,static-headers=eventId:1"], r"'eventId' can't be set"),
        (["--bus", "lines", "--bus-option", "s3cr3t"], r"--bus-option: expected name=value .* \(the value is not shown\)"),
        (["--bus-option", "path=x"], r"--bus-option needs --bus, which names the bus"),
        (["--bus", "broken"], r"the bus broken can't be loaded from broken: ZeroDivisionError"),
        (["--bus", "hollow"], r"the bus hollow can't be used: hollow has no OPTIONS, REQUIRED, create_bus, create_routing"),
        (["--bus", "stray"], r"its options must begin with stray-, unlike lines-path"),
    ],
)
def test_what_is_wrong_is_said_and_what_is_known_named(site: Path, argv: list[str], says: str) -> None:
    lines = (EXAMPLE / "tardis_lines.py").read_text()
    modules = {
        "broken": "1 / 0",
        "hollow": "",
        "stray": lines,
        "twin": lines.replace('"lines-', '"twin-').replace('("lines"', '("twin"'),
    }
    install(site, modules, {name: name for name in modules}, "others")
    with pytest.raises(SettingsError, match=says) as caught:
        resolve(argv, {})
    assert "s3cr3t" not in str(caught.value)


def test_a_bus_goes_by_the_name_it_was_found_by(site: Path) -> None:
    twin = (EXAMPLE / "tardis_lines.py").read_text().replace('"lines-', '"twin-').replace('("lines"', '("twin"')
    install(site, {"twin": twin}, {"twin": "twin"}, "others")
    settings = from_keywords({"event_bus": {"provider": "twin", "path": "x"}}, {})
    with pytest.raises(SettingsError, match="the bus twin can't be used: its module calls it 'lines'"):
        plan_bus("twin", settings.for_bus("twin"))
    with pytest.raises(SettingsError, match=r"event_bus.provider: expected file, .*, lines or twin, got 'kafak'"):
        from_keywords({"event_bus": {"provider": "kafak"}}, {})
