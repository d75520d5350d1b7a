"""A Redis server that keeps what it confirmed: every command is in its append-only file."""

from __future__ import annotations

import shutil
import socket

from .process import ServerMissingError, ServerProcess


class RedisServer(ServerProcess):
    name = "Redis"
    scheme = "redis"

    def command(self) -> list[str]:
        program = shutil.which("redis-server")
        if program is None:
            raise ServerMissingError("This test needs redis-server, which is not on the PATH: run `make setup`.")
        return [program, "--port", str(self.port), "--bind", "127.0.0.1", "--appendonly", "yes", "--save", ""]

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
