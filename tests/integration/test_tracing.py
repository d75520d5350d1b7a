"""Spans of what is published: from the client's request to the confirmation of every bus, also where that does not come."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pyarrow.parquet
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tardis_machine.commands.cli import main
from tardis_machine.errors import TransientDeliveryError, UndeliveredError
from tardis_machine.eventbus.publisher import Publisher
from tests.integration.machine import options
from tests.integration.published_events import TRADES
from tests.integration.served import fill_bitmex, served
from tests.servers.otlp_collector import OtlpCollector, attributes_of
from tests.unit.eventbus.events import make_events
from tests.unit.eventbus.scripted_bus import ScriptedBus, make_plan

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_a_request_goes_on_with_the_trace_of_its_client(tmp_path: Path) -> None:
    fill_bitmex(tmp_path / "cache", 2)
    with OtlpCollector() as collector:
        argv = ("--workers", "1", "--file-dir", str(tmp_path / "events"), "--otel-endpoint", collector.url)
        with served(tmp_path / "cache", tmp_path / "log", *argv) as server:
            url = f"http://127.0.0.1:{server.port}/replay-normalized?options={quote(json.dumps(options()))}"
            async with aiohttp.ClientSession() as client:
                for sent in ({"traceparent": f"00-{TRACE}-{CALLER}-01"}, {}, {"traceparent": "nonsense"}):
                    async with client.get(url, headers=sent) as response:
                        messages = (await response.text()).splitlines()
            server.process.terminate()
            assert await asyncio.to_thread(server.process.wait, 20) == 0
    requests = [span for span in collector.spans if span.name == "publish /replay-normalized"]
    (joined,) = [span for span in requests if span.trace_id.hex() == TRACE]
    assert joined.parent_span_id.hex() == CALLER
    assert [span.parent_span_id for span in requests if span is not joined] == [b"", b""]
    assert len({span.trace_id for span in requests}) == 3
    sent_counts = [int(attributes_of(span)["messaging.batch.message_count"]) for span in collector.spans if span not in requests]
    for span in requests:
        assert span.status.code == Status.STATUS_CODE_UNSET
        assert attributes_of(span)["session.id"]
    rows = pyarrow.parquet.read_table(tmp_path / "events", columns=["headers"])["headers"].to_pylist()
    carried = [dict(row)["traceparent"].split("-")[1] for row in rows]
    assert sum(sent_counts) == len(carried)
    counts = {trace: carried.count(trace) for trace in set(carried)}
    assert counts.keys() == {span.trace_id.hex() for span in requests}
    # Beside what the client saw: lost connections, and the end of the session.
    assert len(set(counts.values())) == 1
    assert len(messages) < counts[TRACE] < len(messages) + 10


async def test_a_bus_that_does_not_confirm_is_seen(tmp_path: Path) -> None:
    bus, secret = ScriptedBus(), "connection lost"

    def fault(_: object) -> list[object]:
        raise TransientDeliveryError(secret)

    bus.fault = fault  # type: ignore[assignment]
    with OtlpCollector() as collector:
        publisher = Publisher([make_plan(bus, tmp_path)], spool_dir=tmp_path / "spool", otel_endpoint=collector.url)
        await publisher.start()
        assert publisher.tracing is not None
        publisher.tracing.begin(TRADES.session_id, "/replay-normalized", "http", "r-1")
        publisher.tracing.begin("never-began", "/replay-normalized", "http", "r-2")
        await publisher.session_start(TRADES.session_id, source="s", origin="replay", meta={})
        await publisher.publish(make_events(TRADES, 5))
        publisher.session_end(TRADES.session_id)
        with pytest.raises(UndeliveredError):
            await publisher.close(0.3)
    (request,) = [span for span in collector.spans if span.name == "publish /replay-normalized"]
    batches = [span for span in collector.spans if span.name == "send scripted"]
    assert (request.status.code, request.status.message) == (Status.STATUS_CODE_ERROR, "not confirmed by scripted")
    assert batches
    assert {(span.status.code, span.status.message) for span in batches} == {(Status.STATUS_CODE_ERROR, secret)}


def test_a_collector_that_is_away_holds_nothing_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fill_bitmex(tmp_path / "cache", 2)
    asked = json.dumps(options())
    argv = ("--workers", "0", "--file-dir", str(tmp_path / "events"), "--otel-endpoint", "http://127.0.0.1:9")
    place = ("--cache-dir", str(tmp_path / "cache"), "--spool-dir", str(tmp_path / "spool"))
    assert main(["replay", "--options", asked, *argv, *place]) == 0
    assert pyarrow.parquet.read_table(tmp_path / "events").num_rows > 10
