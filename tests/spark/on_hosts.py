"""An ingest on a cluster of several hosts, one of which is lost in mid-batch: what its tables have, against those of one machine.

    unshare --net --mount python -m tests.spark.on_hosts FOLDER

Hosts share nothing but the network: the lake and the events lie in an object store. Prints what differs, as JSON.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tardis_machine.lakehouse.storage import open_storage
from tests.lake_crash.comparing import compare_lakes
from tests.lake_crash.events import FEW_MARKETS, write_files
from tests.lake_crash.job import QUICK_START, LakeJob
from tests.servers.hosts import HEAD, Host, HostMaster, HostStore, HostWorker, make_network
from tests.servers.spark_cluster import make_bare_python

HOSTS = 2
CONF = {
    "spark.driver.host": HEAD,
    "spark.driver.bindAddress": HEAD,
    "spark.ui.enabled": "false",
    "spark.executor.memory": "768m",
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # A host that is lost says nothing: it is missed.
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
}


def main(folder: Path) -> None:
    """The cluster, the job on it, and one on this machine alone."""
    make_network()
    # Hosts see none of what lies here, nor do they see each other's.
    private = folder / "private"
    private.mkdir(parents=True)
    python = make_bare_python(folder / "python")
    with ExitStack() as stack:
        store = stack.enter_context(HostStore(folder / "store"))
        bucket, options = store.create_bucket("lakes"), store.lake_options()
        for file in write_files(private / "written", 1_000, 2, 1, FEW_MARKETS):
            store.client().upload_file(str(file), bucket, f"events/{file.name}")
        master = stack.enter_context(HostMaster(folder / "master"))
        workers = []
        for number in range(1, HOSTS + 1):
            host = stack.enter_context(Host(number, private))
            workers.append(stack.enter_context(HostWorker(folder / f"worker-{number}", host, master, private)))

        def job(name: str, *more: str) -> LakeJob:
            reached = [flag for option, value in options.items() for flag in ("--lake-option", f"{option}={value}")]
            what = ("ingest", "--from", "files", "--file-dir", f"s3a://{bucket}/events", "--once", "--gold", "bars_1m")
            return LakeJob(*what, "--lake", f"s3://{bucket}/{name}", *reached, *more, log=folder / f"{name}.log")

        conf = {**CONF, "spark.pyspark.python": str(python)}
        flags = [flag for name, value in conf.items() for flag in ("--spark-conf", f"{name}={value}")]
        ingest, lake = job("hosts", "--master", master.url, *flags), open_storage(f"s3://{bucket}/hosts", options)
        ingest.start()
        # Bronze is there; silver is not.
        ingest.wait_until(lambda: lake.list_files(f"{lake.root}/bronze/events/_delta_log", "*1.json"), 300)
        had_work = [worker.has_executor for worker in workers]
        workers[1].lose()
        code = ingest.wait(400)
        alone = job("alone", "--master", "local[2]")
        alone.start()
        code = alone.wait(400) or code
        found = compare_lakes(lake, open_storage(f"s3://{bucket}/alone", options))
    differing = [asdict(item) for item in found if not item.is_equal]
    rows = {item.table: item.rows for item in found}
    print(
        json.dumps(
            {"code": code, "hadWork": had_work, "differing": differing, "rows": rows, "log": ingest.tail[-1500:]}, default=str
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
