"""What went wrong, out of the pages that Spark wraps it into.

Invariant: one sentence, never a stack.
"""

from __future__ import annotations

import re

__all__ = ["own_words", "sentence"]


def own_words(error: BaseException) -> str | None:
    """What our own code raised in a worker; of several, the one that was raised from the others, which comes last."""
    said = re.findall(r"LakeError: (.*)", str(error))
    return said[-1].strip() if said else None


def sentence(error: BaseException) -> str:
    """What the user has to know of it."""
    text = str(error).strip()
    # Spark names what went wrong in brackets, also in the midst of a page; what else the JVM raised comes after a line that only says
    # which call it was.
    named = re.search(r"\[[A-Z][A-Z0-9_.]+\] .*", text) or re.search(r"(?<=^: ).*", text, re.MULTILINE)
    return own_words(error) or (named[0] if named else text.partition("\n")[0]) or type(error).__name__
