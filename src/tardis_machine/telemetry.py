"""Logs and metrics: one line for each record, as text or JSON, with fields and without secrets; every metric declared once.

Invariant: what was given to `hide` appears in no line, whatever part of a record it stands in.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, TextIO
from urllib.parse import quote

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["METRICS", "Logger", "Metric", "get_logger", "hide", "redact", "render_metrics", "serve_metrics", "setup_logging"]

_ROOT = "tardis_machine"


class _Redactor:
    """Knows the secrets, and takes them out of texts."""

    def __init__(self) -> None:
        self._hidden: set[str] = set()
        self._pattern = re.compile("(?!)")

    def hide(self, *secrets: str) -> None:
        """From now on these texts are *** in every line, also as a URL, JSON or Python would spell them."""
        for secret in filter(None, secrets):
            self._hidden.update((secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]))
        if self._hidden:
            longest_first = sorted(self._hidden, key=len, reverse=True)
            self._pattern = re.compile("|".join(re.escape(text) for text in longest_first))

    def redact(self, text: str) -> str:
        """The text without what is hidden."""
        return self._pattern.sub("***", text)


_redactor = _Redactor()
hide = _redactor.hide
redact = _redactor.redact


class Logger:
    """Logs a sentence and its fields: `log.info("connected", bus="file", seconds=0.2)`."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, message: str, **fields: object) -> None:
        """Details for debugging."""
        self._log(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        """A change of state."""
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        """Something works, but not as it should."""
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, **fields: object) -> None:
        """Something failed."""
        self._log(logging.ERROR, message, fields)

    def exception(self, message: str, *, cause: BaseException, **fields: object) -> None:
        """Something failed in a way that was not expected; logs the traceback too."""
        self._log(logging.ERROR, message, fields, cause)

    def _log(self, level: int, message: str, fields: Mapping[str, object], cause: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", message, exc_info=cause, extra={"fields": fields})


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def get_logger(name: str) -> Logger:
    """The logger of a module: `get_logger(__name__)`."""
    return Logger(logging.getLogger(name if name.partition(".")[0] == _ROOT else f"{_ROOT}.{name}"))


def setup_logging(log_format: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Sends all log lines to a stream, standard error by default; other libraries' only from warnings up. May be called again."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    for before in [known for known in root.handlers if isinstance(known.formatter, _LineFormatter)]:
        root.removeHandler(before)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(_LEVELS[level])
    logging.captureWarnings(True)


class _LineFormatter(logging.Formatter):
    """What both formats share: the parts of a record, redacted."""

    def parts(self, record: logging.LogRecord) -> dict[str, object]:
        """Fields in the order of a line; strings are free of secrets, other values are as they were."""
        parts: dict[str, object] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": redact(record.name.removeprefix(f"{_ROOT}.")),
            "message": redact(record.getMessage()),
        }
        for name, value in getattr(record, "fields", {}).items():
            parts[f"{name}_" if name in parts else redact(name)] = _to_json_value(value)
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            parts["error"] = redact(f"{type(error).__name__}: {error}")
            parts["traceback"] = redact("".join(traceback.format_exception(error)))
        return parts


def _to_json_value(value: object) -> object:
    """The value itself if JSON has its type and it is no secret, else its text."""
    text = str(value)
    safe = redact(text)
    is_number = isinstance(value, int) or (isinstance(value, float) and isfinite(value))
    return value if safe == text and (is_number or value is None) else safe


class _JsonFormatter(_LineFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return _escape(json.dumps(self.parts(record), ensure_ascii=False))


class _TextFormatter(_LineFormatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = self.parts(record)
        trace = parts.pop("traceback", None)
        if trace is not None and logging.getLogger(_ROOT).isEnabledFor(logging.DEBUG):
            parts["traceback"] = trace
        moment, level, logger, message = (str(parts.pop(name)) for name in ("time", "level", "logger", "message"))
        head = f"{moment} {level.upper():<7} {logger}: {_escape(message)}"
        return " ".join([head, *(f"{name}={_quote(value)}" for name, value in parts.items())])


def _utc(seconds: float) -> str:
    whole, fraction = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{fraction:03d}Z"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _escape(text: str) -> str:
    """The text on one line: what came from outside can't forge a record."""
    return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _quote(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    text = str(value)
    return text if text and not re.search(r"[\s\"'=\x00-\x1f\x7f-\x9f]", text) else _escape(json.dumps(text, ensure_ascii=False))


@dataclass(frozen=True)
class Metric:
    """One metric, made in the registry when it is first used: `EVENTS_PUBLISHED.labels("kafka", "trade").inc()`."""

    name: str
    """Without the prefix `tardis_machine_`."""
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    label_names: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """As Prometheus sees it."""
        return f"tardis_machine_{self.name}"

    @cached_property
    def instrument(self) -> Any:
        """The prometheus_client object."""
        import prometheus_client

        kinds: dict[str, Callable[..., Any]] = {
            "counter": prometheus_client.Counter,
            "gauge": prometheus_client.Gauge,
            "histogram": prometheus_client.Histogram,
        }
        options = {"buckets": self.buckets} if self.buckets else {}
        return kinds[self.kind](self.full_name, self.help, self.label_names, registry=_registry(), **options)

    def labels(self, *values: str) -> Any:
        """The metric for these values of its labels, in their order; keep it where it is used often."""
        return self.instrument.labels(*values) if self.label_names else self.instrument


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LATE = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.1, 1.0)
_RECORDS = (1.0, 5.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)
_BUS = ("bus",)
_BUS_CASE = ("bus", "payload_case")

EVENTS_PUBLISHED = Metric("bus_events_published_total", "counter", "Events handed to a bus", _BUS_CASE)
EVENTS_CONFIRMED = Metric("bus_events_confirmed_total", "counter", "Events that the bus has confirmed", _BUS_CASE)
EVENTS_RETRIED = Metric("bus_events_retried_total", "counter", "Events sent once more after a transient failure", _BUS_CASE)
EVENTS_DROPPED = Metric("bus_events_dropped_total", "counter", "Events dropped because the queue was full", _BUS_CASE)
EVENTS_DEAD_LETTERED = Metric(
    "bus_events_dead_lettered_total", "counter", "Events that can't be delivered, kept as dead letters", _BUS_CASE
)
EVENTS_SPOOLED = Metric("bus_events_spooled_total", "counter", "Events written to disk to be sent later", _BUS_CASE)
CONFIRM_SECONDS = Metric(
    "bus_confirm_seconds", "histogram", "Seconds from handing an event over to its confirmation", _BUS_CASE, _SECONDS
)
BATCH_RECORDS = Metric("bus_batch_records", "histogram", "Records in a batch", _BUS, _RECORDS)
QUEUE_BYTES = Metric("bus_queue_bytes", "gauge", "Bytes that wait in memory", _BUS)
SPOOL_EVENTS = Metric("bus_spool_events", "gauge", "Events that wait on disk", _BUS)
SPOOL_BYTES = Metric("bus_spool_bytes", "gauge", "Bytes of the spool on disk", _BUS)
SPOOL_MAX_BYTES = Metric("bus_spool_max_bytes", "gauge", "Largest size of the spool in bytes", _BUS)
DEAD_LETTER_BYTES = Metric("bus_dead_letter_bytes", "gauge", "Bytes of the dead letters on disk", _BUS)
DEAD_LETTER_MAX_BYTES = Metric("bus_dead_letter_max_bytes", "gauge", "Largest size of the dead letters in bytes", _BUS)
DEAD_LETTER_COPIES = Metric(
    "bus_dead_letter_copies_total", "counter", "Copies of dead letters for their destination, sent or failed", ("bus", "outcome")
)
BUS_PAUSED = Metric("bus_paused", "gauge", "1 while the bus refuses everything, and events wait", _BUS)
OLDEST_UNCONFIRMED_SECONDS = Metric(
    "bus_oldest_unconfirmed_seconds", "gauge", "Age of the oldest unconfirmed event in seconds", _BUS
)

REQUESTS = Metric("requests_total", "counter", "Requests answered, by route and status or close code", ("route", "status"))
REQUEST_SECONDS = Metric("request_seconds", "histogram", "Seconds from a request to the end of its answer", ("route",), _SECONDS)
MESSAGES_SENT = Metric("messages_sent_total", "counter", "Messages sent to clients", ("route",))
PLAYER_LATE_SECONDS = Metric(
    "player_late_seconds",
    "histogram",
    "Seconds from when an instant of a replay with a speed was due to its being sent",
    ("route",),
    _LATE,
)
CONNECTIONS = Metric("websocket_connections", "gauge", "Open WebSocket connections", ("route",))

_STREAM = ("stream",)
LAKE_ROWS = Metric("lake_rows_total", "counter", "Rows that were written, by table of the lake", ("table",))
LAKE_QUARANTINED = Metric("lake_quarantined_total", "counter", "Records that were set aside, as they could not be read")
LAKE_LOST = Metric("lake_lost_total", "counter", "Holes: records that were gone before they could be read")
LAKE_BATCHES = Metric("lake_batches_total", "counter", "Batches that were committed, by stream", _STREAM)
LAKE_COMMIT_AGE_SECONDS = Metric("lake_commit_age_seconds", "gauge", "Age of the last commit in seconds, by stream", _STREAM)
LAKE_LAG_SECONDS = Metric("lake_lag_seconds", "gauge", "Age of the newest record in bronze; 0 where nothing is left to read")
LAKE_LEFT = Metric("lake_left", "gauge", "What a stream has not read yet, in records, files or rows", ("stream", "what"))

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Every metric there is."""


@cache
def _registry() -> CollectorRegistry:
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(namespace="tardis_machine", registry=registry)
    return registry


def render_metrics() -> bytes:
    """All metrics in Prometheus's text format, those not used yet too."""
    from prometheus_client import generate_latest

    for metric in METRICS:
        _ = metric.instrument
    return generate_latest(_registry())


def serve_metrics(host: str, port: int) -> Callable[[], None]:
    """Serves `/metrics` in a thread, for programs that have no server of their own; gives what ends it. OSError: the port is taken."""
    from prometheus_client import start_http_server

    render_metrics()
    server, thread = start_http_server(port, host, _registry())

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
