"""The options of `demo`.

Invariant: without any of them the demo runs on sample data, and needs no account, network or broker.
"""

from __future__ import annotations

from pathlib import Path

from ..option import Option
from ..values import duration, integer, path, switch

__all__ = ["DEMO_OPTIONS"]

DEMO_OPTIONS = (
    Option(name="demo-dir", help="Folder for the data of the demo", group="demo", parse=path, default=Path(".demo")),
    Option(
        name="demo-real",
        help="Use real history, of a first day of a month, which needs no API key",
        group="demo",
        parse=switch,
        default=False,
    ),
    Option(
        name="demo-live",
        help="Connect to simulated exchanges instead of replaying history",
        group="demo",
        parse=switch,
        default=False,
    ),
    Option(
        name="demo-span",
        help="How much history to replay, in whole minutes, or how long to stay connected",
        group="demo",
        parse=duration(1.0, 86_400.0),
        default_text="1h; 5m of real history, 1m live",
    ),
    Option(
        name="demo-activity",
        help="How busy the sample market is, in percent of a busy day; at 100, one hour is a million events",
        group="demo",
        parse=integer(1, 1000, "PERCENT"),
        default_text="10; 100 live",
    ),
    Option(
        name="demo-open",
        help="Keep serving at the end, for a browser",
        group="demo",
        parse=switch,
        default=False,
    ),
    Option(name="demo-seed", help="Seed of the sample market", group="demo", parse=integer(0), default=1),
)
