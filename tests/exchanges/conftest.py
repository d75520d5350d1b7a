"""What the tests of exchanges print at their end: how many conformance rows passed, of all that are visible, by exchange."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "vector_rows":
                    exchange, _, count, size = value
                    passed[exchange] += count
                    rows[exchange] += size
    if rows:
        terminalreporter.section("conformance rows that passed")
        for exchange in sorted(rows):
            percent = 100 * passed[exchange] / max(rows[exchange], 1)
            terminalreporter.write_line(f"{exchange:<26}{passed[exchange]:>6} of {rows[exchange]:>6}{percent:>8.1f} %")
        terminalreporter.write_line(f"{len(rows)} exchanges{passed.total():>18} of {rows.total():>6}")
