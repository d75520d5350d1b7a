"""`tardis-machine serve` as a process: how it ends, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.machine import DAY, options
from tests.integration.raw_client import http_get, ws_get
from tests.integration.served import fill_bitmex, gone_within, served
from tests.servers.process import free_port

LONG = options(to=f"{DAY}00:05:00Z")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    fill_bitmex(folder, 5)
    return folder


def begin(port: int, request: bytes) -> socket.socket:
    """A client in the middle of its answer, that reads no further."""
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    client.sendall(request)
    assert client.recv(1000)
    return client


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("to_all", [False, True])
def test_a_signal_ends_everything_in_time(cache_dir: Path, tmp_path: Path, number: signal.Signals, to_all: bool) -> None:
    with served(cache_dir, tmp_path / "log", "--workers", "2", "--shutdown-timeout", "5s") as server:
        workers = server.worker_pids
        assert len(workers) == 2
        clients = [begin(server.port, request) for request in (http_get("/replay-normalized", LONG), ws_get("/ws-replay"))]
        began = time.monotonic()
        if to_all:
            # As a terminal's Ctrl-C and a service manager do.
            for pid in (*workers, server.process.pid):
                os.kill(pid, number)
        else:
            server.process.send_signal(number)
        assert server.process.wait(10) == 0, server.log.read_text()
        assert time.monotonic() - began < 5
        assert gone_within(workers, 0)
        for client in clients:
            client.close()
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "died" not in log
    assert log.rstrip().endswith("stopped")


def test_ctrl_c_while_it_starts_ends_it_too(cache_dir: Path, tmp_path: Path) -> None:
    with served(cache_dir, tmp_path / "log", "--workers", "2") as server:
        # The server answers before its workers have loaded what they need.
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.process.wait(10) == 0
    assert "Traceback" not in server.log.read_text()


def test_a_killed_server_leaves_no_worker(cache_dir: Path, tmp_path: Path) -> None:
    with served(cache_dir, tmp_path / "log", "--workers", "2") as server:
        workers = server.worker_pids
        client = begin(server.port, http_get("/replay-normalized", LONG))
        server.process.kill()
        server.process.wait()
        assert gone_within(workers, 3)
        client.close()


def test_a_port_in_use_is_said_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        for asked in (port, port - 1):
            ended = subprocess.run(
                [sys.executable, "-m", "tardis_machine", "serve", "--port", str(asked), "--cache-dir", str(tmp_path)],
                check=False,
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert ended.returncode == 2
            assert ended.stderr.splitlines()[-1].startswith(f"error: port {port} is in use on ")
            assert "Traceback" not in ended.stderr


def test_a_cache_of_the_node_client_is_told_of_and_found_by_its_name(cache_dir: Path, tmp_path: Path) -> None:
    (tmp_path / ".tardis-cache").symlink_to(cache_dir)
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }

    def replay(request: dict[str, Any], *argv: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "tardis_machine", "replay", "--options", json.dumps(request), *argv]
        ended = subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=60)
        return ended.stdout.count("\n"), ended.stderr

    _, told = replay(options(to=options()["from"]))
    assert f"the Node client's cache is not used; --cache-dir with its folder would folder={tmp_path}/.tardis-cache" in told
    lines, told = replay(LONG, "--cache-dir", str(tmp_path / ".tardis-cache"), "--api-url", "http://127.0.0.1:9")
    assert lines > 1000
    assert "Node client" not in told
