"""A NATS server with JetStream, which keeps its streams in files; `config` is added to its settings."""

from __future__ import annotations

import socket
import sysconfig
from pathlib import Path

from .process import ServerProcess, installed


class NatsServer(ServerProcess):
    name = "NATS"
    scheme = "nats"

    def __init__(self, folder: Path, config: str = "", *, jetstream: bool = True) -> None:
        super().__init__(folder)
        self.config = config
        self.jetstream = jetstream

    def prepare(self) -> None:
        self.configure(self.config)

    def configure(self, config: str) -> None:
        """Other settings, in force at the next start."""
        self.config = config
        storage = f'jetstream {{ store_dir: "{self.folder / "data"}" }}\n' if self.jetstream else ""
        (self.folder / "server.conf").write_text(f"listen: {self.address}\n{storage}{config}\n")

    def command(self) -> list[str]:
        program = installed(Path(sysconfig.get_path("scripts")) / "nats-server", "nats-server")
        return [program, "--config", str(self.folder / "server.conf")]

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            greeting = connection.recv(4096)
        return greeting.startswith(b"INFO ") and (b'"jetstream":true' in greeting or not self.jetstream)
