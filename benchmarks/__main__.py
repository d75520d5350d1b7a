"""Runs benchmarks: `python -m benchmarks [NAME...] [--write] [-- arguments of one benchmark]`; without a name, all of them.

Invariant: a benchmark is a module `bench_<name>.py` of this folder with a `main` that prints what it found; it runs in a process of
its own, so that none leaves its mark on another.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"


def names() -> list[str]:
    """All benchmarks."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def run(name: str, arguments: Sequence[str]) -> str:
    """Runs one, shows what it prints, and returns it."""
    about = ast.get_docstring(ast.parse((HERE / f"bench_{name}.py").read_text())) or ""
    printed = [f"## {name}\n\n{about.partition(chr(10))[0]}\n"]
    print(printed[0], flush=True)
    command = [sys.executable, "-u", "-m", f"benchmarks.bench_{name}", *arguments]
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            printed.append(line)
    if process.returncode:
        sys.exit(f"{name} failed with exit code {process.returncode}")
    return "".join(printed)


def main() -> None:
    """The command."""
    ours, theirs = sys.argv[1:], []
    if "--" in ours:
        place = ours.index("--")
        ours, theirs = ours[:place], ours[place + 1 :]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Runs benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; none means all")
    parser.add_argument("--write", action="store_true", help=f"keeps what is printed in {RESULTS.name}")
    given = parser.parse_args(ours)
    for name in given.names:
        if name not in names():
            parser.error(f"there is no benchmark {name!r}, only {', '.join(names())}")
    chosen = given.names or names()
    if theirs and len(chosen) != 1:
        parser.error("arguments after -- are for one benchmark")
    printed = [run(name, theirs) for name in chosen]
    if given.write:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
        head = f"# Results\n\n`python -m benchmarks --write` on {machine}.\n"
        RESULTS.write_text("\n".join([head, *printed]).rstrip() + "\n")


if __name__ == "__main__":
    main()
