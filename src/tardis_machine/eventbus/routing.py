"""Where a bus sends each stream: destination, key and headers, from routing maps and templates.

Invariant: a route depends on the stream and the bus's options alone, and is computed once for a stream, never for an event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from ..bronze.event import Event, EventStream
from ..bronze.payload_case import parse_payload_case
from ..bronze.wire import delimited, tag
from ..errors import SettingsError
from .contract import Records, Route
from .options import DEFAULT_KEY_TEMPLATE, RESERVED_HEADERS, admitted_payloads, template

__all__ = ["Router", "Routing", "Template", "to_meta_entries"]

T = TypeVar("T")

_PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_META_TAG = tag(10)
_EVENT_ID_HEADER_BYTES = len("eventId") + 32
# Sessions come and go; past this many routes all are forgotten, and computed anew for the streams that still live.
_ROUTES_KEPT = 50_000

_FIELDS: Mapping[str, Callable[[EventStream], str]] = {
    "exchange": lambda stream: stream.exchange,
    "symbol": lambda stream: stream.symbol,
    "payloadCase": lambda stream: stream.payload_case,
    "dataType": lambda stream: stream.data_type,
    "source": lambda stream: stream.source,
    "origin": lambda stream: stream.origin,
}


class Template:
    """Text with `{{placeholders}}`; ValueError where one is unknown."""

    def __init__(self, text: str) -> None:
        # Literal text and names of placeholders in turn, literal text first and last.
        self._parts = _PLACEHOLDER.split(template(text))

    def render(self, stream: EventStream, escape: Callable[[str], str] = str) -> str:
        """The text for a stream; what the stream lacks is empty. `escape` is applied to what is filled in."""
        parts = list(self._parts)
        parts[1::2] = [escape(_value_of(name, stream)) for name in parts[1::2]]
        return "".join(parts)


def _value_of(placeholder: str, stream: EventStream) -> str:
    if placeholder.startswith("meta."):
        return stream.meta.get(placeholder.removeprefix("meta."), "")
    return _FIELDS[placeholder](stream)


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """How one bus addresses its records, as its options say."""

    destination: str
    """The base destination: takes what `routing` and the template do not."""
    routing: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Payload case to destination."""
    include_payloads: Sequence[str] | None = None
    """The allow list; None admits all. It has `session_end` unless `-session_end` is listed."""
    key_template: str = DEFAULT_KEY_TEMPLATE
    destination_template: str | None = None
    static_headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    header_templates: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Headers whose value depends on the stream."""
    meta_headers_prefix: str | None = None
    headers: bool = True
    """False: records carry no headers at all."""
    cloudevents: str | None = None
    """Before the names of CloudEvents attributes, as the binding of a bus has it (`ce_`, `ce-`); None: there are none."""
    escape: Callable[[str], str] = str
    """What a placeholder's value becomes inside a destination, where the bus does not take every character."""

    @classmethod
    def from_options(
        cls,
        options: Mapping[str, Any],
        destination: str,
        *,
        headers: bool = True,
        escape: Callable[[str], str] = str,
        cloudevents: str = "ce-",
    ) -> Routing:
        """From what `Settings.for_bus` gives."""
        given = {name: options[name] for name in cls.__struct_fields__ if options.get(name) is not None and name in _SHARED}
        prefix = cloudevents if options.get("cloudevents") else None
        return cls(destination=destination, headers=headers, escape=escape, cloudevents=prefix, **given)


_SHARED = (
    "routing",
    "include_payloads",
    "key_template",
    "destination_template",
    "static_headers",
    "header_templates",
    "meta_headers_prefix",
)


