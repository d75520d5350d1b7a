"""The server's own TLS, with a certificate that a real client checks."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tardis_machine import TardisMachine
from tardis_machine.errors import SettingsError
from tests.integration.machine import options
from tests.integration.raw_client import connected, http_get
from tests.integration.served import fill_bitmex
from tests.servers.certificates import Authority


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    fill_bitmex(folder, 2)
    return folder


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("in_one_file", [False, True])
async def test_both_ports_speak_it(cache_dir: Path, authority: Authority, tmp_path: Path, in_one_file: bool) -> None:
    issued = authority.issue("server")
    files = {"tls_cert": issued.cert, "tls_key": issued.key}
    if in_one_file:
        (tmp_path / "both.pem").write_bytes(issued.cert.read_bytes() + issued.key.read_bytes())
        files = {"tls_cert": tmp_path / "both.pem"}
    machine = TardisMachine(cache_dir=cache_dir, workers=1, **files)
    await machine.start(port=0)
    trusting = ssl.create_default_context(cafile=authority.ca)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as http:
            lines = []
            for port in (machine.port, machine.ws_port):
                async with http.post(f"https://localhost:{port}/replay-normalized", json=options()) as response:
                    assert response.status == 200
                    lines.append((await response.read()).splitlines())
                query = {"options": json.dumps(options())}
                async with http.ws_connect(f"wss://127.0.0.1:{port}/ws-replay-normalized", params=query) as socket:
                    lines.append([frame.data.encode() async for frame in socket])
                    assert socket.close_code == 1000
            assert len(lines[0]) > 1000
            assert lines[0] == lines[1] == lines[2] == lines[3]
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await http.get(f"https://localhost:{machine.port}/health-check")
            with pytest.raises(aiohttp.ClientError):
                await http.get(f"http://localhost:{machine.port}/health-check")
    finally:
        await machine.stop()


async def test_who_never_shakes_hands_is_sent_away_and_takes_no_place(cache_dir: Path, authority: Authority) -> None:
    issued = authority.issue("server")
    machine = TardisMachine(
        cache_dir=cache_dir, workers=0, tls_cert=issued.cert, tls_key=issued.key, request_timeout=5.0, max_connections=2
    )
    await machine.start(port=0)
    trusting = ssl.create_default_context(cafile=authority.ca)
    try:
        async with connected(machine.port) as silent, connected(machine.port) as plain:
            await plain.send(http_get("/health-check")[:5])
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as http,
                http.get(f"https://localhost:{machine.port}/health-check") as response,
            ):
                assert response.status == 200
            for raw in (silent, plain):
                assert (await raw.receive_all(20))[1]
    finally:
        await machine.stop()


def encrypted_key(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    (folder / "encrypted.key").write_bytes(key)
    return folder / "encrypted.key"


async def test_files_that_are_wrong_are_named_in_one_sentence(authority: Authority, tmp_path: Path) -> None:
    issued, other = authority.issue("server"), authority.issue("other")
    (tmp_path / "text").write_text("no certificate")
    for cert, key, problem in (
        (tmp_path / "nowhere", issued.key, f"--tls-cert: {tmp_path}/nowhere can't be read: No such file or directory"),
        (issued.cert, tmp_path / "nowhere", f"--tls-key: {tmp_path}/nowhere can't be read: No such file or directory"),
        (tmp_path, issued.key, f"--tls-cert: {tmp_path} can't be read: Is a directory"),
        (tmp_path / "text", issued.key, f"--tls-cert: {tmp_path}/text and {issued.key} are no certificate and key in PEM"),
        (issued.cert, tmp_path / "text", f"--tls-cert: {issued.cert} and {tmp_path}/text are no certificate and key in PEM"),
        (issued.cert, other.key, f"--tls-key: {other.key} is not the key of the certificate in {issued.cert}"),
        (
            issued.cert,
            encrypted_key(tmp_path),
            f"--tls-key: the key in {tmp_path}/encrypted.key has a password; give one without",
        ),
        (None, issued.key, "--tls-key needs --tls-cert: give the certificate of this key too"),
        (issued.cert, None, f"--tls-cert: {issued.cert} is no certificate with its key in PEM; give the key with --tls-key"),
    ):
        given = {name: path for name, path in (("tls_cert", cert), ("tls_key", key)) if path is not None}
        machine = TardisMachine(cache_dir=tmp_path, workers=0, **given)
        with pytest.raises(SettingsError) as caught:
            await machine.start(port=0)
        assert caught.value.problems[0].startswith(problem)
        assert len(caught.value.problems) == 1
