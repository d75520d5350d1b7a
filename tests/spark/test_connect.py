"""The lake over Spark Connect: the command has no JVM of its own, and the server runs its code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tardis_machine
from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.ingest import Ingest
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.session import start_session
from tardis_machine.lakehouse.sources.files import FilesSource
from tests.lake_crash.comparing import compare_lakes
from tests.lake_crash.events import FEW_MARKETS, write_files
from tests.lake_crash.job import LakeJob
from tests.servers.process import free_port
from tests.servers.spark_connect import SparkConnectServer

pytestmark = pytest.mark.timeout(600)

GOLD = ("bars_1m",)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SparkConnectServer]:
    with SparkConnectServer(tmp_path / "server") as server:
        yield server


def test_ingest_and_sql_over_connect(spark: SparkSession, server: SparkConnectServer, tmp_path: Path) -> None:
    bus, lake, local = tmp_path / "bus", tmp_path / "lake", tmp_path / "local"
    write_files(bus, events=1_000, files=2, seed=1, markets=FEW_MARKETS)
    place = ("--lake", str(lake), "--remote", server.url)
    options = ("--from", "files", "--file-dir", str(bus), "--once", "--gold", ",".join(GOLD))
    for attempt in range(6):
        job = LakeJob("ingest", *options, *place, log=tmp_path / f"ingest-{attempt}.log")
        job.start()
        code = job.wait(300)
        # Spark waits ten seconds for the Python that runs batches, which is too short for a machine with much else to do.
        if "connect back" not in job.tail:
            break
    assert code == 0, job.tail
    assert "in the Spark Connect server, which alone counts rows · nothing left" in job.tail

    Ingest(spark, Lake.at(local), FilesSource(bus), until="gold", gold=GOLD).run_once()
    compared = {item.table: item for item in compare_lakes(lake, local)}
    assert [item for item in compared.values() if not item.is_equal] == []

    command = [sys.executable, "-m", "tests.spark.where_executors_import", json.dumps({"remote": server.url})]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    package, *compiled = json.loads(answer.stdout)
    assert package != tardis_machine.__file__
    assert {Path(file).suffix for file in compiled} == {".so"}
    assert all(Path(file).is_relative_to(Path(package).parent) for file in compiled)

    query = "select count(*) as trades, count(distinct symbol) as symbols from silver.trades"
    command = [sys.executable, "-m", "tardis_machine", "lake", "sql", query, "--format", "json", *place]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == [{"trades": compared["silver.trades"].rows, "symbols": 2}]
    assert compared["gold.bars"].rows


def test_a_server_that_is_not_there_is_named_without_its_token() -> None:
    port = free_port()
    with pytest.raises(LakeError) as raised:
        start_session(remote=f"sc://127.0.0.1:{port}/;token=secret")
    assert str(raised.value).startswith(f"no Spark Connect server answers at 127.0.0.1:{port}: ")
    assert str(raised.value).endswith("; start it, or name another with --remote")
    assert "secret" not in str(raised.value)
