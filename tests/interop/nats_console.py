"""The console of NATS, which `make interop` builds where there is go: it reads a record, and `buf` decodes it."""

from __future__ import annotations

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
        subject = bus.destination_option()[1]
        asked = f"sub {subject} --all --count 1 --raw"
        value = shell(f"'{console}' --server {server} {asked} 2>/dev/null | head -c -1", HOME=str(tmp_path), PATH="/usr/bin:/bin")
        assert decode_with_buf(value) == decode_event(session.events[0].value)
    finally:
        bus.close()
