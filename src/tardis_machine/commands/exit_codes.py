"""The exit codes of the program.

Invariant: they are those that shells give a program that a signal ended, so that scripts can tell.
"""

from __future__ import annotations

__all__ = ["BROKEN_PIPE", "FAILED", "INTERRUPTED", "USAGE"]

FAILED = 1
USAGE = 2
"""The user's mistake: a flag, a setting, a request."""
INTERRUPTED = 130
"""Ctrl-C."""
BROKEN_PIPE = 141
"""Nobody reads the output any more."""
