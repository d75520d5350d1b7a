"""Numbers of more digits than 64 bits hold, which the JSON parser would round: ids of some exchanges.

Invariant: only the text of such numbers is changed, to a JSON string of the same digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["long_numbers_as_text"]


def long_numbers_as_text(field: str) -> Callable[[bytes], bytes]:
    """What puts quotes around the numbers of a field that may be too long; what else is in a message stays as it is.

    >>> long_numbers_as_text("id")(b'{"id": 98765432101234567891, "size": 98765432101234567891}')
    b'{"id": "98765432101234567891", "size": 98765432101234567891}'
    """
    found = re.compile(rb'("%b"\s*:\s*)(-?\d{19,})(?![\d.eE])' % re.escape(field).encode())

    def quote(text: bytes) -> bytes:
        return found.sub(rb'\1"\2"', text)

    return quote
