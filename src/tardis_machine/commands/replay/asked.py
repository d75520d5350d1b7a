"""What the flags ask for, as the requests that the server would take.

Invariant: the same text is refused for the same reason as over HTTP, naming the flag instead of the field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from ...errors import OptionsError
from ...pipeline.request import NormalizedRequest, RawRequest, parse_normalized_requests, parse_raw_request
from ...settings import Settings
from .options import REQUEST_FLAGS

__all__ = ["Requests", "read_json", "to_requests"]

Requests = Sequence[RawRequest] | Sequence[NormalizedRequest]


def to_requests(settings: Settings) -> Requests:
    """One raw request, or normalized ones to be merged."""
    given = {field: settings[_attribute(flag)] for field, flag in REQUEST_FLAGS.items() if _is_given(settings, flag)}
    _refuse_what_does_not_fit(settings, given)
    if settings["options"] is not None:
        options = read_json("--options", settings["options"])
    elif "exchange" in given:
        options = _to_options(given, raw=settings.raw)
    else:
        raise OptionsError("--exchange is not given, and neither is --options or --dead-letter", "exchange")
    try:
        return [parse_raw_request(options)] if settings.raw else parse_normalized_requests(options)
    except OptionsError as error:
        raise _as_flag(error, whole=settings["options"] is not None) from None


def _to_options(given: dict[str, Any], *, raw: bool) -> dict[str, Any]:
    """The fields that this kind of request has, as JSON would hold them."""
    other = "withDisconnectMessages" if raw else "withDisconnects"
    options: dict[str, Any] = {
        field: list(value) if isinstance(value, tuple) else value for field, value in given.items() if field != other
    }
    if "filters" in options:
        options["filters"] = read_json("--filters", options["filters"])
    return options


def _refuse_what_does_not_fit(settings: Settings, given: dict[str, Any]) -> None:
    if settings["options"] is not None:
        unfit, why = list(given), "--options has the whole request"
    elif settings.raw:
        unfit, why = [field for field in ("symbols", "dataTypes") if field in given], "--raw takes --filters"
    else:
        unfit, why = [field for field in ("filters",) if field in given], "only --raw takes them"
    if unfit:
        flag = f"--{REQUEST_FLAGS[unfit[0]]}"
        raise OptionsError(f"{flag} can't be given here, as {why}", unfit[0])


def _as_flag(error: OptionsError, *, whole: bool) -> OptionsError:
    """The same sentence, naming what the user wrote."""
    sentence, field = str(error), error.field or ""
    if whole:
        return OptionsError(f"--options {sentence}" if field != "options" else f"--{sentence}", field)
    name = re.split(r"[.\[]", field)[0]
    return OptionsError(f"--{REQUEST_FLAGS[name]}{sentence.removeprefix(name)}" if name in REQUEST_FLAGS else sentence, field)


def read_json(flag: str, given: str) -> Any:
    """What a flag says as JSON, or as `@` and the name of a file."""
    if given.startswith("@"):
        try:
            given = Path(given[1:]).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise OptionsError(f"{flag} got {given!r}, which can't be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise OptionsError(f"{flag} got {given!r}, which is no text, but takes JSON") from None
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError as error:
        raise OptionsError(f"{flag} is no JSON ({error}), but takes it, or @ and the name of a file that holds it") from None


def _is_given(settings: Settings, flag: str) -> bool:
    return settings.source(_attribute(flag)) != "default"


def _attribute(flag: str) -> str:
    return {"from": "from_"}.get(flag, flag.replace("-", "_"))
