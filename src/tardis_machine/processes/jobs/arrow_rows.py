"""The answer of a replay as an Arrow stream: messages are gathered until they are worth a batch.

Invariant: the bytes of an answer are one stream, from its schema to its end. Where it is played at a pace, each instant is a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...messages import Message
from ...pipeline.arrow_stream import ROWS, ArrowStream
from ...pipeline.marks import instant_us
from ...pipeline.request import NormalizedRequest
from .answer import Answer

__all__ = ["ArrowRows"]


class ArrowRows:
    """Of one answer."""

    def __init__(self, requests: Sequence[NormalizedRequest], answer: Answer) -> None:
        self._stream = ArrowStream(requests)
        self._answer = answer
        self._waiting: list[Message] = []
        answer.add(self._stream.head, 0, 0)

    def add(self, messages: Sequence[Message]) -> None:
        """More of them."""
        if not self._answer.is_cut:
            self._waiting += messages
            if len(self._waiting) >= ROWS:
                self._write()
            return
        for message in messages:
            if self._waiting and self._waiting[-1].local_timestamp != message.local_timestamp:
                self._write()
            self._waiting.append(message)
        self._write()

    def _write(self) -> None:
        rows, self._waiting = self._waiting, []
        if rows:
            self._answer.add(self._stream.write(rows), len(rows), instant_us(rows[-1].local_timestamp))

    def end(self) -> None:
        """There are no more."""
        self._write()
        self._answer.add(self._stream.tail, 0, 0)
