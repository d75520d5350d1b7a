"""tardis-rs, which `make interop` builds where there is cargo: every message that its types hold, compared with our own answers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tardis_machine.messages import to_json
from tests.interop.machine import run, shared_machine
from tests.servers.process import TOOLS

PROGRAM = TOOLS / "interop" / "tardis-rs" / "target" / "release" / "tardis-rs-client"


async def test_tardis_rs_replays(tmp_path: Path) -> None:
    assert PROGRAM.exists(), "tardis-rs is missing: run make interop, which builds it where there is cargo"
    types = ("trade", "book_change", "trade_bar_1m", "derivative_ticker", "book_snapshot_5_1s")
    with shared_machine(tmp_path, token=None) as machine:
        port = int(machine.url.rpartition(":")[2])
        span = ("2020-02-01T00:00:00Z", "2020-02-01T00:07:00Z")
        output = await run(PROGRAM, f"ws://127.0.0.1:{port + 1}", *span, *types)
        ours = await machine.messages(*types, to="2020-02-01T00:07", from_="2020-02-01", with_disconnect_messages=True)
    came = [message for line in output.splitlines() if (message := json.loads(line))["type"] != "disconnect"]
    expected = [json.loads(to_json(message)) for message in ours]
    assert Counter(message["type"] for message in came) == Counter(message["type"] for message in expected)
    assert len({message["type"] for message in came}) == len(types)
    assert [read(message) for message in came] == [read(message) for message in expected]


FIELDS = {
    "trade": ("id", "price", "amount", "side"),
    "book_change": ("isSnapshot", "bids", "asks"),
    "book_snapshot": ("name", "depth", "bids", "asks"),
    "trade_bar": ("open", "high", "low", "close", "volume", "buyVolume", "sellVolume", "vwap", "trades"),
    "derivative_ticker": ("lastPrice", "markPrice", "fundingRate", "openInterest"),
}


def read(message: dict[str, Any]) -> tuple[Any, ...]:
    """What is compared of a message; null is what is not there."""
    return message["type"], message["symbol"], *(message.get(name) for name in FIELDS[message["type"]])
