"""SQS as ElasticMQ plays it, with Amazon's limits; what it holds is gone with the process."""

from __future__ import annotations

from .process import ServerProcess, class_path, http_status, java

JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
SETTINGS = """\
include classpath("application.conf")
generate-node-address = false
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""


class ElasticMqServer(ServerProcess):
    name = "ElasticMQ"
    scheme = "http"

    def prepare(self) -> None:
        (self.folder / "elasticmq.conf").write_text(SETTINGS.format(port=self.port))

    def command(self) -> list[str]:
        return [java(), *JVM_OPTIONS, "-Dconfig.file=elasticmq.conf", "-cp", class_path("elasticmq"), "org.elasticmq.server.Main"]

    def answers(self) -> bool:
        return http_status(self.port, "/?Action=ListQueues") == 200
