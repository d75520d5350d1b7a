"""The commands, and the options that are not of a bus. Adding a command, or an option, is one entry here.

Invariant: a command's function is named, not imported; it takes the resolved settings and returns the exit code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path

from .option import Option
from .values import duration, integer, items, pairs, path, size_bytes, switch, text, url

__all__ = ["COMMANDS", "CONFIG_OPTION", "Command", "all_options", "state_dir"]

HISTORY_API_URL = "https://api.tardis.dev/v1"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of the program."""

    name: str
    target: str
    """`module:function`, imported when the command runs."""
    help: str
    declared: tuple[Option | str, ...]
    """Its options; `module:NAME` is a tuple of them that stands beside the code that reads them."""
    takes_buses: bool = False
    """The options of every event bus belong to it too."""
    extra: str = ""
    """The extra that brings the packages it can't do without."""

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """What it takes, without the options of the buses."""
        return tuple(option for declared in self.declared for option in _load(declared))


def _load(declared: Option | str) -> tuple[Option, ...]:
    if isinstance(declared, Option):
        return (declared,)
    module, _, name = declared.partition(":")
    options: tuple[Option, ...] = getattr(import_module(module), name)
    return options


def state_dir(environ: Mapping[str, str]) -> Path:
    """Where the user's programs keep what must survive them."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path("~/.local/state").expanduser()) / "tardis-machine"


def _cores(_environ: Mapping[str, str]) -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache_dir(_environ: Mapping[str, str]) -> Path:
    from tempfile import gettempdir

    return Path(gettempdir()) / ".tardis-cache"


CONFIG_OPTION = Option(
    name="config", help="TOML file with any of these options", group="general", parse=path, metavar="FILE.toml"
)

GENERAL = (
    CONFIG_OPTION,
    Option(name="log-format", help="How log lines are written", group="general", choices=("text", "json"), default="text"),
    Option(
        name="log-level",
        help="The least important lines to log",
        group="general",
        choices=("debug", "info", "warning", "error"),
        default="info",
    ),
    Option(
        name="debug", help="Logs everything, and prints the traceback of an error", group="general", parse=switch, default=False
    ),
)

HISTORY_SOURCE = (
    Option(name="api-key", help="Key of the history API", group="history", parse=text(), metavar="KEY", secret=True),
    Option(name="api-url", help="Base of the history API", group="history", parse=url("http", "https"), default=HISTORY_API_URL),
    Option(
        name="cache-dir",
        help="Where fetched history is kept",
        group="history",
        parse=path,
        default=_cache_dir,
        default_text="{temp}/.tardis-cache",
    ),
)

HISTORY = (
    *HISTORY_SOURCE,
    Option(name="clear-cache", help="Empties the cache at start", group="history", parse=switch, default=False),
)

SERVER = (
    Option(name="host", help="Address to listen on", group="server", parse=text(), metavar="HOST", default="127.0.0.1"),
    Option(
        name="port",
        help="Port of HTTP; WebSocket is on it too, and on the next one",
        group="server",
        parse=integer(0, 65534, "PORT"),
        default=8000,
        variables=("PORT",),
    ),
    Option(
        name="auth-token",
        help="Token that clients must send (Authorization: Bearer …); without it, anyone who reaches the port is served",
        group="server",
        parse=text(),
        metavar="TOKEN",
        secret=True,
    ),
    Option(
        name="cluster-mode",
        help="Accepted from older configurations, and ignored: see workers",
        group="server",
        parse=switch,
        default=False,
    ),
)

SHUTDOWN_TIMEOUT = Option(
    name="shutdown-timeout", help="How long a drain may take", group="server", parse=duration(), default=30.0
)

ENGINE = (
    Option(
        name="workers",
        help="Processes that normalize; 0 normalizes in the server itself, for debugging",
        group="server",
        parse=integer(0, 1024),
        default=_cores,
        default_text="the number of cores",
    ),
    SHUTDOWN_TIMEOUT,
)

MAX_LIVE_REQUESTS = Option(
    name="max-live-requests",
    help="Live requests at a time; each has a process of its own",
    group="live",
    parse=integer(1, 10_000),
    default=64,
)

LIVE = (
    Option(
        name="exchange-urls",
        help="Where exchanges are, other than at their own addresses: bitmex:ws://…, binance-rest:http://…",
        group="live",
        parse=pairs(
            value=url("ws", "wss", "http", "https"), takes="exchange:URL with commas between them, exchange-rest for REST"
        ),
    ),
)

BUS_BY_NAME = (
    Option(
        name="bus",
        help="Buses to publish to, by name: how one that an installed package brings is turned on",
        group="publisher",
        parse=items(str, takes="names of buses with commas between them"),
    ),
    Option(
        name="bus-option",
        help="Options of these buses, without their prefix; bus.name=value where there are several",
        group="publisher",
        parse=pairs(separator="="),
        repeated=True,
        secret=True,
    ),
)

PUBLISHER = (
    *BUS_BY_NAME,
    Option(
        name="spool-dir",
        help="Where events wait on disk, a folder for each bus",
        group="publisher",
        parse=path,
        default=lambda environ: state_dir(environ) / "spool",
        default_text="{state}/spool",
    ),
    Option(
        name="spool-max-bytes", help="Bound of the spool of one bus", group="publisher", parse=size_bytes(1), default=4 * 1024**3
    ),
    Option(
        name="spool-mode",
        help="What goes to disk: what the queue can't hold, or every event before it is sent",
        group="publisher",
        choices=("overflow", "always"),
        default="overflow",
    ),
    Option(
        name="book-changes",
        help="One event for each book change message, or for each of its levels",
        group="publisher",
        choices=("message", "level"),
        default="message",
    ),
)

LAKE = "tardis_machine.lakehouse.options:LAKE_OPTIONS"

COMPLETION = (
    Option(
        name="shell",
        help="The shell that completes",
        group="completion",
        choices=("bash", "zsh", "fish"),
        positional=True,
        required=True,
    ),
)

EXCHANGES = (Option(name="format", help="How to print the list", group="exchanges", choices=("table", "json"), default="table"),)

DOCTOR = (
    Option(name="check-timeout", help="How long each check of a bus may take", group="doctor", parse=duration(0.1), default=15.0),
    Option(name="probe", help="Publishes one probe event to each bus", group="doctor", parse=switch, default=True),
)

CONFIG = (
    Option(name="docs", help="Prints the table of all options in Markdown instead", group="config", parse=switch, default=False),
)

SERVE = Command(
    name="serve",
    target="tardis_machine.commands.serve:run",
    help="Serve HTTP and WebSocket, and publish to the buses that are on (what no command means)",
    declared=(*GENERAL, *SERVER, *ENGINE, *HISTORY, *LIVE, MAX_LIVE_REQUESTS, *PUBLISHER),
    takes_buses=True,
)

COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        SERVE,
        Command(
            name="replay",
            target="tardis_machine.commands.replay.run:run",
            help="Replay one request to standard output, a file or the buses that are on",
            declared=(*GENERAL, "tardis_machine.commands.replay.options:REPLAY_OPTIONS", *ENGINE, *HISTORY, *PUBLISHER),
            takes_buses=True,
        ),
        Command(
            name="stream",
            target="tardis_machine.commands.stream.run:run",
            help="Keep live data flowing to the buses that are on, or to standard output",
            declared=(*GENERAL, "tardis_machine.commands.stream.options:STREAM_OPTIONS", SHUTDOWN_TIMEOUT, *LIVE, *PUBLISHER),
            takes_buses=True,
        ),
        Command(
            name="lake ingest",
            target="tardis_machine.lakehouse.jobs:ingest",
            extra="spark",
            help="Take a bus into the lake",
            declared=(*GENERAL, LAKE, "tardis_machine.lakehouse.options:INGEST_OPTIONS"),
            takes_buses=True,
        ),
        Command(
            name="lake sql",
            target="tardis_machine.lakehouse.sql:run",
            extra="spark",
            help="Ask the lake",
            declared=(*GENERAL, LAKE, "tardis_machine.lakehouse.options:SQL_OPTIONS"),
        ),
        Command(
            name="lake backfill",
            target="tardis_machine.lakehouse.backfill:run",
            extra="spark",
            help="Bring history to the lake, without a bus",
            declared=(*GENERAL, *HISTORY_SOURCE, LAKE, "tardis_machine.lakehouse.options:BACKFILL_OPTIONS"),
        ),
        Command(
            name="lake verify",
            target="tardis_machine.lakehouse.verify:run",
            extra="spark",
            help="Compare what was published with what is in the lake; exit code 1 where something is missing",
            declared=(*GENERAL, LAKE, "tardis_machine.lakehouse.options:VERIFY_OPTIONS"),
        ),
        Command(
            name="lake optimize",
            target="tardis_machine.lakehouse.optimize:run",
            extra="spark",
            help="Join small files, and remove those that are needed no more",
            declared=(*GENERAL, LAKE, "tardis_machine.lakehouse.options:OPTIMIZE_OPTIONS"),
        ),
        Command(
            name="exchanges",
            target="tardis_machine.commands.exchanges:run",
            help="List what is supported",
            declared=(*GENERAL, *EXCHANGES),
        ),
        Command(
            name="demo",
            target="tardis_machine.commands.demo.run:run",
            extra="spark",
            help="Run everything at once on sample data: no account, no network, no broker",
            declared=(*GENERAL, *HISTORY, LAKE, "tardis_machine.commands.demo.options:DEMO_OPTIONS"),
            takes_buses=True,
        ),
        Command(
            name="doctor",
            target="tardis_machine.commands.doctor:run",
            help="Check every bus that is on: reachable, allowed, large enough, and one probe event",
            declared=(*GENERAL, *BUS_BY_NAME, *DOCTOR),
            takes_buses=True,
        ),
        Command(
            name="config",
            target="tardis_machine.settings.report:run",
            help="Print what is in force and where each value came from",
            declared=(*SERVE.declared, LAKE, *CONFIG),
            takes_buses=True,
        ),
        Command(
            name="completion",
            target="tardis_machine.commands.completion:run",
            help="Print a script that completes commands and options in bash, zsh or fish",
            declared=(*GENERAL, *COMPLETION),
        ),
    )
}


def all_options() -> tuple[Option, ...]:
    """Every option of every command once, without those of the buses."""
    return tuple(dict.fromkeys(option for command in COMMANDS.values() for option in command.options))
