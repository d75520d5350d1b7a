"""The console of NATS, which `make interop` builds where there is go: it reads a record, and `buf` decodes it."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

from tardis_machine.bronze.decoding import decode_event
from tests.contract.buses.nats import NatsUnderTest
from tests.interop.consoles import decode_with_buf, shell
from tests.interop.test_consoles import publish
from tests.servers.process import TOOLS, installed


async def test_the_console_of_nats(tmp_path: Path) -> None:
    console = installed(TOOLS / "interop" / "nats" / "nats", "the console of NATS")
    bus = NatsUnderTest(tmp_path)
    try:
        session = await publish(bus)
        server = bus.direct_keywords()["servers"][0]
        shown = shell(f"'{console}' --server {server} stream get MARKET 1 --json", HOME=str(tmp_path), PATH="/usr/bin:/bin")
        value = b64decode(json.loads(shown)["data"])
        assert decode_with_buf(value) == decode_event(session.events[0].value)
    finally:
        bus.close()
