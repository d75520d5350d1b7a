"""The program as its users meet it: real processes where the process matters, `main` in this one where it does not."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tardis_machine
from tardis_machine import telemetry
from tardis_machine._version import __version__
from tardis_machine.commands import cli
from tardis_machine.errors import LakeError, MissingExtraError
from tardis_machine.settings import Settings
from tardis_machine.settings.commands import COMMANDS
from tardis_machine.settings.option import one_of

PROGRAM = [sys.executable, "-m", "tardis_machine"]
LAKE_COMMANDS = one_of(tuple(name.partition(" ")[2] for name in COMMANDS if name.startswith("lake ")))
TWO_PROBLEMS = (
    "error: --host: expected a non-empty line of text, got ''\nerror: --port: expected a whole number from 0 to 65534, got 'x'\n"
)
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("TM_") and name != "PORT"}


def run_program(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *argv], check=False, env=CLEAN | environ, capture_output=True, text=True, timeout=60)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
    monkeypatch.setattr(telemetry, "setup_logging", lambda *_: None)


@pytest.fixture
def as_serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Settings], int]], None]:
    """Puts a function where `serve` is."""

    def put(run: Callable[[Settings], int]) -> None:
        module = ModuleType("tardis_machine.commands.serve")
        vars(module)["run"] = run
        monkeypatch.setitem(sys.modules, "tardis_machine.commands.serve", module)

    return put


def raiser(error: BaseException) -> Callable[[Settings], int]:
    def run(_settings: Settings) -> int:
        raise error

    return run


def test_without_a_command_it_serves(as_serve: Any) -> None:
    seen: list[int] = []
    as_serve(lambda settings: seen.append(settings.port) or 7)
    assert cli.main(["--port", "1"]) == 7
    assert cli.main(["serve", "--port", "2"]) == 7
    assert cli.main([]) == 7
    assert seen == [1, 2, 8000]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tardis-machine {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["servee"], "error: 'servee' is not a command: did you mean 'serve'?\n"),
        (["nonsense"], f"error: 'nonsense' is not a command: expected {one_of(tuple(COMMANDS))}\n"),
        (["lake"], f"error: 'lake' needs a command: {LAKE_COMMANDS}\n"),
        (["lake", "sqll"], "error: 'lake sqll' is not a command: did you mean 'lake sql'?\n"),
        (["lake", "sql"], "error: QUERY is required: a query\n"),
        (["nonsense", "--help"], f"error: 'nonsense' is not a command: expected {one_of(tuple(COMMANDS))}\n"),
        (["--port", "x", "--host="], TWO_PROBLEMS),
    ],
)
def test_a_mistake_is_a_line_each_and_exit_code_2(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", message)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (LakeError("no Java"), 1, "error: no Java\n"),
        (
            MissingExtraError("The lake", "spark"),
            2,
            "error: The lake needs the extra 'spark': pip install 'tardis-machine[spark]'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_end_in_one_line_and_a_code(
    error: BaseException, code: int, message: str, as_serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    as_serve(raiser(error))
    assert cli.main([]) == code
    assert capsys.readouterr().err == message


def test_debug_prints_the_traceback_of_an_error(as_serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    as_serve(raiser(LakeError("no Java")))
    assert cli.main(["--debug"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith("error: no Java\n")


def test_what_is_not_expected_has_a_traceback_without_secrets(as_serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    as_serve(raiser(ZeroDivisionError("at key-of-mine-1")))
    assert cli.main(["--api-key", "key-of-mine-1"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith("error: ZeroDivisionError: at ***\n")
    assert "key-of-mine-1" not in shown


@pytest.mark.parametrize(
    "argv", [[], ["serve"], ["lake"], ["lake", "ingest"], ["lake", "sql"], ["exchanges"], ["demo"], ["config"]]
)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(argv: list[str], flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TM_NONSENSE", "is not looked at")
    assert cli.main([*argv, flag]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: tardis-machine")
    assert max(len(line) for line in shown.splitlines()) <= 100
    command = COMMANDS.get(" ".join(argv) or "serve")
    for option in command.options if command else ():
        assert f"  {option.flag}" in shown
        assert option.help.split()[0] in shown
    assert ("--file-dir" in shown) == (command is not None and command.takes_buses)


def test_help_shows_defaults(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TM_API_KEY", "a-secret")
    cli.main(["--help"])
    shown = capsys.readouterr().out
    assert re.search(r"--port PORT +Port for HTTP and WebSocket; [^(]*\(default\s+8000\)\n", shown)
    assert "File bus (on with --file-dir)" in shown
    assert "a-secret" not in shown


def processor_s(*argv: str) -> float:
    """What a program takes of a processor, at best: others may share it."""
    unmeasured = {name: value for name, value in CLEAN.items() if not name.startswith("COV")}
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *argv], check=True, env=unmeasured, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_is_quick() -> None:
    """0.3 s where it takes a processor 0.06 s to load asyncio; it takes half of that."""
    assert processor_s("-m", "tardis_machine", "--help") < 5 * processor_s("-c", "import argparse, asyncio")


@pytest.mark.parametrize("argv", [["--help"], ["lake", "sql", "--help"]])
def test_help_loads_little(argv: list[str]) -> None:
    # What is loaded is what makes it slow or quick, however busy the machine is. It is 140 modules, nearly all of them small.
    program = (
        f"import sys; before = set(sys.modules); from tardis_machine.commands.cli import main; main({argv}); "
        "heavy = {'aiohttp', 'asyncio', 'pyarrow', 'pyspark', 'pandas', 'prometheus_client', 'rich', 'numpy', 'google', 'ssl'}; "
        "loaded = set(sys.modules) - before; "
        "sys.exit(f'{len(loaded)} modules; heavy: {heavy & loaded}' if heavy & loaded or len(loaded) > 200 else 0)"
    )
    unmeasured = {name: value for name, value in CLEAN.items() if not name.startswith("COV")}
    done = subprocess.run([sys.executable, "-c", program], check=False, env=unmeasured, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_exchanges() -> None:
    from tardis_machine.exchanges import EXCHANGES

    table = run_program("exchanges")
    assert (table.returncode, table.stderr) == (0, "")
    assert [line.split()[0] for line in table.stdout.splitlines()[1:]] == list(EXCHANGES)
    listed = json.loads(run_program("exchanges", "--format", "json").stdout)
    assert {entry["exchange"]: entry["dataTypes"] for entry in listed} == {
        name: list(exchange.data_types) for name, exchange in EXCHANGES.items()
    }
    assert {entry["exchange"] for entry in listed if not entry["live"]} == {
        name for name, exchange in EXCHANGES.items() if exchange.live is None
    }
    package = Path(tardis_machine.__file__).parent
    assert [entry["file"] for entry in listed if not package.joinpath(entry["file"]).exists()] == []
    [bybit] = [entry for entry in listed if entry["exchange"] == "bybit"]
    assert bybit["file"] == "exchanges/bybit.py"
    assert bybit["generations"]["trade"] == ["2023-04-05T00:00:00.000Z"]


def test_config_masks_secrets() -> None:
    done = run_program("config", "--port", "9", TM_API_KEY="key-of-mine-2")
    assert done.returncode == 0
    assert "key-of-mine-2" not in done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["port", "9", "--port"] in lines
    assert ["api-key", "***", "TM_API_KEY"] in lines


def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [*PROGRAM, "config", "--docs"]
    done = subprocess.run(command, check=False, env=CLEAN, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_broken_connection_is_an_error(as_serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    as_serve(raiser(BrokenPipeError("the broker's")))
    assert cli.main([]) == 1
    assert capsys.readouterr().err.endswith("error: BrokenPipeError: the broker's\n")


def test_ctrl_c_ends_quietly() -> None:
    program = (
        "import sys, time, types; name = 'tardis_machine.commands.serve'; module = sys.modules[name] = types.ModuleType(name); "
        "module.run = lambda settings: print('up', flush=True) or time.sleep(60); "
        "from tardis_machine.commands.cli import main; sys.exit(main(['serve']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=30)
    assert (process.returncode, complaints) == (130, "")


def test_every_command_is_named_once_and_points_somewhere() -> None:
    for name, command in COMMANDS.items():
        assert name == command.name
        module, colon, function = command.target.partition(":")
        assert colon
        assert callable(getattr(import_module(f"tardis_machine.commands.{module}"), function))
