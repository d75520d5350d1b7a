"""Runs benchmarks: `python -m benchmarks [NAME...] [--write] [-- arguments of one benchmark]`; without a name, all of them.

Invariant: a benchmark is a module `bench_<name>.py` of this folder with a `main` that prints what it found; it runs in a process of
its own, so that none leaves its mark on another. One that fails is reported, and the others run.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chart import draw_growth, draw_ratios, find_growth, find_ratios
from benchmarks.machine import describe_commit, describe_machine, describe_noise

HERE = Path(__file__).parent
RESULTS, CHART, GROWTH_CHART = "RESULTS.md", "results.png", "growth.png"


def names() -> list[str]:
    """All benchmarks."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def run(name: str, arguments: Sequence[str]) -> tuple[str, int]:
    """Runs one and shows what it prints; returns that, and its exit code."""
    about = ast.get_docstring(ast.parse((HERE / f"bench_{name}.py").read_text())) or ""
    printed = [f"## {name}\n\n{about.partition(chr(10))[0]}\n"]
    print(printed[0], flush=True)
    began = time.monotonic()
    command = [sys.executable, "-u", "-m", f"benchmarks.bench_{name}", *arguments]
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            printed.append(line)
    end = (
        f"\nIt took {time.monotonic() - began:.0f} s."
        if not process.returncode
        else f"\nIt failed: exit code {process.returncode}."
    )
    print(end, flush=True)
    return "".join([*printed, end, "\n"]), process.returncode


def write(folder: Path, chosen: Sequence[str], head: str, reports: Sequence[str]) -> None:
    """The report and its charts."""
    ratios = [ratio for name, report in zip(chosen, reports, strict=True) for ratio in find_ratios(name, report)]
    folder.mkdir(parents=True, exist_ok=True)
    if ratios:
        draw_ratios(
            ratios,
            folder / CHART,
            "Ratios: ours to the other (Node library, raw client, nothing at all); right of the line is more",
        )
        head += f"\n![ratios]({CHART})\n"
    if curves := [curve for report in reports for curve in find_growth(report)]:
        draw_growth(curves, folder / GROWTH_CHART)
        head += f"\n![growth]({GROWTH_CHART})\n"
    (folder / RESULTS).write_text("\n".join([head, *reports]).rstrip() + "\n")
    print(f"\nwritten: {folder / RESULTS}", flush=True)


def main() -> int:
    """The command; 1 when a benchmark failed."""
    ours, theirs = sys.argv[1:], []
    if "--" in ours:
        place = ours.index("--")
        ours, theirs = ours[:place], ours[place + 1 :]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Runs benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; none means all")
    parser.add_argument("--write", action="store_true", help=f"keeps what is printed in {RESULTS}, with a chart")
    parser.add_argument("--to", type=Path, default=HERE, metavar="DIR", help="where it is kept (benchmarks)")
    given = parser.parse_args(ours)
    for name in given.names:
        if name not in names():
            parser.error(f"there is no benchmark {name!r}, only {', '.join(names())}")
    chosen = given.names or names()
    if theirs and len(chosen) != 1:
        parser.error("arguments after -- are for one benchmark")
    noise = describe_noise()
    what = "all benchmarks" if chosen == names() and not theirs else f"only {' '.join([*chosen, *theirs])}"
    head = (
        f"# Results\n\nOf {what}, {time.strftime('%Y-%m-%d')}, commit {describe_commit()}.\n\n- machine: {describe_machine()}\n"
    )
    head += f"- noise before: {noise}\n"
    print(head, flush=True)
    outcomes = [run(name, theirs) for name in chosen]
    after = f"- noise after: {describe_noise()}\n"
    print(f"\n{after}", flush=True)
    if given.write:
        read = "Figures with ± are medians of rounds, and how far the farthest round lies from them."
        made = "`make bench ARGS=--write` makes this."
        write(given.to, chosen, f"{head}{after}\n{read} {made}\n", [printed for printed, _ in outcomes])
    failed = [name for name, (_, code) in zip(chosen, outcomes, strict=True) if code]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
