"""What one task of a backfill is, and the rows that it brings."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.lakehouse import backfill
from tardis_machine.lakehouse.backfill import fetch_unit, plan_units
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording


def test_a_unit_is_a_symbol_and_a_day() -> None:
    asked = {"exchange": "bitmex", "symbols": ["A", "B"], "from": "2020-01-01T12:00Z", "to": "2020-01-03", "dataTypes": ["trade"]}
    units = plan_units([parse_normalized_request(asked)])
    assert [unit.session for unit in units] == [
        f"backfill|bitmex|{symbol}|trade|{span}"
        for span in (
            "2020-01-01T12:00:00.000000Z/2020-01-02T00:00:00.000000Z",
            "2020-01-02T00:00:00.000000Z/2020-01-03T00:00:00.000000Z",
        )
        for symbol in ("A", "B")
    ]
    # A symbol that is named twice is brought once.
    assert plan_units([parse_normalized_request({**asked, "symbols": ["A", "B", "A"]})]) == units
    with pytest.raises(OptionsError, match="a backfill needs at least one symbol; name some with --symbols"):
        plan_units([parse_normalized_request({**asked, "symbols": []})])


@pytest.mark.parametrize("bound", ["_ROWS_IN_BATCH", "_BYTES_IN_BATCH"])
def test_a_task_holds_little_at_a_time(tmp_path: Path, bound: str) -> None:
    span = {"from": "2020-02-01", "to": "2020-02-01T00:01:00Z"}
    [unit] = plan_units(
        [parse_normalized_request({"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["book_change"], **span})]
    )
    with (
        SampleHistoryApi(Recording(SampleMarket(1, 0.2), disconnects_per_day=0)).serve_in_thread() as api,
        pytest.MonkeyPatch.context() as patch,
    ):
        whole = [batch for _, batch in fetch_unit(unit, api_url=api.url, api_key=None, cache_dir=str(tmp_path))]
        patch.setattr(backfill, bound, 1)
        parts = [batch for _, batch in fetch_unit(unit, api_url=api.url, api_key=None, cache_dir=str(tmp_path))]
    assert len(whole) == 2
    assert len(parts) > 2
    for name in ("event_id", "sequence", "local_ts", "position"):
        assert [row for batch in parts for row in batch.column(name).to_pylist()][:-1] == whole[0].column(name).to_pylist()


def test_a_task_that_finds_nothing_brings_its_ledger(tmp_path: Path) -> None:
    span = {"from": "2020-02-01", "to": "2020-02-01T00:01:00Z"}
    [unit] = plan_units(
        [parse_normalized_request({"exchange": "bitmex", "symbols": ["NOTTHERE"], "dataTypes": ["trade"], **span})]
    )
    with SampleHistoryApi(Recording(SampleMarket(1, 0.05), disconnects_per_day=0)).serve_in_thread() as api:
        [(_, batch)] = fetch_unit(unit, api_url=api.url, api_key=None, cache_dir=str(tmp_path))
    assert batch.column("payload_case").to_pylist() == ["session_end"]


def test_a_task_brings_the_columns_that_its_values_have_and_its_ledger_last(tmp_path: Path) -> None:
    asked = {
        "exchange": "bitmex",
        "symbols": ["XBTUSD"],
        "from": "2020-02-01",
        "to": "2020-02-01T00:01:00Z",
        "dataTypes": ["trade", "book_change"],
    }
    [unit] = plan_units([parse_normalized_request(asked)])
    with SampleHistoryApi(Recording(SampleMarket(1, 0.05), disconnects_per_day=0)).serve_in_thread() as api:
        found = [*fetch_unit(unit, api_url=api.url, api_key=None, cache_dir=str(tmp_path))]
    assert {table.name for table, _ in found} == {"bronze.events"}
    rows = pa.Table.from_batches([batch for _, batch in found]).to_pylist()
    assert {row["payload_case"] for row in rows} == {"trade", "book_change", "session_end"}
    assert [row["payload_case"] == "session_end" for row in rows] == [False] * (len(rows) - 1) + [True]
    assert [(row["destination"], row["position"]) for row in rows] == [(unit.session, str(n)) for n in range(len(rows))]
    for row in rows[:-1]:
        event = NormalizedEvent.FromString(row["value"])
        said = (event.exchange, event.symbol, event.WhichOneof("payload"), event.event_id, event.sequence, unit.session, "replay")
        assert said == tuple(
            row[name] for name in ("exchange", "symbol", "payload_case", "event_id", "sequence", "session", "origin")
        )
        assert row["key"] == f"bitmex|XBTUSD|{row['payload_case']}"
        assert event.local_ts.ToMicroseconds() == round(row["local_ts"].timestamp() * 1e6)
    assert NormalizedEvent.FromString(rows[-1]["value"]).session_end.complete
