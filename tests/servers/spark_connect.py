"""A Spark Connect server with Delta Lake, in a process of its own."""

from __future__ import annotations

import socket
import sys

from tardis_machine.lakehouse.session import DELTA_CONF

from .process import ServerProcess, class_path
from .spark_cluster import spark_class

__all__ = ["SparkConnectServer"]


class SparkConnectServer(ServerProcess):
    """What clients ask for runs here, on two cores; the package is installed in its Python."""

    name = "the Spark Connect server"
    scheme = "sc"

    def command(self) -> list[str]:
        conf = {
            **DELTA_CONF,
            "spark.master": "local[2]",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.driver.host": "127.0.0.1",
        }
        settings = [argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")]
        server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal")
        submit = spark_class("deploy.SparkSubmit", *settings, *server, heap="1g", jars=(class_path("spark"),))
        return ["env", f"PYSPARK_PYTHON={sys.executable}", *submit]

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
