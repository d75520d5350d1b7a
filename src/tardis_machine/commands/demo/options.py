"""What the `demo` command is asked.

Invariant: nothing is imported but settings, as `--help` reads this file.
"""

from __future__ import annotations

from pathlib import Path

from ...settings import Option, duration, integer, path, switch

__all__ = ["DEMO_OPTIONS"]

DEMO_OPTIONS = (
    Option(name="demo-dir", help="Where the demo keeps its data", group="demo", parse=path, default=Path(".demo")),
    Option(
        name="demo-real",
        help="Uses real history; the first day of a month is free, and that is what the demo asks for",
        group="demo",
        parse=switch,
        default=False,
    ),
    Option(
        name="demo-live",
        help="Listens to simulated exchanges instead of replaying history",
        group="demo",
        parse=switch,
        default=False,
    ),
    Option(
        name="demo-span",
        help="How much history, in whole minutes, or how long to listen",
        group="demo",
        parse=duration(1.0, 86_400.0),
        default_text="1h; 5m of real history, 1m of listening",
    ),
    Option(
        name="demo-activity",
        help="How busy the sample market is, in per cent of a busy day; at 100, an hour is a million events",
        group="demo",
        parse=integer(1, 1000, "PERCENT"),
        default_text="10; 100 of listening",
    ),
    Option(name="demo-seed", help="Seed of the sample market", group="demo", parse=integer(0), default=1),
)
