"""docs/security.md has each limit of the server with its option, and with the default that it has."""

from __future__ import annotations

import re
from pathlib import Path

from tardis_machine.settings.buses import bus_options
from tardis_machine.settings.commands import SERVE
from tardis_machine.settings.option import Option

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
ROW = re.compile(r"^\| `--([\w-]+)` \| ([^|]+) \|", re.MULTILINE)
LIMIT = re.compile(r"(max|.*-max-bytes|.*-timeout|(BUS-)?max-(?!batch|retries).*)")
NO_LIMITS = {"shutdown-timeout", "BUS-max-bytes"}
"""What is called as a limit is, and bounds nobody: how long a stop may take, and when a file is full."""


def declared() -> dict[str, Option]:
    """All options of the server, those of a bus as the page calls them."""
    of_a_bus = {f"BUS-{option.name.removeprefix('file-')}": option for option in bus_options("file")}
    return {option.name: option for option in SERVE.options} | of_a_bus


def test_each_default_is_as_it_is() -> None:
    options = declared()
    rows = [(name, default) for name, default in ROW.findall(PAGE.read_text()) if LIMIT.fullmatch(name)]
    assert len(rows) > 15
    for name, default in rows:
        assert options[name].parse(default.replace(" ", "")) == options[name].default, name


def test_no_limit_is_missing() -> None:
    there = {name for name, _ in ROW.findall(PAGE.read_text())}
    limits = {name for name in declared() if LIMIT.fullmatch(name)} - NO_LIMITS
    assert limits <= there, limits - there
