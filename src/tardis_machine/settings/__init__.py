"""Settings: every option declared once, read from the command line, the environment, a TOML file or keyword arguments.

Invariant: nothing here imports more than the standard library and `errors`, until a bus is named.
"""

from __future__ import annotations

from .defaults import state_dir
from .option import Option
from .resolve import Settings, from_format_options, from_keywords, resolve
from .values import (
    Refused,
    ValueParser,
    duration,
    duration_ms,
    hosts,
    integer,
    items,
    pairs,
    path,
    size_bytes,
    switch,
    text,
    url,
)

__all__ = [
    "Option",
    "Refused",
    "Settings",
    "ValueParser",
    "duration",
    "duration_ms",
    "from_format_options",
    "from_keywords",
    "hosts",
    "integer",
    "items",
    "pairs",
    "path",
    "resolve",
    "size_bytes",
    "state_dir",
    "switch",
    "text",
    "url",
]
