"""What a lake job answers at /metrics, and that it counts everything once."""

from __future__ import annotations

import re
import socket
import time
from urllib.request import urlopen

import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.metrics import LakeMetrics, served_metrics
from tardis_machine.lakehouse.streams import Counts


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def values(text: str) -> dict[str, float]:
    found = re.findall(r"^tardis_machine_(lake_\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found if "created" not in name}


def test_reports_become_metrics_and_nothing_is_counted_twice() -> None:
    port = free_port()
    with served_metrics(port, "127.0.0.1") as metrics:

        def seen() -> dict[str, float]:
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return values(answer.read().decode())

        before = seen()

        def grown(name: str) -> float:
            return seen()[name] - before.get(name, 0)

        bronze = Counts(stream="bronze-kafka", newest_us=int((time.time() - 60) * 1e6), left={"records": 7}, lost=2)
        bronze.batches, bronze.committed = 3, time.monotonic() - 20
        bronze.rows.update({"bronze.events": 10, "bronze.quarantine": 1})
        # Of a name that no job of this process had before.
        silver = Counts({"silver.trades": 4, "bronze.quarantine": 1}, stream="silver-of-kafka")
        metrics.backfilled(6)
        for _ in range(2):
            metrics([bronze, silver])
        assert grown('lake_rows_total{table="bronze.events"}') == 10
        assert grown('lake_rows_total{table="silver.trades"}') == 4
        assert grown("lake_quarantined_total") == 2
        assert grown("lake_lost_total") == 2
        assert grown('lake_batches_total{stream="bronze-kafka"}') == 3
        assert seen()["lake_lag_seconds"] == pytest.approx(60, abs=5)
        assert seen()['lake_commit_age_seconds{stream="bronze-kafka"}'] == pytest.approx(20, abs=5)
        assert seen()['lake_left{stream="bronze-kafka",what="records"}'] == 7
        assert 'lake_commit_age_seconds{stream="silver-of-kafka"}' not in seen()
        # Of a source without anything left, the newest record may be of last year.
        bronze.left = {"records": 0}
        metrics([bronze, silver])
        assert seen()["lake_lag_seconds"] == 0


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LakeError, match=f"can't be served at 127.0.0.1:{port}: .*name another port with --metrics-port"):
            served_metrics(port, "127.0.0.1").__enter__()


def test_without_a_port_nobody_is_answered() -> None:
    with served_metrics(None, "127.0.0.1") as metrics:
        metrics([Counts(stream="silver")])
    assert isinstance(metrics, LakeMetrics)
