"""Spans for OpenTelemetry: a session from its request until every bus has confirmed its end, and each batch that is sent for it.

The session's `traceparent` is in the meta of its events, and so in their headers: a consumer's spans join the same trace.

Invariant: nothing of OpenTelemetry is loaded, and nothing is done, unless there is an endpoint; no span is made for an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from .._version import __version__
from ..errors import DeliveryError, MissingExtraError
from ..telemetry import redact
from .contract import Failure, Records

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

__all__ = ["TRACEPARENT", "Tracing"]

TRACEPARENT = "traceparent"
"""The header and the meta entry, as W3C Trace Context names it."""

_SESSIONS_KEPT = 10_000
_FLUSH_MS = 5_000
_SYSTEMS: Mapping[str, str] = {"kinesis": "aws_kinesis", "sqs": "aws_sqs"}
"""What a bus is to OpenTelemetry, where that is not its name here."""


class _OpenSession(msgspec.Struct):
    """A session whose end is not resolved on all buses."""

    span: Span
    unresolved: set[str]
    """Buses."""
    has_begun: bool = False
    """Its first event may come; one that was asked for and refused never begins."""


class Tracing:
    """Tells a collector at `endpoint` (OTLP over HTTP) about the sessions that go to these buses."""

    def __init__(self, endpoint: str, buses: Iterable[str]) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise MissingExtraError("--otel-endpoint", "otel") from None
        url = endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
        resource = Resource.create({"service.name": "tardis-machine", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=_FLUSH_MS / 1000)))
        self._tracer = self._provider.get_tracer("tardis_machine", __version__)
        self._buses = frozenset(buses)
        # By session; one that was asked for and never began is forgotten when there are too many.
        self._open: dict[str, _OpenSession] = {}

    def begin(self, session_id: str, route: str, transport: str, request_id: str, parent: str | None = None) -> str:
        """A request begins a session; the `traceparent` of its events. `parent` is what the client sent as such."""
        from opentelemetry.trace import SpanKind

        attributes = {"session.id": session_id, "tardis.request_id": request_id, "network.protocol.name": transport}
        kind = SpanKind.INTERNAL if transport == "cli" else SpanKind.SERVER
        span = self._tracer.start_span(f"publish {route}", _context_of(parent), kind, attributes)
        if len(self._open) >= _SESSIONS_KEPT:
            del self._open[next(iter(self._open))]
        self._open[session_id] = _OpenSession(span, set(self._buses))
        context = span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def note_begin(self, session_id: str) -> None:
        """The session begins."""
        if (found := self._open.get(session_id)) is not None:
            found.has_begun = True

    def note_end(self, session_id: str, *, complete: bool, reason: str) -> None:
        """All of the session was handed over; its end is on its way."""
        if (found := self._open.get(session_id)) is not None:
            found.span.add_event("session_end", {"complete": complete, "reason": redact(reason)})
            if not complete:
                _fail(found.span, reason)

    def note_resolved(self, bus: str, session_ids: Iterable[str]) -> None:
        """The bus has confirmed the ends of these sessions, or it is known where else they are."""
        for session_id in session_ids:
            found = self._open.get(session_id)
            if found is not None:
                found.unresolved.discard(bus)
                if not found.unresolved:
                    self._open.pop(session_id).span.end()

    def start_batch(self, bus: str, records: Records) -> Span:
        """A batch is sent. It belongs to the session of its events, or, of several, is linked with each."""
        from opentelemetry.trace import Link, SpanKind, get_current_span

        parents = {route.traceparent for route in set(records.routes) if route.traceparent}
        destinations = {route.destination for route in set(records.routes)}
        attributes: dict[str, str | int] = {
            "messaging.system": _SYSTEMS.get(bus, bus),
            "messaging.operation.type": "send",
            "messaging.batch.message_count": len(records),
        }
        if len(destinations) == 1:
            attributes["messaging.destination.name"] = next(iter(destinations))
        contexts = [_context_of(parent) for parent in sorted(parents)]
        parent = contexts[0] if len(contexts) == 1 else None
        links = [Link(get_current_span(context).get_span_context()) for context in contexts] if parent is None else []
        return self._tracer.start_span(f"send {bus}", parent, SpanKind.PRODUCER, attributes, links)

    def end_batch(self, span: Span, failures: Sequence[Failure]) -> None:
        """It was answered."""
        if failures:
            span.set_attribute("tardis.failed_count", len(failures))
            self.fail_batch(span, failures[0].error)
        else:
            span.end()

    def fail_batch(self, span: Span, error: DeliveryError) -> None:
        """Some of it, or all, was not confirmed."""
        span.set_attribute("error.type", type(error).__name__)
        _fail(span, str(error))
        span.end()

    def close(self) -> None:
        """Ends what is open, and waits some seconds for the collector."""
        for found in self._open.values():
            if not found.has_begun:
                continue
            _fail(found.span, f"not confirmed by {', '.join(sorted(found.unresolved))}")
            found.span.end()
        self._open.clear()
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


def _context_of(parent: str | None) -> Context | None:
    """What a `traceparent` says; None, so that a trace begins, where there is none or it is not one."""
    if not parent:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({TRACEPARENT: parent})


def _fail(span: Span, reason: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, redact(reason)))
