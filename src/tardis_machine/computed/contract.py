"""What a computed type is: a description that can be asked for by name, and the computation that it begins for each instrument.

Invariant: a computation depends only on the messages it was shown, in their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ..messages import Message

__all__ = ["Computable", "Computation"]


class Computation(ABC):
    """The state of one computed type for one symbol of one exchange; a lost connection ends it."""

    __slots__ = ()

    @abstractmethod
    def update(self, message: Any, out: list[Message]) -> None:
        """Takes the next source message, and appends to `out` what it caused. Called for every message: keep it short."""


class Computable(ABC):
    """A computed type with its parameters; a frozen dataclass. To add one: a module of its own, and a line in `data_types`."""

    __slots__ = ()

    SOURCE: ClassVar[type[Message]]
    """The type of message that it is computed from; its tag is the data type to normalize."""

    RESULT: ClassVar[type[Message]]
    """The type of message that comes out."""

    FORMS: ClassVar[tuple[str, ...]]
    """How it is asked for, as a user is told: `quote_{n}{ms|s|m}`."""

    @property
    def weight(self) -> int:
        """About what one message costs to compute and to send, in levels of a book."""
        return 1

    @classmethod
    @abstractmethod
    def parse(cls, data_type: str) -> Computable | None:
        """The one asked for by that name; None where another type may have it; ValueError where it only begins like these."""

    @abstractmethod
    def begin(self) -> Computation:
        """A computation that has seen nothing yet."""
