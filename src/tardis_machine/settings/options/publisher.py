"""The options of publishing that are the same whatever bus is on.

Invariant: no bus is imported.
"""

from __future__ import annotations

from ..defaults import state_dir
from ..option import Option
from ..values import items, pairs, path, size_bytes, url

__all__ = ["BUS_BY_NAME_OPTIONS", "PUBLISHER_OPTIONS"]

BUS_BY_NAME_OPTIONS = (
    Option(
        name="bus",
        help="Buses to publish to, by name; this is how a bus from another installed package is turned on",
        group="publisher",
        parse=items(str, takes="names of buses, separated by commas"),
    ),
    Option(
        name="bus-option",
        help="Options of the buses that --bus names, without their prefix; bus.name=value where there are several buses",
        group="publisher",
        parse=pairs(separator="="),
        repeated=True,
        secret=True,
    ),
)

PUBLISHER_OPTIONS = (
    *BUS_BY_NAME_OPTIONS,
    Option(
        name="otel-endpoint",
        help="OpenTelemetry collector (OTLP over HTTP, such as http://localhost:4318) that is told of what is published",
        group="publisher",
        parse=url("http", "https"),
    ),
    Option(
        name="spool-dir",
        help="Folder where events wait on disk, with a sub-folder for each bus",
        group="publisher",
        parse=path,
        default=lambda environ: state_dir(environ) / "spool",
        default_text="{state}/spool",
    ),
    Option(
        name="spool-max-bytes",
        help="Largest size of the spool of one bus",
        group="publisher",
        parse=size_bytes(1),
        default=4 * 1024**3,
    ),
    Option(
        name="spool-mode",
        help="What goes to disk: only what the queue can't hold, or every event before it is sent",
        group="publisher",
        choices=("overflow", "always"),
        default="overflow",
    ),
    Option(
        name="book-changes",
        help="Publish one event for each book change message, or one for each level in it",
        group="publisher",
        choices=("message", "level"),
        default="message",
    ),
)
