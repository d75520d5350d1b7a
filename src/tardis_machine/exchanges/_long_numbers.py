"""Numbers of more digits than 64 bits hold, which the JSON parser would round: ids of some exchanges.

Invariant: only the text of such numbers is changed, to a JSON string of the same digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["long_numbers_as_text", "quoted"]


def long_numbers_as_text(field: str) -> Callable[[bytes], bytes]:
    """What puts quotes around the numbers of a field that may be too long; what else is in a message stays as it is.

    >>> long_numbers_as_text("id")(b'{"id": 98765432101234567891, "size": 98765432101234567891}')
    b'{"id": "98765432101234567891", "size": 98765432101234567891}'
    """
    name = f'"{field}"'.encode()
    found = re.compile(rb"(%b\s*:\s*)(-?\d{19,})(?![\d.eE])" % re.escape(name))

    def quote(text: bytes) -> bytes:
        return found.sub(quoted, text) if name in text else text

    return quote


# A template would take twice the time, also where nothing is found.
def quoted(found: re.Match[bytes]) -> bytes:
    """Quotes around the second group."""
    return b'%b"%b"' % (found[1], found[2])
