"""The options that every event bus has, generated once for each prefix.

Invariant: they are spelled with the bus's prefix and its own word for a destination, and mean the same for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from ..bronze.payload_case import PAYLOAD_CASES, parse_payload_case
from ..settings import (
    Option,
    Refused,
    ValueParser,
    duration,
    duration_ms,
    integer,
    items,
    pairs,
    path,
    size_bytes,
    state_dir,
    switch,
    text,
)

__all__ = [
    "DEFAULT_KEY_TEMPLATE",
    "PLACEHOLDERS",
    "RESERVED_HEADERS",
    "WITHOUT_SESSION_END",
    "admitted_payloads",
    "common_bus_options",
    "template",
]

DEFAULT_KEY_TEMPLATE = "{{exchange}}|{{symbol}}|{{payloadCase}}"

PLACEHOLDERS = ("exchange", "symbol", "payloadCase", "dataType", "source", "origin")
"""What a template may hold in double braces, beside `meta.NAME`."""

RESERVED_HEADERS = ("payloadCase", "dataType", "eventId")
"""Headers that every record carries; static ones may not take their names."""

SESSION_END = "session_end"
WITHOUT_SESSION_END = "-session_end"
"""In an allow list: the ends of sessions are not published either."""

_PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}")


def _read_payload_case(given: str) -> str:
    try:
        return parse_payload_case(given)
    except ValueError as error:
        raise Refused(str(error)) from None


def _read_included(given: str) -> str:
    if not given.startswith("-"):
        return _read_payload_case(given)
    if _read_payload_case(given[1:]) != SESSION_END:
        raise Refused(
            f"{given!r} can't be left out by name, only {WITHOUT_SESSION_END} can: others are left out by not being listed"
        )
    return WITHOUT_SESSION_END


def admitted_payloads(listed: Sequence[str] | None) -> tuple[str, ...]:
    """The payload cases that an allow list has. The ends of sessions prove what is missing: only who names them goes without."""
    named = {_read_included(case) for case in listed or ()}
    admitted = named - {WITHOUT_SESSION_END} or set(PAYLOAD_CASES)
    admitted = admitted - {SESSION_END} if WITHOUT_SESSION_END in named else admitted | {SESSION_END}
    return tuple(case for case in PAYLOAD_CASES if case in admitted)


def _read_destination(given: str) -> str:
    if not given:
        raise Refused("a payload case has no destination")
    return given


def _read_header_name(given: str) -> str:
    if given.lower() in (name.lower() for name in RESERVED_HEADERS):
        raise Refused(f"{given!r} can't be set: {', '.join(RESERVED_HEADERS)} are written on every record")
    return given


def _read_template(given: str) -> str:
    if not given.strip():
        raise ValueError
    for name in _PLACEHOLDER.findall(given):
        if name not in PLACEHOLDERS and not re.fullmatch(r"meta\.[\w.-]+", name):
            known = ", ".join(f"{{{{{known}}}}}" for known in PLACEHOLDERS)
            raise Refused(f"{{{{{name}}}}} is not a placeholder; expected {known} or {{{{meta.NAME}}}}")
    rest = _PLACEHOLDER.sub("", given)
    if "{{" in rest or "}}" in rest:
        raise Refused("double braces do not match")
    return given


template: ValueParser[str] = ValueParser(_read_template, "text with {{placeholders}}", "TEMPLATE")
"""Text with placeholders, all of them known."""

_payload_cases = items(_read_included, takes="payload cases, separated by commas", metavar="CASE,…")


def common_bus_options(
    prefix: str,
    *,
    destination: Literal["topic", "stream", "subject", "queue", "dir"],
    key_option: str | None = "key-template",
    destination_template: str | None = None,
    headers_option: str = "static-headers",
    aliases: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    max_batch_size: int = 500,
    max_batch_size_limit: int | None = None,
    max_batch_delay_ms: int = 100,
    carries_headers: bool = True,
) -> tuple[Option, ...]:
    """What every bus takes, as `--{prefix}-…`.

    `key_option` and `destination_template` are the names of its templates (`partition-key-template`; `stream-template`), None
    where it has no such thing. `aliases` maps an option to further spellings, all without prefix. Whatever they are called,
    `Settings.for_bus` gives them as routing, include_payloads, key_template, destination_template, static_headers,
    meta_headers_prefix, cloudevents (where the bus carries headers), max_batch_size, max_batch_delay_ms, queue_max_bytes,
    overflow, block_timeout, max_refusals, max_retries, retry_backoff_ms, retry_backoff_max_ms, oversize, dead_letter_dir,
    dead_letter_destination (not for "dir") and dead_letter_max_bytes.
    """

    def option(name: str, help_: str, *, key: str = "", **fields: Any) -> Option:
        also = tuple(f"{prefix}-{alias}" for alias in aliases.get(name, ()))
        return Option(name=f"{prefix}-{name}", help=help_, group=prefix, aliases=also, key=key, **fields)

    # Files all lie in one folder: where their records are to go is a column.
    place = "destination" if destination == "dir" else destination
    base = "others have the base one, in a column of the files" if destination == "dir" else "others go to the base one"
    routing = pairs(
        name=_read_payload_case,
        value=_read_destination,
        takes=f"payload case:{place} pairs separated by commas, such as trade:trades,bookChange:books",
    )
    templates = []
    if key_option is not None:
        help_ = "Key of a record; records of one key stay in order"
        templates.append(option(key_option, help_, parse=template, default=DEFAULT_KEY_TEMPLATE, key="key_template"))
    if destination_template is not None:
        help_ = f"Template of the {place} for payload cases without a route; by default the base {place}"
        templates.append(option(destination_template, help_, parse=template, key="destination_template"))
    cloudevents = []
    if carries_headers:
        help_ = "Whether records have the headers of CloudEvents too (1.0, binary mode)"
        cloudevents.append(option("cloudevents", help_, parse=switch, default=False))
    letters = []
    if destination != "dir":
        help_ = f"The {place} that gets a copy of each dead letter too, with headers that say why"
        letters.append(option(f"dead-letter-{destination}", help_, parse=text(), key="dead_letter_destination"))
    return (
        option(
            f"{destination}-routing",
            f"The {place} of each payload case; {base}",
            parse=routing,
            key="routing",
        ),
        option(
            "include-payloads",
            f"Payload cases to publish, and {SESSION_END} always, unless {WITHOUT_SESSION_END} is listed; others are not encoded",
            parse=_payload_cases,
        ),
        *templates,
        option(
            headers_option, "Headers that are the same on every record", parse=pairs(name=_read_header_name), key="static_headers"
        ),
        option(
            "meta-headers-prefix",
            "Prefix of headers that hold the request's metadata; without it, there are none",
            parse=text(),
            metavar="PREFIX",
        ),
        *cloudevents,
        option("max-batch-size", "Most records in a batch", parse=integer(1, max_batch_size_limit), default=max_batch_size),
        option(
            "max-batch-delay-ms",
            "How long a batch may wait to fill up before it is sent",
            parse=duration_ms(),
            default=max_batch_delay_ms,
        ),
        option("queue-max-bytes", "Largest size of the queue in memory", parse=size_bytes(1), default=64 * 1024**2),
        option(
            "overflow",
            "When the queue is full: spool events, block responses, or drop events",
            choices=("spool", "block", "drop"),
            default="spool",
        ),
        option(
            "block-timeout",
            "How long a response may wait when overflow is block, or for the disk with --spool-mode always",
            parse=duration(),
            default=5.0,
        ),
        option(
            "max-refusals",
            "Records that may go to the dead letters in a row; then the bus pauses, and tries them again",
            parse=integer(1),
            default=1000,
        ),
        option("max-retries", "How often a transient failure is retried", parse=integer(0), default=10),
        option("retry-backoff-ms", "Pause before the first retry; doubles, with jitter", parse=duration_ms(1), default=100),
        option("retry-backoff-max-ms", "Longest pause between retries", parse=duration_ms(1), default=30_000),
        option(
            "oversize",
            "What to do with a record that is too large",
            choices=("dead-letter", "split", "fail"),
            default="dead-letter",
        ),
        option(
            "dead-letter-dir",
            "Folder where events that can't be delivered are kept",
            parse=path,
            default=lambda environ: state_dir(environ) / "dead-letter" / prefix,
            default_text=f"{{state}}/dead-letter/{prefix}",
        ),
        *letters,
        option(
            "dead-letter-max-bytes",
            "Largest size of that folder; what it has no room for waits",
            parse=size_bytes(1024),
            default=1024**3,
        ),
    )
