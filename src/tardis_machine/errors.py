"""Every error that this package raises on purpose, drawn as one tree.

    TardisMachineError
    ├── UsageError              the caller's mistake: a setting, a request option, a flag
    │   ├── SettingsError         one or more settings are wrong (all of them together)
    │   ├── OptionsError          one field of a request is wrong (HTTP 400, WebSocket 1008)
    │   └── MissingExtraError     an optional dependency is not installed
    ├── UpstreamError           the history API refused a request, failed, or sent data that can't be read
    │   └── SliceError            one slice is corrupt, truncated or of an unexpected size
    ├── NormalizeError          a message of an exchange that its mapper can't read
    ├── CacheError              the disk cache can't be read or written
    ├── WorkerError             a worker process died or was lost
    ├── FaultError              a replay was ended on purpose, as its request asked for (WebSocket 1012)
    ├── PausedError             a replay was paused for longer than a setting allows (WebSocket 1008)
    ├── BusyError               the limit of requests that a setting allows is reached (WebSocket 1013)
    ├── DeliveryError           an event could not be delivered to a bus
    │   ├── TransientDeliveryError    worth another try
    │   └── TerminalDeliveryError     another try would end the same way
    ├── UndeliveredError        a flush or close ended with events unconfirmed
    └── LakeError               a table, a job or the Spark set-up

Invariant: `str(error)` is one sentence a user can act on, and never holds a secret.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BusyError",
    "CacheError",
    "DeliveryError",
    "FaultError",
    "LakeError",
    "MissingExtraError",
    "NormalizeError",
    "OptionsError",
    "PausedError",
    "SettingsError",
    "SliceError",
    "TardisMachineError",
    "TerminalDeliveryError",
    "TransientDeliveryError",
    "UndeliveredError",
    "UpstreamError",
    "UsageError",
    "WorkerError",
]


class TardisMachineError(Exception):
    """Base of all errors raised on purpose."""


class UsageError(TardisMachineError):
    """The caller's mistake, which the caller can correct."""


class SettingsError(UsageError):
    """One sentence for each setting that is wrong; `problems` keeps them apart."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class OptionsError(UsageError):
    """A field of a request is wrong; `field` is its path as the client wrote it (`filters[0].channel`)."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class MissingExtraError(UsageError):
    """`what` needs a package that is not installed; says which extra brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'tardis-machine[{extra}]'")
        self.what = what
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return (MissingExtraError, (self.what, self.extra))


class UpstreamError(TardisMachineError):
    """The history API refused or failed; `status` and `code` are its own, passed on to the caller."""

    def __init__(self, message: str, status: int = 502, code: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def __reduce__(self) -> tuple[type[UpstreamError], tuple[str, int, int | None]]:
        return (type(self), (str(self), self.status, self.code))


class SliceError(UpstreamError):
    """A slice, fetched or cached, is corrupt, truncated or of an unexpected size."""


class NormalizeError(TardisMachineError):
    """A message of an exchange that its mapper can't read; `emitted` is what was normalized before it."""

    emitted: Sequence[object] = ()
    place = 0
    """Index of the message among those that were given."""


class CacheError(TardisMachineError):
    """The disk cache can't be read or written."""


class WorkerError(TardisMachineError):
    """A worker process died; its requests fail with this."""


class FaultError(TardisMachineError):
    """A replay was ended on purpose, as its request asked for."""


class PausedError(TardisMachineError):
    """A replay was paused for longer than a setting allows."""


class BusyError(TardisMachineError):
    """The limit that a setting allows is reached; try again later."""


class DeliveryError(TardisMachineError):
    """An event bus could not take a record."""


class TransientDeliveryError(DeliveryError):
    """Worth another try: connection lost, throttled, not leader, timed out."""


class TerminalDeliveryError(DeliveryError):
    """Another try would end the same way: unknown destination, not authorised, too large."""


class UndeliveredError(TardisMachineError):
    """A flush or close ended while events were still unconfirmed."""


class LakeError(TardisMachineError):
    """A table or a job of the lake failed, or Spark is not set up for it."""
