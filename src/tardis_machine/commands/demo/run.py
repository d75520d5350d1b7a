"""`tardis-machine demo`: runs a client, fills the lake, and shows the counts of every stage.

Invariant: exit code 0 means that every stage has the same events, and that nothing that was published is missing in the lake.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from shlex import quote

from ...settings import Settings
from ...telemetry import setup_logging
from .client import run_client
from .display import Display
from .lake import LakeResult, fill_lake
from .page import PORT, keep_serving
from .plan import DemoPlan, plan_demo
from .stage_counts import KINDS, StageCounts

__all__ = ["run"]

# Made anew each time: the counts are of this run.
_FOLDERS_OF_A_RUN = ("events", "spool", "landing", "lake")
_EXAMPLE_QUERY = "lake sql \"select * from gold.bars where exchange = 'bitmex' order by start limit 5\" --lake"


def run(settings: Settings) -> int:
    """0 when every stage has seen the same events."""
    setup_logging("text", "debug" if settings.debug else "warning")
    plan = plan_demo(settings)
    display = Display()
    for part in _FOLDERS_OF_A_RUN:
        shutil.rmtree(plan.folder / part, ignore_errors=True)
    plan.folder.mkdir(parents=True, exist_ok=True)
    stages = StageCounts(dict(run_client(plan, settings, display)))
    events = sum(next(iter(stages.counts.values())).values())
    lake = fill_lake(plan, settings, events, display)
    stages.counts.update(lake.counts)
    code = _report(plan, stages, lake, display)
    if settings.demo_open:
        keep_serving(plan, settings, display)
    else:
        display.print_line("page", f"http://localhost:{PORT}/ with `make demo OPEN=1`, or --demo-open, which keeps serving")
    return code


def _report(plan: DemoPlan, stages: StageCounts, lake: LakeResult, display: Display) -> int:
    from rich.table import Table

    console = display.console
    table = Table(title="Events at each stage")
    for name in ("stage", *KINDS, ""):
        table.add_column(name, justify="left" if name in ("stage", "") else "right")
    for stage, counts in stages.counts.items():
        mark = "[green]✓[/]" if stages.agrees(stage) else "[red]✗[/]"
        table.add_row(stage, *(f"{counts.get(kind, 0):,}" for kind in KINDS), mark)
    console.print(table)
    bars = Table(title=f"gold: two {plan.bar} bars of each exchange, and its mean spread")
    for name in ("exchange", "start", "open", "high", "low", "close", "trades", "bps"):
        bars.add_column(name, justify="left" if name in ("exchange", "start") else "right")
    for exchange, start, *prices, trades, spread in lake.bars:
        bars.add_row(exchange, f"{start:%H:%M:%S}", *(f"{price:.1f}" for price in prices), str(trades), f"{spread or 0:.2f}")
    console.print(bars)
    display.print_line("gold", ", ".join(f"{name} {count:,}" for name, count in lake.products.items()))
    outcome = lake.verification
    published = sum(session.published or 0 for session in outcome.sessions)
    lacking = sum(missing.events for missing in outcome.missing)
    verdict = "[green]nothing is missing[/]" if outcome.is_whole else f"[red]{lacking:,} events are missing[/]"
    display.print_line("verify", f"of {published:,} events in the publisher's ledger, {verdict}")
    display.print_line("chart", str(plan.folder / "bars.png"))
    program = sys.argv[0] if Path(sys.argv[0]).name == "tardis-machine" else "tardis-machine"
    display.print_line("query", f"{program} {_EXAMPLE_QUERY} {quote(str(plan.folder / 'lake'))}")
    display.print_line("done", f"in {display.elapsed_s:.0f} s")
    if not stages.all_agree:
        console.print("[red]the counts differ: something was lost or repeated on the way[/]")
    return 0 if stages.all_agree and outcome.is_whole else 1
