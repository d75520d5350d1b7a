"""The `demo` command: asks, lands, and shows what came of it.

Invariant: exit code 0 means that every stage has the same events, and that the lake lacks nothing that was published.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from shlex import quote

from ...settings import Settings
from ...telemetry import setup_logging
from .client import ask
from .landing import Landed, land
from .progress import Teller
from .stages import KINDS, Stages
from .walk import Walk, plan_walk

__all__ = ["run"]

# Made anew each time: the counts are of this run.
_OF_ONE_RUN = ("events", "spool", "landing", "lake")
_ASK = "lake sql \"select * from gold.bars where exchange = 'bitmex' order by start limit 5\" --lake"


def run(settings: Settings) -> int:
    """0 when every stage has seen the same events."""
    setup_logging("text", "debug" if settings.debug else "warning")
    walk = plan_walk(settings)
    teller = Teller()
    for part in _OF_ONE_RUN:
        shutil.rmtree(walk.folder / part, ignore_errors=True)
    walk.folder.mkdir(parents=True, exist_ok=True)
    stages = Stages(dict(ask(walk, settings, teller)))
    events = sum(next(iter(stages.counts.values())).values())
    landed = land(walk, settings, events, teller)
    stages.counts.update(landed.counts)
    return _report(walk, stages, landed, teller)


def _report(walk: Walk, stages: Stages, landed: Landed, teller: Teller) -> int:
    from rich.table import Table

    console = teller.console
    table = Table(title="Events at each stage")
    for name in ("stage", *KINDS, ""):
        table.add_column(name, justify="left" if name in ("stage", "") else "right")
    for stage, counts in stages.counts.items():
        mark = "[green]✓[/]" if stages.agrees(stage) else "[red]✗[/]"
        table.add_row(stage, *(f"{counts.get(kind, 0):,}" for kind in KINDS), mark)
    console.print(table)
    bars = Table(title=f"gold: two {walk.bar} bars of each exchange, and its mean spread")
    for name in ("exchange", "start", "open", "high", "low", "close", "trades", "bps"):
        bars.add_column(name, justify="left" if name in ("exchange", "start") else "right")
    for exchange, start, *prices, trades, spread in landed.bars:
        bars.add_row(exchange, f"{start:%H:%M:%S}", *(f"{price:.1f}" for price in prices), str(trades), f"{spread or 0:.2f}")
    console.print(bars)
    teller.say("gold", ", ".join(f"{name} {count:,}" for name, count in landed.products.items()))
    outcome = landed.verification
    published = sum(session.published or 0 for session in outcome.sessions)
    lacking = sum(missing.events for missing in outcome.missing)
    verdict = "[green]nothing is missing[/]" if outcome.is_whole else f"[red]{lacking:,} events are missing[/]"
    teller.say("verify", f"of {published:,} events in the publisher's ledger, {verdict}")
    teller.say("chart", str(walk.folder / "bars.png"))
    program = sys.argv[0] if Path(sys.argv[0]).name == "tardis-machine" else "tardis-machine"
    teller.say("ask", f"{program} {_ASK} {quote(str(walk.folder / 'lake'))}")
    teller.say("done", f"in {teller.elapsed_s:.0f} s")
    if not stages.agree:
        console.print("[red]the counts differ: something was lost or repeated on the way[/]")
    return 0 if stages.agree and outcome.is_whole else 1
