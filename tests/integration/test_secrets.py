"""A canary in every secret option, and in every URL that may hold a password: it is in nothing that comes out, whatever goes wrong.

The servers that the machine is pointed at are parrots: they refuse, and their refusals repeat all that they were sent.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tardis_machine.settings.buses import BUS_MODULES, bus_options
from tardis_machine.settings.commands import all_options
from tests.integration.machine import options
from tests.servers.process import free_port

CANARY = "c4n4ry"
SECRETS = [
    option for option in (*all_options(), *(option for bus in BUS_MODULES for option in bus_options(bus))) if option.secret
]


def canary(name: str) -> str:
    """A value of its own for each option, with what URLs, JSON and shells write in other ways."""
    return f'{CANARY}-{name}/+"%'


# As it begins in base64, whatever stands before it.
ENCODED = [base64.b64encode(b"\0" * skip + CANARY.encode())[(4 if skip else 0) : -4].decode() for skip in range(3)]


def check(shown: str, where: str) -> None:
    """No canary, nor what a careless encoding makes of one."""
    for trace in (CANARY, *ENCODED):
        found = shown.find(trace)
        assert found < 0, f"{where}: {shown[max(0, found - 300) : found + 80]}"


class Parrot(socketserver.BaseRequestHandler):
    """Answers HTTP with a refusal that repeats the request, and anything else with itself."""

    greeting = b""

    def handle(self) -> None:
        with suppress(OSError):
            self.request.sendall(self.greeting)
            while heard := self.request.recv(65536):
                if heard.split(b" ")[0] in (b"GET", b"POST", b"PUT"):
                    body = json.dumps({"code": 1, "message": heard.decode("latin-1")}).encode()
                    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                    self.request.sendall(head.encode() + body)
                else:
                    self.request.sendall(heard)


class NatsParrot(Parrot):
    """NATS servers speak first."""

    greeting = (
        b'INFO {"server_id":"p","version":"2.10.0","proto":1,"headers":true,"max_payload":1048576,"auth_required":true}\r\n'
    )


class LoadingParrot(Parrot):
    """A Redis that will be there soon, and repeats what it is sent meanwhile."""

    def handle(self) -> None:
        with suppress(OSError):
            while heard := self.request.recv(65536):
                self.request.sendall(b"-LOADING " + b" ".join(heard.split()) + b"\r\n")


@contextmanager
def listening(handler: type[Parrot]) -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def parrots() -> Iterator[tuple[int, int]]:
    """The ports of a parrot, and of one that speaks as NATS does."""
    with listening(Parrot) as one, listening(NatsParrot) as other:
        yield one, other


def plain_options(parrots: tuple[int, int]) -> dict[str, str]:
    """All buses on, each with the secrets that go together."""
    address, nats = (f"127.0.0.1:{port}" for port in parrots)
    password = quote(canary("url"), safe="")
    given = {
        "kafka-brokers": address,
        "kafka-topic": "t",
        "kafka-sasl-mechanism": "plain",
        "kafka-sasl-username": "me",
        "kafka-schema-registry-url": f"http://{address}",
        "kafka-schema-registry-username": "me",
        "redis-url": f"redis://me:{password}@{address}/0",
        "redis-stream": "s",
        "nats-servers": f"nats://me:{password}@{nats}",
        "nats-subject": "a.b",
        "kinesis-stream": "s",
        "kinesis-region": "us-east-1",
        "kinesis-endpoint-url": f"http://{address}",
        "sqs-queue-url": f"http://{address}/1/q",
        "sqs-region": "us-east-1",
        "api-url": f"http://{address}/v1",
    }
    names = ["api-key", "auth-token", "kafka-sasl-password", "kafka-schema-registry-password"]
    names += [f"{bus}-{name}" for bus in ("kinesis", "sqs") for name in ("access-key-id", "secret-access-key", "session-token")]
    given["exchange-credentials"] = exchange_credentials()
    return given | {name: canary(name) for name in names}


def exchange_credentials() -> str:
    """Of an account, as a pair."""
    quoted = canary("exchange-credentials").replace('"', '""')
    return f'OKX_API_KEY="{quoted}"'


def other_options(parrots: tuple[int, int], folder: Path) -> dict[str, str]:
    """The other ways to let oneself in."""
    address, nats = (f"127.0.0.1:{port}" for port in parrots)
    (folder / "key.pem").write_text("no key")
    given = {
        "kafka-brokers": address,
        "kafka-topic": "t",
        "kafka-ssl": "true",
        "kafka-ssl-cert": str(folder / "key.pem"),
        "kafka-ssl-key": str(folder / "key.pem"),
        "redis-sentinels": address,
        "redis-sentinel-master": "m",
        "redis-stream": "s",
        "nats-servers": nats,
        "nats-subject": "a.b",
    }
    names = ("kafka-ssl-key-password", "redis-password", "redis-sentinel-password", "nats-token")
    return given | {name: canary(name) for name in names}


def named_options(parrots: tuple[int, int]) -> dict[str, str]:
    """A bus by its name, its options as pairs."""
    pairs = {"servers": f"127.0.0.1:{parrots[1]}", "subject": "a.b", "user": "me", "password": canary("nats-password")}
    return {
        "bus": "nats",
        "bus-option": ",".join(f'{name}="{value.replace(chr(34), chr(34) * 2)}"' for name, value in pairs.items()),
    }


def environ_of(given: Mapping[str, str]) -> dict[str, str]:
    """Secrets by the environment, as they should be given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TM_") and name != "PORT"}
    return clean | {f"TM_{name.upper().replace('-', '_')}": value for name, value in given.items()}


