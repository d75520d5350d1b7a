"""The program: finds the command, resolves its settings, runs it, and turns errors into one line and an exit code.

Invariant: nothing is imported for a command that does not run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import takewhile

from ..errors import MissingExtraError, TardisMachineError, UsageError
from ..settings import Settings, resolve
from ..settings.commands import COMMANDS, Command
from ..settings.option import one_of
from .exit_codes import BROKEN_PIPE, FAILED, INTERRUPTED, USAGE

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except UsageError as error:
        _complain(str(error))
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone; the interpreter's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def _run(argv: Sequence[str]) -> int:
    options = argv[: argv.index("--")] if "--" in argv else argv
    if "--version" in options:
        from .._version import __version__

        print(f"tardis-machine {__version__}")
        return 0
    wants_help = "--help" in options or "-h" in options
    words = list(takewhile(lambda word: not word.startswith("-"), argv))
    if wants_help and (not words or _family(words)):
        from ..settings.help import program_help

        print(program_help(" ".join(words)), end="")
        return 0
    command = _find_command(words)
    if wants_help:
        from ..settings.help import command_help

        print(command_help(command), end="")
        return 0
    rest = argv[len(command.name.split()) :] if words else argv
    return _execute(command, resolve(rest, command=command.name))


def _family(words: Sequence[str]) -> list[str]:
    """The commands of two words of which only the first is given."""
    return [name for name in COMMANDS if name.startswith(f"{words[0]} ")] if len(words) == 1 else []


def _find_command(words: Sequence[str]) -> Command:
    """The command that the first words name; none is `serve`."""
    if not words:
        return COMMANDS["serve"]
    for name in (" ".join(words[:2]), words[0]):
        if name in COMMANDS:
            return COMMANDS[name]
    from difflib import get_close_matches

    if family := _family(words):
        raise UsageError(f"{words[0]!r} needs a command: {one_of(tuple(name.partition(' ')[2] for name in family))}")
    given = " ".join(words[:2]) if _family(words[:1]) else words[0]
    nearest = get_close_matches(given, COMMANDS, 1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"expected {one_of(tuple(COMMANDS))}"
    raise UsageError(f"{given!r} is not a command: {hint}")


def _execute(command: Command, settings: Settings) -> int:
    """Runs a command with logging set up and secrets hidden; what it did not expect is an error that ends it."""
    from .. import telemetry

    telemetry.hide(*settings.secrets())
    telemetry.setup_logging(settings.log_format, "debug" if settings.debug else settings.log_level)
    module, _, function = command.target.partition(":")
    try:
        run: Callable[[Settings], int] = getattr(import_module(f".{module}", __package__), function)
        return run(settings)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            raise
        failure = _missing_extra(command, error) or error
        is_expected = isinstance(failure, TardisMachineError)
        if settings.debug or not is_expected:
            import traceback

            print(telemetry.redact("".join(traceback.format_exception(failure))), end="", file=sys.stderr)
        _complain(telemetry.redact(str(failure) if is_expected else f"{type(failure).__name__}: {failure}"))
        return USAGE if isinstance(failure, UsageError) else FAILED


def _missing_extra(command: Command, error: Exception) -> MissingExtraError | None:
    """What a module that is not there means for a command that needs an extra."""
    if not command.extra or not isinstance(error, ModuleNotFoundError) or (error.name or "").startswith("tardis_machine"):
        return None
    missing = MissingExtraError(f"'{command.name}'", command.extra)
    missing.__cause__ = error
    return missing


def _nobody_reads() -> bool:
    """Whether it is standard output that broke, and not a connection of the command's own."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError):  # no poll on this system; no real file
        return not hasattr(select, "poll")
    return bool(poll.poll(0))


def _complain(text: str) -> None:
    for line in text.splitlines():
        print(f"error: {line}", file=sys.stderr)
