"""What `--help` prints, from the declarations alone.

Invariant: defaults are those of this machine, and no secret is among them.
"""

from __future__ import annotations

import os
from textwrap import wrap

from .buses import BUS_MODULES, required_options
from .catalogue import Catalogue
from .commands import COMMANDS, Command
from .option import Option, by_group, one_of

__all__ = ["command_help", "heading", "program_help"]

_LEFT = 34
_PRECEDENCE = (
    "Every option is also a variable (--log-level is TM_LOG_LEVEL) and a key of the file that --config names. "
    "The command line beats the environment, which beats the file; 'tardis-machine config' prints what is in force."
)


def heading(group: str) -> str:
    """A group as a title; of a bus, also what turns it on."""
    if group not in BUS_MODULES:
        return group.capitalize()
    needed = " and ".join(one_of(tuple(option.flag for option in options)) for options in required_options(group))
    title = group.upper() if group in ("nats", "sqs") else group.capitalize()
    return f"{title} bus (on with {needed})"


def program_help(prefix: str = "") -> str:
    """Usage, commands and the server's options; with a prefix (`lake`), the commands that begin with it."""
    commands = [command for command in COMMANDS.values() if not prefix or command.name.startswith(f"{prefix} ")]
    lines = [f"Usage: tardis-machine {f'{prefix} COMMAND' if prefix else '[COMMAND]'} [OPTIONS]", "", "Commands"]
    lines += [line for command in commands for line in _entry(command.name, command.help)]
    lines += _entry("COMMAND --help", "What a command takes")
    return "\n".join(lines if prefix else [*lines, "", *_options(COMMANDS["serve"])]) + "\n"


def command_help(command: Command) -> str:
    """Usage and options of one command."""
    arguments = "".join(f" {option.flag}" for option in command.options if option.positional)
    return (
        "\n".join([f"Usage: tardis-machine {command.name}{arguments} [OPTIONS]", "", command.help, "", *_options(command)]) + "\n"
    )


def _options(command: Command) -> list[str]:
    catalogue = Catalogue(command)
    catalogue.load_all()
    lines: list[str] = []
    groups = by_group(catalogue.options)
    # What is the command's own comes first, what all have in common last but for the buses.
    for group in sorted(groups, key=lambda group: (group in BUS_MODULES, group == "general", group != command.name)):
        lines += wrap(heading(group), _width(), subsequent_indent="  ", break_on_hyphens=False)
        lines += [line for option in groups[group] for line in _option_entry(option)]
        if group == "general":
            lines += [*_entry("--help, -h", "Prints this"), *_entry("--version", "Prints the version")]
        lines.append("")
    return [*lines, *wrap(_PRECEDENCE, _width())]


def _option_entry(option: Option) -> list[str]:
    default = option.show(option.resolve_default(os.environ))
    notes = [f"default {default}"] if default and not option.is_switch else []
    notes += ["may be repeated"] if option.repeated else []
    notes += ["must be given"] if option.required and not option.positional else []
    text = f"{option.help} ({'; '.join(notes)})" if notes else option.help
    left = option.flag if option.positional else f"{option.flag} {option.value_name}".rstrip()
    return _entry(left, text)


def _entry(left: str, text: str) -> list[str]:
    lines = wrap(text, _width() - _LEFT, break_on_hyphens=False)
    if len(left) > _LEFT - 4:
        return [f"  {left}", *(" " * _LEFT + line for line in lines)]
    return [f"  {left}".ljust(_LEFT) + lines[0], *(" " * _LEFT + line for line in lines[1:])]


def _width() -> int:
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
    except (ValueError, OSError):
        columns = 100
    return max(60, min(columns, 120))
