"""Log lines of a child process: sent to the server, which knows where to and in what form they are written.

Invariant: a line is written under the logger and at the level that it was logged with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from ..telemetry import get_logger

__all__ = ["Logged", "send_logs", "write_log"]


class Logged(msgspec.Struct, gc=False):
    """A line for the server's log."""

    logger: str
    level: int
    message: str
    fields: dict[str, Any]


def send_logs(send: Callable[[Logged], None]) -> None:
    """In a child: from now on what this program logs goes to `send`."""
    logger = logging.getLogger("tardis_machine")
    logger.addHandler(_Sender(send))
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _Sender(logging.Handler):
    def __init__(self, send: Callable[[Logged], None]) -> None:
        super().__init__(logging.INFO)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = repr(record.exc_info[1])
        self._send(Logged(record.name, record.levelno, record.getMessage(), fields))


def write_log(line: Logged) -> None:
    """In the server: writes it."""
    logger = get_logger(line.logger)
    write = {logging.INFO: logger.info, logging.WARNING: logger.warning}.get(line.level, logger.error)
    write(line.message, **line.fields)
