"""Requests from the flags of `replay` and `stream`: the same requests that the server takes as JSON.

Invariant: a mistake is refused for the same reason as by the server; the sentence names the flag instead of the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from ..errors import OptionsError
from ..pipeline.request import (
    NormalizedRequest,
    RawRequest,
    SinceRequest,
    StreamRequest,
    parse_normalized_requests,
    parse_raw_request,
    parse_replay_requests,
    parse_stream_requests,
)
from ..settings import Settings
from ..settings.options.replay import REPLAY_REQUEST_FLAGS
from ..settings.options.stream import STREAM_REQUEST_FLAGS

__all__ = ["ReplayRequests", "replay_requests", "stream_requests"]

ReplayRequests = Sequence[RawRequest] | Sequence[NormalizedRequest]


def replay_requests(settings: Settings) -> ReplayRequests:
    """One raw request, or normalized ones to merge."""
    flags = REPLAY_REQUEST_FLAGS
    fields = _given_fields(settings, flags)
    has_json = settings["options"] is not None
    if not has_json:
        _refuse_misplaced(fields, raw=settings.raw)
        # Both fields have the same flag; each kind of request knows one of them.
        fields.pop("withDisconnectMessages" if settings.raw else "withDisconnects", None)
        for name in ("filters", "faults"):
            if name in fields:
                fields[name] = _read_json(f"--{name}", fields[name])
    options = _to_options(settings, fields, flags, needed="--exchange, --options or --dead-letter is required")
    try:
        return [parse_raw_request(options)] if settings.raw else parse_normalized_requests(options)
    except OptionsError as error:
        raise _name_flag(error, flags, has_json=has_json) from None


def stream_requests(settings: Settings) -> Sequence[StreamRequest] | Sequence[SinceRequest]:
    """Live requests, each to be run on its own; with a date to begin at, replays that go on live."""
    flags = STREAM_REQUEST_FLAGS
    fields = _given_fields(settings, flags)
    if "timeoutIntervalMS" in fields:
        fields["timeoutIntervalMS"] *= 1000
    options = _to_options(settings, fields, flags, needed="--exchange or --options is required")
    try:
        items = options if isinstance(options, list) else [options]
        if not any(isinstance(item, Mapping) and "from" in item for item in items):
            return parse_stream_requests(options)
        return _endless(parse_replay_requests(options))
    except OptionsError as error:
        raise _name_flag(error, flags, has_json=settings["options"] is not None) from None


def _endless(requests: Sequence[NormalizedRequest] | Sequence[SinceRequest]) -> list[SinceRequest]:
    since = [request for request in requests if isinstance(request, SinceRequest)]
    if len(since) < len(requests):
        raise OptionsError("to: stream goes on for ever; use replay for history that ends", "to")
    return since


def _given_fields(settings: Settings, flags: Mapping[str, str]) -> dict[str, Any]:
    """The fields whose flags were given, with values as JSON would hold them."""
    attributes = {field: "from_" if flag == "from" else flag.replace("-", "_") for field, flag in flags.items()}
    given = {field: settings[name] for field, name in attributes.items() if settings.source(name) != "default"}
    return {field: list(value) if isinstance(value, tuple) else value for field, value in given.items()}


def _to_options(settings: Settings, fields: dict[str, Any], flags: Mapping[str, str], *, needed: str) -> Any:
    """What the server would take: the fields, or the JSON of --options, which excludes them."""
    if settings["options"] is None:
        if "exchange" not in fields:
            raise OptionsError(needed, "exchange")
        return fields
    for field in fields:
        raise OptionsError(f"--{flags[field]} can't be combined with --options, which holds the whole request", field)
    return _read_json("--options", settings["options"])


def _refuse_misplaced(fields: Mapping[str, Any], *, raw: bool) -> None:
    misplaced = ("symbols", "dataTypes") if raw else ("filters",)
    reason = "can't be combined with --raw; use --filters" if raw else "is only for raw history; add --raw"
    for field in misplaced:
        if field in fields:
            raise OptionsError(f"--{REPLAY_REQUEST_FLAGS[field]} {reason}", field)


def _name_flag(error: OptionsError, flags: Mapping[str, str], *, has_json: bool) -> OptionsError:
    """The same error, naming what the user wrote."""
    sentence, field = str(error), error.field or ""
    if has_json:
        return OptionsError(f"--{sentence}" if field == "options" else f"--options: {sentence}", field)
    name = re.split(r"[.\[]", field)[0]
    return OptionsError(f"--{flags[name]}{sentence.removeprefix(name)}" if name in flags else sentence, field)


def _read_json(flag: str, given: str) -> Any:
    """The JSON that a flag has as its value, or in the file that `@` names."""
    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise OptionsError(f"{flag}: can't read {given[1:]!r}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise OptionsError(f"{flag}: {given[1:]!r} is not a text file; expected JSON") from None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OptionsError(f"{flag}: expected JSON, or @ and the name of a file that holds it ({error})") from None
