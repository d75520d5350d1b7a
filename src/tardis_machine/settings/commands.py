"""The commands of the program. Adding a command is one entry here, and a module in `commands/`.

Invariant: a command's function is named, not imported; it takes the resolved settings and returns the exit code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .option import Option
from .options.demo import DEMO_OPTIONS
from .options.export import EXPORT_CSV_OPTIONS, EXPORT_HFTBACKTEST_OPTIONS, EXPORT_NAUTILUS_OPTIONS
from .options.general import GENERAL_OPTIONS
from .options.lake import (
    BACKFILL_OPTIONS,
    CERTIFICATE_OPTIONS,
    INGEST_OPTIONS,
    INSTRUMENTS_OPTIONS,
    LAKE_OPTIONS,
    OPTIMIZE_OPTIONS,
    REGISTER_OPTIONS,
    SQL_OPTIONS,
    VERIFY_OPTIONS,
)
from .options.limits import LIMIT_OPTIONS
from .options.machine import (
    ENGINE_OPTIONS,
    HISTORY_API_OPTIONS,
    HISTORY_OPTIONS,
    LIVE_OPTIONS,
    MAX_LIVE_REQUESTS,
    RECORD_DIR,
    SERVER_OPTIONS,
    SHUTDOWN_TIMEOUT,
)
from .options.publisher import BUS_BY_NAME_OPTIONS, PUBLISHER_OPTIONS
from .options.replay import REPLAY_OPTIONS
from .options.stream import STREAM_OPTIONS
from .values import duration, switch

__all__ = ["COMMANDS", "Command", "all_options"]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of the program."""

    name: str
    target: str
    """`module:function` in `tardis_machine.commands`, imported when the command runs."""
    help: str
    options: tuple[Option, ...]
    """What it takes, without the options of the buses."""
    takes_buses: bool = False
    """It takes the options of every event bus too."""
    extra: str = ""
    """The extra that installs the packages it needs."""


SERVE = Command(
    name="serve",
    target="serve:run",
    help="Serve HTTP and WebSocket, and publish to the buses that are on (the default command)",
    options=(
        *GENERAL_OPTIONS,
        *SERVER_OPTIONS,
        *ENGINE_OPTIONS,
        *HISTORY_OPTIONS,
        *LIVE_OPTIONS,
        MAX_LIVE_REQUESTS,
        *LIMIT_OPTIONS,
        *PUBLISHER_OPTIONS,
    ),
    takes_buses=True,
)

COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        SERVE,
        Command(
            name="replay",
            target="replay:run",
            help="Replay one request to standard output, a file or the buses that are on",
            options=(*GENERAL_OPTIONS, *REPLAY_OPTIONS, *ENGINE_OPTIONS, *HISTORY_OPTIONS, *PUBLISHER_OPTIONS),
            takes_buses=True,
        ),
        Command(
            name="stream",
            target="stream:run",
            help="Keep live data flowing to the buses that are on, or to standard output",
            options=(
                *GENERAL_OPTIONS,
                *STREAM_OPTIONS,
                *HISTORY_API_OPTIONS,
                RECORD_DIR,
                SHUTDOWN_TIMEOUT,
                *LIVE_OPTIONS,
                *PUBLISHER_OPTIONS,
            ),
            takes_buses=True,
        ),
        Command(
            name="lake ingest",
            target="lake:ingest",
            extra="spark",
            help="Load events from a bus into the lake",
            options=(*GENERAL_OPTIONS, *LAKE_OPTIONS, *INGEST_OPTIONS),
            takes_buses=True,
        ),
        Command(
            name="lake sql",
            target="lake:sql",
            extra="spark",
            help="Query the lake",
            options=(*GENERAL_OPTIONS, *LAKE_OPTIONS, *SQL_OPTIONS),
        ),
        Command(
            name="lake backfill",
            target="lake:backfill",
            extra="spark",
            help="Load history into the lake, without a bus",
            options=(*GENERAL_OPTIONS, *HISTORY_API_OPTIONS, *LAKE_OPTIONS, *BACKFILL_OPTIONS),
        ),
        Command(
            name="lake instruments",
            target="lake:instruments",
            extra="spark",
            help="Ask the history API what contracts are worth, and keep it in the lake",
            options=(*GENERAL_OPTIONS, *HISTORY_API_OPTIONS, *LAKE_OPTIONS, *INSTRUMENTS_OPTIONS),
        ),
        Command(
            name="lake verify",
            target="lake:verify",
            extra="spark",
            help="Compare what was published with what is in the lake; exit code 1 when something is missing",
            options=(*GENERAL_OPTIONS, *HISTORY_API_OPTIONS, RECORD_DIR, *LAKE_OPTIONS, *VERIFY_OPTIONS),
        ),
        Command(
            name="lake certificate",
            target="lake:certificate",
            extra="spark",
            help="Write what the lake has of a symbol and day, with digests and table versions; or check what was written",
            options=(*GENERAL_OPTIONS, *LAKE_OPTIONS, *CERTIFICATE_OPTIONS),
        ),
        Command(
            name="lake optimize",
            target="lake:optimize",
            extra="spark",
            help="Join small files, and remove files that are no longer needed",
            options=(*GENERAL_OPTIONS, *LAKE_OPTIONS, *OPTIMIZE_OPTIONS),
        ),
        Command(
            name="lake register",
            target="lake:register",
            extra="spark",
            help="Make the tables known to a catalog of Spark's, and print the statements that do so",
            options=(*GENERAL_OPTIONS, *LAKE_OPTIONS, *REGISTER_OPTIONS),
        ),
        Command(
            name="export csv",
            target="export:csv",
            help="Write history as CSV files in the layouts of tardis.dev's datasets, a day a file",
            options=(*GENERAL_OPTIONS, *EXPORT_CSV_OPTIONS, *ENGINE_OPTIONS, *HISTORY_OPTIONS),
        ),
        Command(
            name="export nautilus",
            target="export_backtests:nautilus",
            extra="export",
            help="Write history as a Parquet catalog of NautilusTrader, counted against a ledger",
            options=(*GENERAL_OPTIONS, *EXPORT_NAUTILUS_OPTIONS, *ENGINE_OPTIONS, *HISTORY_OPTIONS),
        ),
        Command(
            name="export hftbacktest",
            target="export_backtests:hftbacktest",
            extra="export",
            help="Write history as arrays of hftbacktest, counted against a ledger",
            options=(*GENERAL_OPTIONS, *EXPORT_HFTBACKTEST_OPTIONS, *ENGINE_OPTIONS, *HISTORY_OPTIONS),
        ),
        Command(
            name="exchanges",
            target="exchanges:run",
            help="List the supported exchanges and their data types",
            options=(
                *GENERAL_OPTIONS,
                Option(
                    name="format",
                    help="How to print the list",
                    group="exchanges",
                    choices=("table", "json", "markdown"),
                    default="table",
                ),
            ),
        ),
        Command(
            name="demo",
            target="demo.run:run",
            extra="spark",
            help="Run everything at once on sample data: no account, no network, no broker",
            options=(*GENERAL_OPTIONS, *HISTORY_OPTIONS, *LAKE_OPTIONS, *DEMO_OPTIONS),
            takes_buses=True,
        ),
        Command(
            name="doctor",
            target="doctor:run",
            help="Check every bus that is on: connection, permissions, limits, and one probe event",
            options=(
                *GENERAL_OPTIONS,
                *BUS_BY_NAME_OPTIONS,
                Option(
                    name="check-timeout",
                    help="How long each check of a bus may take",
                    group="doctor",
                    parse=duration(0.1),
                    default=15.0,
                ),
                Option(name="probe", help="Publish one probe event to each bus", group="doctor", parse=switch, default=True),
            ),
            takes_buses=True,
        ),
        Command(
            name="config",
            target="config:run",
            help="Print the settings in force, and where each value came from",
            options=(
                *SERVE.options,
                *LAKE_OPTIONS,
                Option(
                    name="docs",
                    help="Print the table of all options in Markdown instead",
                    group="config",
                    parse=switch,
                    default=False,
                ),
            ),
            takes_buses=True,
        ),
        Command(
            name="completion",
            target="completion:run",
            help="Print a script that completes commands and options in bash, zsh or fish",
            options=(
                *GENERAL_OPTIONS,
                Option(
                    name="shell",
                    help="Shell to print the script for",
                    group="completion",
                    choices=("bash", "zsh", "fish"),
                    positional=True,
                    required=True,
                ),
            ),
        ),
    )
}


def all_options() -> tuple[Option, ...]:
    """Every option of every command once, without those of the buses."""
    return tuple(dict.fromkeys(option for command in COMMANDS.values() for option in command.options))
