"""Completion scripts: bash's is run on words as bash runs it; the others hold every command, option and choice."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tardis_machine.commands import cli
from tardis_machine.commands.completion import bash_script, fish_script, zsh_script
from tardis_machine.settings.catalogue import Catalogue
from tardis_machine.settings.commands import COMMANDS

# The program's words on standard input, what bash would offer on standard output.
ASK = """
source "$1"
while IFS= read -r line; do
    IFS=$'\\t' read -r -a COMP_WORDS <<< "$line"
    [[ $line == *$'\\t' ]] && COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _tardis_machine
    echo "${COMPREPLY[*]}"
done
complete -p tardis-machine
"""

WORDS = {
    "l": "lake",
    "lake ": " ".join(name.split()[1] for name in COMMANDS if name.startswith("lake ")),
    "lake s": "sql",
    "--log-f": "--log-format",
    "--log-format ": "text json",
    "--log-format = j": "json",
    "--log-format =": "text json",
    "serve --no-deb": "--no-debug",
    "--kafka-acks ": "all 1",
    "exchanges --kafka-a": "",
    "exchanges --format ": "table json markdown",
    "lake sql --format ": "table csv json parquet",
    "completion ": "bash zsh fish",
    "completion --log-l": "--log-level",
    "replay --debug --exch": "--exchange",
    "--cache-dir ": "",
}


def test_bash_offers_what_fits(tmp_path: Path) -> None:
    (tmp_path / "completion").write_text(bash_script())
    lines = "".join("tardis-machine\t" + words.replace(" ", "\t") + "\n" for words in WORDS)
    answer = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", str(tmp_path / "completion")],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *offered, registered = answer.stdout.splitlines()
    assert dict(zip(WORDS, offered, strict=True)) == WORDS
    assert registered == "complete -o default -F _tardis_machine tardis-machine"
    assert answer.stderr == ""


def test_bash_offers_every_command_and_the_servers_options_at_first(tmp_path: Path) -> None:
    (tmp_path / "completion").write_text(bash_script())
    answer = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", str(tmp_path / "completion")],
        input="tardis-machine\t\ntardis-machine\t--\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    commands, flags, _ = answer.stdout.splitlines()
    assert set(commands.split()) == {name.split()[0] for name in COMMANDS}
    catalogue = Catalogue(COMMANDS["serve"])
    catalogue.load_all()
    assert {f"--{name}" for option in catalogue.options for name in option.names} <= set(flags.split())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_others_hold_every_command_and_option(shell: str) -> None:
    script = zsh_script() if shell == "zsh" else fish_script()
    for command in COMMANDS.values():
        assert re.search(rf"\b{command.name}\b", script)
        catalogue = Catalogue(command)
        catalogue.load_all()
        for option in catalogue.options:
            assert option.positional or re.search(rf"--{option.name}\b" if shell == "zsh" else rf"-l {option.name}\b", script)
            assert not option.choices or " ".join(option.choices) in script


def test_a_fish_line_belongs_to_the_commands_that_take_it() -> None:
    (line,) = [line for line in fish_script().splitlines() if " -l spool-dir " in line]
    takers = [name for name, command in COMMANDS.items() if any(option.name == "spool-dir" for option in command.options)]
    assert re.findall(r'"[^"]+"|[\w-]+', line.split("__tardis_machine_in ")[1].split("'")[0]) == [
        f'"{name}"' if " " in name else name for name in takers
    ]
    assert "-r -F" in line


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell, script in (("bash", bash_script), ("zsh", zsh_script), ("fish", fish_script)):
        assert cli.main(["completion", shell]) == 0
        assert capsys.readouterr().out == script()
    assert cli.main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err == "error: SHELL: expected bash, zsh or fish, got 'tcsh'\n"
