"""Messages as an Arrow IPC stream: one schema, then batches whose rows are the messages in their order, then its end.

Of one data type it is that type's table; of several, one table with the columns of all of them, and `type` says what a row is (ADR 18).

Invariant: bytes that are joined are a stream that any reader of Arrow takes. One without its end was cut off.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import MissingExtraError, NormalizeError
from ..messages import Message

try:
    import pyarrow as pa
except ImportError:
    raise MissingExtraError("an Arrow answer", "arrow") from None

from .columns import kinds_of, schema_of, to_batch
from .request import NormalizedRequest, StreamRequest

__all__ = ["ROWS", "ArrowStream"]

ROWS = 8_192
"""In a batch, where there is no hurry: enough that its costs vanish."""
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class ArrowStream:
    """Writes the messages of some requests."""

    def __init__(self, requests: Sequence[NormalizedRequest | StreamRequest]) -> None:
        data_types = list(dict.fromkeys(name for request in requests for name in request.data_types))
        self._kinds = kinds_of(
            data_types,
            with_disconnects=any(request.with_disconnect_messages for request in requests),
            with_errors=any(isinstance(request, StreamRequest) and request.with_error_messages for request in requests),
        )
        self.schema = schema_of(self._kinds)
        self.head: bytes = self.schema.serialize().to_pybytes()
        """Comes first."""
        self.tail = _END
        """Comes last."""

    def batch(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """Messages as rows."""
        try:
            return to_batch(messages, self._kinds)
        except ValueError as error:
            raise NormalizeError(f"an Arrow answer can't hold a message: {error}") from None

    def write(self, messages: Sequence[Message]) -> bytes:
        """Messages as the bytes of a batch."""
        data: bytes = self.batch(messages).serialize().to_pybytes()
        return data
