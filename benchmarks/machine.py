"""The machine that a report is about: what it is, what runs on it, and how steady it is.

Invariant: noise is measured with the same piece of work before and after the benchmarks, so that who reads the report can tell
a change from a busy neighbour.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from statistics import median

from benchmarks.report import spread

__all__ = ["describe_commit", "describe_machine", "describe_noise"]

_ROOT = Path(__file__).parents[1]
_PIECES = 25
_STEPS = 200_000


def describe_machine() -> str:
    """One line: processor, cores, memory, versions."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    parts = [
        cpu[1] if cpu else platform.machine(),
        f"{len(os.sched_getaffinity(0))} cores",
        f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "",
        f"Linux {platform.release().split('-')[0]}",
        f"Python {platform.python_version()}",
        _version("node", "--version", "Node "),
    ]
    return ", ".join(filter(None, parts))


def describe_commit() -> str:
    """The commit, and whether files differ from it."""
    commit = _said("git", "rev-parse", "--short", "HEAD") or "no commit"
    changed = _said("git", "status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")
    return f"{commit} with changes" if changed else commit


def describe_noise() -> str:
    """How far equal pieces of work lie apart, and what else wants the cores."""
    times = [_work_s() for _ in range(_PIECES)]
    middle = median(times)
    # One that another program was let in on says nothing of the others.
    ordinary = sorted(times, key=lambda seconds: abs(seconds - middle))[: _PIECES * 9 // 10]
    took = f"a piece of work takes {middle * 1e3:.1f} ms, nine times of ten {spread(ordinary)}"
    return f"{took}, load average {os.getloadavg()[0]:.1f}"


def _work_s() -> float:
    began = time.perf_counter()
    total = 0
    for step in range(_STEPS):
        total += step * step
    return time.perf_counter() - began


def _version(program: str, flag: str, name: str) -> str:
    said = _said(program, flag)
    return f"{name}{said.lstrip('v')}" if said else ""


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
