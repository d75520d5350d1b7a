"""Runs benchmarks: `python -m benchmarks [NAME...] [--write] [-- arguments of a benchmark]`; without a name, all of them.

Invariant: a benchmark is a module `bench_<name>.py` of this folder with a function `main(arguments)` that prints what it found.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"


class Tee(io.StringIO):
    """Shows what is printed, and keeps it."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        return super().write(text)


def names() -> list[str]:
    """All benchmarks."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def run(name: str, arguments: Sequence[str]) -> str:
    """Runs one, and returns what it printed."""
    module = import_module(f"benchmarks.bench_{name}")
    with redirect_stdout(Tee()) as printed:
        print(f"## {name}\n\n{(module.__doc__ or '').splitlines()[0]}\n")
        module.main(arguments)
        print()
    return printed.getvalue()


def main() -> None:
    """The command."""
    ours, theirs = sys.argv[1:], []
    if "--" in ours:
        place = ours.index("--")
        ours, theirs = ours[:place], ours[place + 1 :]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Runs benchmarks.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[[], *names()], help=f"of {', '.join(names())}; none means all"
    )
    parser.add_argument("--write", action="store_true", help=f"keeps what is printed in {RESULTS.name}")
    given = parser.parse_args(ours)
    chosen = given.names or names()
    if theirs and len(chosen) != 1:
        parser.error("arguments after -- are for one benchmark")
    printed = [run(name, theirs) for name in chosen]
    if given.write:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
        RESULTS.write_text("\n".join([f"# Results\n\n`python -m benchmarks --write` on {machine}.\n", *printed]).rstrip() + "\n")


if __name__ == "__main__":
    main()
