"""The options that every command takes.

Invariant: each command lists `GENERAL_OPTIONS` first.
"""

from __future__ import annotations

from ..option import Option
from ..values import path, switch

__all__ = ["CONFIG_OPTION", "GENERAL_OPTIONS"]

CONFIG_OPTION = Option(
    name="config", help="TOML file with any of these options", group="general", parse=path, metavar="FILE.toml"
)

GENERAL_OPTIONS = (
    CONFIG_OPTION,
    Option(name="log-format", help="Format of log lines", group="general", choices=("text", "json"), default="text"),
    Option(
        name="log-level",
        help="Lowest level to log",
        group="general",
        choices=("debug", "info", "warning", "error"),
        default="info",
    ),
    Option(
        name="debug",
        help="Log everything, and print the traceback when a command fails",
        group="general",
        parse=switch,
        default=False,
    ),
)