def run(given: Mapping[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    answer = subprocess.run(
        [sys.executable, "-m", "tardis_machine", *argv],
        env=environ_of(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    check(answer.stdout + answer.stderr, " ".join(argv[:2]))
    return answer


def test_every_secret_option_has_a_canary(parrots: tuple[int, int], tmp_path: Path) -> None:
    given = plain_options(parrots) | other_options(parrots, tmp_path) | named_options(parrots)
    assert {option.name for option in SECRETS} <= {*given, "nats-password"}
    for trace in (CANARY, *ENCODED):
        with pytest.raises(AssertionError):
            check(f"text {trace} text", "here")
    with pytest.raises(AssertionError):
        check(base64.b64encode(f"me:{canary('x')}".encode()).decode(), "here")


def test_config_and_help_show_none() -> None:
    given = {option.name: canary(option.name) for option in SECRETS if option.name not in ("bus-option", "exchange-credentials")}
    given["exchange-credentials"] = exchange_credentials()
    password = quote(canary("url"), safe="")
    given |= {"kafka-brokers": "h", "kafka-topic": "t", "redis-url": f"redis://:{password}@h", "redis-stream": "s"}
    given |= {
        "nats-servers": f"nats://me:{password}@h",
        "nats-subject": "a",
        "kinesis-stream": "s",
        "sqs-queue-url": "http://h/q",
    }
    answer = run(given, "config")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.count("***") >= len(given) - 8
    for argv in (["config", "--docs"], ["--help"], ["lake", "ingest", "--help"]):
        assert run(given, *argv).returncode == 0


def test_a_refused_secret_is_not_repeated() -> None:
    wrong = {option.name: f"{CANARY}\n{CANARY}" for option in SECRETS}
    answer = run({}, "serve", *(word for name, value in wrong.items() for word in (f"--{name}", value)))
    assert answer.returncode == 2
    assert (
        "--auth-token: expected a non-empty line of text, or several with commas between them (the value is not shown)"
        in answer.stderr
    )
    answer = run({}, "serve", "--auth-tokn", CANARY, f"--api-kye={CANARY}", "--redis-url", f"ftp://:{CANARY}@h")
    assert answer.returncode == 2
    assert "did you mean --auth-token?" in answer.stderr


@pytest.fixture
def loading() -> Iterator[int]:
    with listening(LoadingParrot) as port:
        yield port


def test_a_server_whose_buses_are_away(parrots: tuple[int, int], loading: int, tmp_path: Path) -> None:
    port, nobody = free_port(), free_port()
    given = plain_options((nobody, nobody)) | {
        "redis-url": f"redis://me:{quote(canary('url'), safe='')}@127.0.0.1:{loading}",
        "api-url": f"http://127.0.0.1:{parrots[0]}",
        "port": str(port),
        "cache-dir": str(tmp_path / "cache"),
        "spool-dir": str(tmp_path / "spool"),
        "log-format": "json",
        "debug": "true",
        "workers": "0",
        "shutdown-timeout": "1s",
    }
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen([sys.executable, "-m", "tardis_machine"], env=environ_of(given), stdout=output, stderr=output)
    try:
        for path, request in (
            ("/replay-normalized", options(dataTypes=["trade"])),
            ("/replay", options(dataTypes=None, symbols=None)),
        ):
            refusal = ask(port, f"{path}?options={quote(json.dumps(request))}", server)
            check(refusal, path)
            assert "Authorization: Bearer ***" in refusal
        check(ask(port, "/metrics", server), "/metrics")
        health = ask(port, "/health-check", server)
        check(health, "/health-check")
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    text = log.read_text()
    check(text, "log")
    errors = {name: bus["last_error"] for name, bus in json.loads(health)["buses"].items()}
    assert len(errors) == 5
    assert all(errors.values()), errors
    assert "***" in errors["redis"], "it repeated what it was sent"
    assert [json.loads(line)["message"] for line in text.splitlines()].count("receipt") == 5


def ask(port: int, path: str, server: subprocess.Popen[bytes]) -> str:
    """The body of the answer."""
    request = Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {canary('auth-token')}"})
    deadline = time.monotonic() + 60
    while True:
        try:
            with urlopen(request, timeout=60) as answer:
                return str(answer.read().decode())
        except HTTPError as refusal:
            return refusal.read().decode()
        except OSError:
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("which", ["plain", "other", "named"])
def test_a_doctor_whose_patients_all_refuse_it(parrots: tuple[int, int], tmp_path: Path, which: str) -> None:
    given = {"plain": plain_options(parrots), "other": other_options(parrots, tmp_path), "named": named_options(parrots)}[which]
    answer = run(given | {"check-timeout": "1s"}, "doctor", "--debug")
    assert answer.returncode == 1
    assert "Traceback" not in answer.stdout


def test_a_start_that_fails(parrots: tuple[int, int], tmp_path: Path) -> None:
    given = {name: value for name, value in plain_options(parrots).items() if not name.startswith(("kafka", "kinesis", "sqs"))}
    given |= {"spool-dir": str(tmp_path / "spool"), "cache-dir": str(tmp_path), "workers": "0"}
    answer = run(given | {"port": str(free_port())}, "serve", "--debug", "--shutdown-timeout", "1s")
    assert answer.returncode == 1
    assert "Traceback" in answer.stderr
    given = {name: canary(name) for name in ("api-key", "auth-token")} | {"workers": "0", "port": str(parrots[0])}
    answer = run(given, "serve", "--debug")
    assert answer.returncode == 2
    assert "is in use on" in answer.stderr


def test_a_replay_that_nobody_serves(parrots: tuple[int, int], tmp_path: Path) -> None:
    given = {
        "api-url": f"http://127.0.0.1:{parrots[0]}",
        "api-key": canary("api-key"),
        "cache-dir": str(tmp_path),
        "workers": "0",
    }
    request = options()
    words = [
        "--exchange",
        "bitmex",
        "--symbols",
        "XBTUSD",
        "--from",
        request["from"],
        "--to",
        request["to"],
        "--data-types",
        "trade",
    ]
    answer = run(given, "replay", "--debug", *words)
    assert answer.returncode == 1
    assert "Authorization: Bearer ***" in answer.stderr
