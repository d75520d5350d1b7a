"""The same jobs on a cluster of separate processes: the same tables, also when a machine of it goes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tardis_machine
from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.backfill import Backfill
from tardis_machine.lakehouse.ingest import Ingest, refine
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.session import start_session
from tardis_machine.lakehouse.sources.files import FilesSource
from tardis_machine.pipeline.request import parse_normalized_request
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tests.lake_crash.comparing import compare_lakes, compare_table
from tests.lake_crash.events import FEW_MARKETS, write_files
from tests.lake_crash.job import QUICK_START, LakeJob
from tests.servers.hosts import apart
from tests.servers.process import DIE_WITH_PARENT, free_port
from tests.servers.spark_cluster import SparkCluster, SparkWorker, make_bare_python

pytestmark = pytest.mark.timeout(900)

SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "768m",
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}

GOLD = ("bars_1m", "top_of_book")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What executors run: it does not have this package."""
    return make_bare_python(tmp_path_factory.mktemp("executors") / "python")


def job(cluster: SparkCluster, python: Path, log: Path, *arguments: str) -> LakeJob:
    conf = {**SMALL, "spark.pyspark.python": str(python)}
    flags = [flag for name, value in conf.items() for flag in ("--spark-conf", f"{name}={value}")]
    return LakeJob(*arguments, "--master", cluster.url, *flags, log=log)


def check_equal(lake: Path, local: Path, *tables: str) -> None:
    compared = {item.table: item for item in compare_lakes(lake, local)}
    assert [item for item in compared.values() if not item.is_equal] == []
    assert all(compared[table].rows for table in tables), compared


def test_executors_have_the_package_of_the_command_and_what_is_compiled_of_it(cluster: SparkCluster, bare_python: Path) -> None:
    options = {"master": cluster.url, "conf": {**SMALL, "spark.pyspark.python": str(bare_python)}}
    command = [sys.executable, "-m", "tests.spark.where_executors_import", json.dumps(options)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert answer.returncode == 0, answer.stderr
    package, *compiled = json.loads(answer.stdout)
    folder = Path(package).parent
    assert folder != Path(tardis_machine.__file__).parent
    assert {Path(file).parent for file in compiled} == {folder / "__compiled__"}
    assert {Path(file).suffix for file in compiled} == {".so"}


def test_a_folder_that_an_executor_does_not_share_is_refused_at_the_start(
    cluster: SparkCluster, bare_python: Path, tmp_path: Path
) -> None:
    lake, bus = tmp_path / "lake", tmp_path / "bus"
    lake.mkdir()
    bus.mkdir()
    with SparkWorker(tmp_path / "apart", cluster.master, hides=lake):
        options = ("--from", "files", "--file-dir", str(bus), "--lake", str(lake), "--once")
        ingest = job(cluster, bare_python, tmp_path / "ingest.log", "ingest", *options)
        ingest.start()
        assert ingest.wait(300) == 1
    refused = (
        f"{lake} is not the same folder on .* as on .*; mount one folder on all machines of the cluster, or keep the lake in "
    )
    assert re.search(refused, ingest.tail), ingest.tail
    assert not [*lake.rglob("*.*")]


def test_an_ingest_on_a_cluster_that_loses_a_worker_has_the_tables_of_one_machine(
    spark: SparkSession, cluster: SparkCluster, bare_python: Path, tmp_path: Path
) -> None:
    write_files(tmp_path / "bus", events=1_000, files=2, seed=1, markets=FEW_MARKETS)
    lake, local = tmp_path / "lake", tmp_path / "local"
    options = ("--from", "files", "--file-dir", str(tmp_path / "bus"), "--lake", str(lake), "--once", "--gold", ",".join(GOLD))
    ingest = job(cluster, bare_python, tmp_path / "ingest.log", "ingest", *options)
    ingest.start()
    lost = cluster.workers[1]
    # Bronze is there; silver and gold are not.
    ingest.wait_until(lambda: lost.has_executor and (lake / "bronze/events/_delta_log/00000000000000000001.json").exists(), 300)
    lost.kill()
    code = ingest.wait(600)
    assert code == 0, ingest.tail
    lost.start()
    assert "Traceback" not in ingest.log.read_text()

    reference = Ingest(spark, Lake.at(local), FilesSource(tmp_path / "bus"), until="gold", gold=GOLD)
    reference.run_once()
    check_equal(lake, local, "bronze.events", "bronze.quarantine", "silver.trades", "gold.bars", "gold.top_of_book")


def test_hosts_that_share_nothing_but_an_object_store_and_one_of_which_is_lost_have_the_tables_of_one_machine(
    tmp_path: Path,
) -> None:
    command = [*DIE_WITH_PARENT, *apart(), sys.executable, "-m", "tests.spark.on_hosts", str(tmp_path / "hosts")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert answer.returncode == 0, answer.stderr[-3000:]
    found = json.loads(answer.stdout)
    assert (found["code"], found["differing"], found["hadWork"]) == (0, [], [True, True]), found
    assert all(found["rows"][table] for table in ("bronze.events", "silver.trades", "gold.bars")), found


def test_a_backfill_on_a_cluster_has_the_tables_of_one_machine(
    spark: SparkSession, cluster: SparkCluster, bare_python: Path, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {
        "exchange": "bitmex",
        "symbols": ["XBTUSD", "ETHUSD"],
        "from": "2020-02-01",
        "to": "2020-02-01T00:01:00Z",
        "dataTypes": ["trade", "book_change"],
    }
    lake, local = tmp_path / "lake", tmp_path / "local"
    with SampleHistoryApi(Recording(SampleMarket(1, 0.05), disconnects_per_day=0)).serve_in_thread() as api:
        options = ("--exchange", "bitmex", "--symbols", "XBTUSD,ETHUSD", "--from", asked["from"], "--to", asked["to"])
        places = ("--api-url", api.url, "--cache-dir", str(tmp_path / "cache"), "--lake", str(lake))
        types = ("--data-types", "trade,book_change", "--until", "silver")
        backfill = job(cluster, bare_python, tmp_path / "backfill.log", "backfill", *options, *types, *places)
        backfill.start()
        code = backfill.wait(600)
        assert code == 0, backfill.tail
        requests = [parse_normalized_request(asked)]
        Backfill(spark, Lake.at(local), requests, api.url, None, str(tmp_path / "local-cache")).run()
    refine(spark, Lake.at(local), until="silver")
    # When something was fetched is in the event itself.
    of_their_time = ("value", "ingest_ts", "broker_timestamp")
    compared = [
        compare_table("bronze.events", lake, local, without=of_their_time, where="payload_case <> 'session_end'"),
        *(compare_table(table, lake, local) for table in ("silver.trades", "silver.book_changes")),
    ]
    assert [item for item in compared if not item.is_equal or not item.rows] == []


def test_a_master_that_is_not_there_is_named() -> None:
    ports = [free_port(), free_port()]
    places = [f"127.0.0.1:{port}" for port in ports]
    with pytest.raises(
        LakeError, match=rf"no Spark master answers at {places[0]}: .*refused or at {places[1]}: .*refused; .* --master"
    ):
        start_session(master=f"spark://{','.join(places)}")
