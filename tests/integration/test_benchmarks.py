"""The benchmark command: one report with commit, machine and noise, and a chart of its ratios."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.__main__ import names
from benchmarks.chart import draw_growth, find_growth, find_ratios
from benchmarks.machine import describe_commit
from tests.servers.process import ROOT

PRINTED = """
### Messages a second

|          |   ours |     | of a core | ours/library | wanted | of raw |
| -------- | -----: | --: | --------: | -----------: | -----: | -----: |
| trades   | 1.20 M | ±3% |       512 |         5.0x |   3.0x |   0.81 |
| reading  |  2.4 M |     |           |              |        |        |
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)


def test_one_report_with_commit_machine_noise_and_a_chart(tmp_path: Path) -> None:
    done = run("encoding", "--write", "--to", str(tmp_path), "--", "--events", "50", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "RESULTS.md").read_text()
    assert f"commit {describe_commit()}" in report
    assert report.count("a piece of work takes ") == 2
    assert "cores" in report
    assert "only encoding" in report
    assert "| ratio |" in report
    assert "![ratios](results.png)" in report
    assert (tmp_path / "results.png").stat().st_size > 5_000
    table = report.partition("### ")[2].rstrip()
    assert table in done.stdout


def test_one_that_fails_is_reported(tmp_path: Path) -> None:
    done = run("encoding", "--write", "--to", str(tmp_path), "--", "--no-such-argument")
    assert done.returncode == 1
    assert "failed: encoding" in done.stderr
    assert "It failed: exit code 2." in (tmp_path / "RESULTS.md").read_text()
    assert run("nonsense").returncode == 2


def test_ratios_are_found_where_columns_say_so() -> None:
    assert [ratio[1:] for ratio in find_ratios("x", PRINTED)] == [("trades, ours/library", 5.0), ("trades, of raw", 0.81)]


GROWN = """
### Growth: clients

| clients | messages/s |     |  MB |
| ------- | ---------: | --: | --: |
| 1       |    1.20 M  | ±3% |  90 |
| 100     |    800.0 k | ±3% | 512 |

It took 3 s.
"""


def test_what_grows_is_found_and_drawn(tmp_path: Path) -> None:
    curves = list(find_growth(f"{PRINTED}{GROWN}"))
    assert curves == [("clients", "messages/s", [(1, 1.2e6), (100, 8e5)]), ("clients", "MB", [(1, 90), (100, 512)])]
    draw_growth(curves, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 5_000


def test_every_benchmark_says_what_it_measures() -> None:
    for name in names():
        lines = (ROOT / "benchmarks" / f"bench_{name}.py").read_text().splitlines()
        assert lines[0].startswith('"""')
        assert len(lines[0]) > 20
