"""What one kind of client sees of a live stream: the types of data that it asked for, computed ones among them.

Invariant: each connection of the stream has computations of its own: one that is lost forgets nothing that another knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..computed import Computer
from ..computed.data_types import parse_data_types
from ..messages import Disconnect, ErrorMessage, Message
from .request import StreamRequest

__all__ = ["View"]


class View:
    """What a request shows of the normalized messages of its stream."""

    def __init__(self, request: StreamRequest) -> None:
        self._wanted = parse_data_types(request.data_types)
        # As in a replay, bars and books go on through a disconnect that was not asked for.
        self._resets = request.with_disconnect_messages
        # By the number of the connection.
        self._computers: dict[int, Computer] = {}
        hidden: tuple[type[Message], ...] = ()
        if not request.with_disconnect_messages:
            hidden += (Disconnect,)
        if not request.with_error_messages:
            hidden += (ErrorMessage,)
        self._hidden = hidden

    @property
    def weight(self) -> int:
        """About what one message makes of itself at most, in levels of a book."""
        return self._wanted.weight

    def feed(self, connection: int, messages: Sequence[Message]) -> list[Message]:
        """What comes of messages of a connection; errors and disconnects too, asked for or not."""
        computer = self._computers.get(connection)
        if computer is None:
            computer = self._computers[connection] = Computer(self._wanted, reset_on_disconnect=self._resets)
        return computer.feed(messages)

    def shown(self, messages: list[Message]) -> list[Message]:
        """What of this the client asked to see."""
        if self._hidden and messages and isinstance(messages[-1], (Disconnect, ErrorMessage)):
            # They are never among others: each is delivered alone, or at the end of what its connection said.
            return [message for message in messages if not isinstance(message, self._hidden)]
        return messages