class Router:
    """Routes streams for one bus. SettingsError holds a sentence for each thing that is wrong with the options."""

    def __init__(self, bus: str, routing: Routing, *, carries_headers: bool = True) -> None:
        problems: list[str] = []
        self._destination = routing.destination
        routed = _read(bus, "routing", lambda: {parse_payload_case(case): to for case, to in routing.routing.items()}, problems)
        self._by_case = routed or {}
        listed = routing.include_payloads
        cases = None
        if listed is not None:
            cases = _read(bus, "allow list", lambda: frozenset(admitted_payloads(listed)), problems)
        self.include = cases
        """The payload cases that the bus takes, None for all."""
        self._key = _read(bus, "key template", lambda: Template(routing.key_template), problems)
        chosen = routing.destination_template
        self._template = None if chosen is None else _read(bus, "destination template", lambda: Template(chosen), problems)
        self._static = _read(bus, "static headers", lambda: _checked_headers(routing.static_headers), problems) or []
        self._header_templates = _read(bus, "header templates", lambda: _checked_templates(routing), problems) or []
        self._meta_prefix = routing.meta_headers_prefix
        self._cloudevents = routing.cloudevents
        self._has_headers = routing.headers and carries_headers
        self._suffix = b"" if carries_headers else to_meta_entries(routing.static_headers)
        self._escape = routing.escape
        self._routes: dict[tuple[str, str, str, str, str], Route] = {}
        if problems:
            raise SettingsError(problems)

    def admits(self, payload_case: str) -> bool:
        """Whether the allow list has it."""
        return self.include is None or payload_case in self.include

    def route(self, stream: EventStream) -> Route:
        """The stream's route, whether or not it is admitted."""
        identity = (stream.session_id, stream.exchange, stream.symbol, stream.payload_case, stream.data_type)
        route = self._routes.get(identity)
        if route is None:
            if len(self._routes) >= _ROUTES_KEPT:
                self._routes.clear()
            route = self._routes[identity] = self._compute(stream)
        return route

    def route_events(self, events: list[Event]) -> Records:
        """The events as records, whether or not they are admitted."""
        return Records([self.route(event.stream) for event in events], events)

    def _compute(self, stream: EventStream) -> Route:
        assert self._key is not None
        destination = self._destination_of(stream)
        key = self._key.render(stream)
        before: list[tuple[str, bytes]] = []
        after: list[tuple[str, bytes]] = []
        also_id_header, traceparent = "", stream.meta.get("traceparent", "")
        if self._has_headers:
            before = [("payloadCase", stream.payload_case.encode()), ("dataType", stream.data_type.encode())]
            if self._cloudevents is not None:
                after += to_cloudevent_headers(stream, self._cloudevents)
                also_id_header = f"{self._cloudevents}id"
            after += [*self._static, *((name, text.render(stream).encode()) for name, text in self._header_templates)]
            if traceparent:
                after.append(("traceparent", traceparent.encode()))
            if self._meta_prefix is not None:
                taken = {name for name, _ in after} | set(RESERVED_HEADERS)
                named = [(f"{self._meta_prefix}{name}", value.encode()) for name, value in sorted(stream.meta.items())]
                after += [(name, value) for name, value in named if name not in taken]
        overhead = len(key.encode()) + len(self._suffix) + sum(len(name) + len(value) for name, value in before + after)
        return Route(
            destination=destination,
            key=key,
            payload_case=stream.payload_case,
            session_id=stream.session_id,
            headers_before=tuple(before),
            headers_after=tuple(after),
            has_headers=self._has_headers,
            value_suffix=self._suffix,
            overhead_bytes=overhead
            + (_EVENT_ID_HEADER_BYTES if self._has_headers else 0)
            + (len(also_id_header) + 32 if also_id_header else 0),
            lane=(destination, key),
            traceparent=traceparent,
            also_id_header=also_id_header,
        )

    def _destination_of(self, stream: EventStream) -> str:
        routed = self._by_case.get(stream.payload_case)
        if routed is not None:
            return routed
        # A session's end concerns no exchange or symbol: a template would name a place nobody listens at.
        if self._template is None or stream.payload_case == "session_end":
            return self._destination
        return self._template.render(stream, self._escape)


def to_cloudevent_headers(stream: EventStream, prefix: str) -> list[tuple[str, bytes]]:
    """CloudEvents attributes (1.0, binary content mode) of a stream's events; each event's id comes beside them."""
    attributes = {
        "specversion": "1.0",
        "source": f"tardis-machine/{quote(stream.exchange)}",
        "type": f"lakehouse.bronze.v1.{stream.payload_case}",
        "subject": stream.symbol,
    }
    named = [(f"{prefix}{name}", value.encode()) for name, value in attributes.items() if value]
    return [("content-type", b"application/protobuf"), *named]


def _read(bus: str, what: str, reader: Callable[[], T], problems: list[str]) -> T | None:
    try:
        return reader()
    except ValueError as error:
        problems.append(f"the {what} of the {bus} bus is wrong: {error}")
        return None


def _checked_headers(headers: Mapping[str, str]) -> list[tuple[str, bytes]]:
    _refuse_reserved(headers)
    return [(name, value.encode()) for name, value in headers.items()]


def _checked_templates(routing: Routing) -> list[tuple[str, Template]]:
    _refuse_reserved(routing.header_templates)
    for name in routing.header_templates:
        if name in routing.static_headers:
            raise ValueError(f"{name!r} is a static header too")
    return [(name, Template(text)) for name, text in routing.header_templates.items()]


def _refuse_reserved(names: Iterable[str]) -> None:
    reserved = {name.lower() for name in RESERVED_HEADERS}
    for name in names:
        if name.lower() in reserved:
            raise ValueError(f"{name!r} can't be set: {', '.join(RESERVED_HEADERS)} are written on every record")


def to_meta_entries(headers: Mapping[str, str]) -> bytes:
    """Entries of the event's meta map; concatenation is merging in Protobuf."""
    entries = (b"\x0a" + delimited(name.encode()) + b"\x12" + delimited(value.encode()) for name, value in headers.items())
    return b"".join(_META_TAG + delimited(entry) for entry in entries)
