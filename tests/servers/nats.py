"""A NATS server with JetStream."""

from __future__ import annotations

import socket
import sysconfig
from pathlib import Path

from .process import ServerProcess, installed


class NatsServer(ServerProcess):
    name = "NATS"
    scheme = "nats"

    def command(self) -> list[str]:
        program = installed(Path(sysconfig.get_path("scripts")) / "nats-server", "nats-server")
        return [program, "--addr", "127.0.0.1", "--port", str(self.port), "--jetstream", "--store_dir", str(self.folder)]

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            return b'"jetstream":true' in connection.recv(4096)
