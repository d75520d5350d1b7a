"""What JetStream says of records that were published: which are stored, and what is wrong with the others.

Invariant: a record is stored only when a reply says so; where replies do not decide, `done` holds an error for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from ....errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError

if TYPE_CHECKING:
    import asyncio

    from nats.aio.msg import Msg

__all__ = ["BatchReplies", "Outcome", "Replies", "Scope", "SingleReplies"]

Scope = Literal["record", "subject", "stream"]
"""How far a refusal reaches."""

# JetStream's own numbers for what will not pass: too large, headers too large, sealed.
_TERMINAL: dict[int, Scope] = {10054: "record", 10097: "record", 10109: "stream"}
# It does not know the batch, or takes none any more.
_UNKNOWN_BATCHES = (10205, 10208)


class Outcome(NamedTuple):
    """How many of a sequence are stored, why not the next one, and whom that concerns."""

    stored: int
    error: DeliveryError | None = None
    scope: Scope = "record"


class Replies(Protocol):
    """Collects the replies to some records; `done` when all that matter are there, its result an error that concerns all."""

    done: asyncio.Future[DeliveryError | None]

    def take(self, end: str, msg: Msg) -> None:
        """A reply; `end` is what its subject has behind the name of the exchange."""

    def fail(self, error: DeliveryError) -> None:
        """Nothing more will be heard."""


class _RecordRefusal(NamedTuple):
    code: int
    error: DeliveryError
    scope: Scope


def _to_refusal(answer: dict[str, Any] | None) -> _RecordRefusal:
    if answer is None:
        return _RecordRefusal(0, TransientDeliveryError("no stream answers for a subject"), "stream")
    code: int = answer["error"].get("err_code", 0)
    said: str = answer["error"].get("description", "no reason is given")
    if code in _TERMINAL:
        return _RecordRefusal(code, TerminalDeliveryError(f"JetStream refuses a record: {said}"), _TERMINAL[code])
    scope: Scope = "subject" if "per subject" in said else "stream"
    return _RecordRefusal(code, TransientDeliveryError(f"JetStream refuses a record: {said}"), scope)


def _answer(msg: Msg) -> dict[str, Any] | None:
    """What a reply says; None where there was nobody to answer (a status without content)."""
    if not msg.data:
        return None
    answer: dict[str, Any] = msgspec.json.decode(msg.data)
    return answer


class _Collected:
    """What both kinds share."""

    def __init__(self) -> None:
        import asyncio  # not at the top: `--help` reads the bus's file for its options

        self.done: asyncio.Future[DeliveryError | None] = asyncio.get_running_loop().create_future()

    def finish(self, error: DeliveryError | None = None) -> None:
        if not self.done.done():
            self.done.set_result(error)

    def fail(self, error: DeliveryError) -> None:
        """Nothing more will be heard."""
        self.finish(error)


class SingleReplies(_Collected):
    """One reply for each record; a subject's end is the record's number, from 0."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.errors: dict[int, DeliveryError] = {}
        self._left = count

    def take(self, end: str, msg: Msg) -> None:
        """A reply."""
        # Nearly all are confirmations, which need not be parsed.
        if not msg.data or b'"error"' in msg.data:
            answer = _answer(msg)
            if answer is None or "error" in answer:
                self.errors[int(end)] = _to_refusal(answer).error
        self._left -= 1
        if not self._left:
            self.finish()


class BatchReplies(_Collected):
    """Replies to one numbered sequence: notes of progress and refusals on the way, and at the end how many are stored.

    A subject's end is `FLOW.fail.NUMBER.OPERATION.$FI`, numbers from 1.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._stored: int | None = None
        self._refusals: dict[int, _RecordRefusal] = {}

    def take(self, end: str, msg: Msg) -> None:
        """A reply."""
        answer = _answer(msg)
        if answer is not None and "count" in answer:
            self._stored = answer["count"]
            self.finish()
        elif answer is None or "error" in answer:
            number = int(end.split(".")[2])
            self._refusals.setdefault(number, _to_refusal(answer))
            if number == self._count:
                self._conclude()

    def _conclude(self) -> None:
        """The last record is refused, and the sequence has not been ended before: it was never begun, or it is lost."""
        first = self._refusals.get(1)
        if first is None or first.code in _UNKNOWN_BATCHES:
            self.fail(TransientDeliveryError(f"a batch was lost on its way: {self._refusals[self._count].error}"))
        else:
            self._stored = 0
            self.finish()

    def outcome(self) -> Outcome:
        """Once `done`."""
        assert self._stored is not None
        if self._stored == self._count:
            return Outcome(self._stored)
        refusal = self._refusals.get(self._stored + 1)
        if refusal is None:
            return Outcome(self._stored, TransientDeliveryError("a record was lost on its way to JetStream"))
        return Outcome(self._stored, refusal.error, refusal.scope)
