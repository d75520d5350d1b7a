"""The faulty network does to connections what its methods say."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.servers.process import free_port
from tests.servers.proxy import FaultProxy

Network = Callable[[int], FaultProxy]


class EchoServer:
    """Sends back what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts, which else keeps it open
        self._listener.close()

    def wait_until_heard(self, expected: bytes) -> None:
        deadline = time.monotonic() + 5
        while self.heard != expected:
            assert time.monotonic() < deadline, self.heard
            time.sleep(0.005)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.heard += data
                    connection.sendall(data)
            except ConnectionError:
                return


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def proxy(faulty_network: Network, echo: EchoServer) -> FaultProxy:
    return faulty_network(echo.port)


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def exchange(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    answer = b""
    while len(answer) < len(data) and (more := connection.recv(65536)):
        answer += more
    return answer


def assert_silent(connection: socket.socket, seconds: float = 0.2) -> None:
    connection.settimeout(seconds)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(5)


def test_without_a_fault_everything_passes(proxy: FaultProxy) -> None:
    data = bytes(range(256)) * 4096
    with connect(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        answer = b""
        while len(answer) < len(data):
            answer += client.recv(65536)
        sender.join()
        assert answer == data
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_delay(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        assert exchange(client, b"quick") == b"quick"
        proxy.delay(0.1)
        began = time.monotonic()
        assert exchange(client, b"slow") == b"slow"
        assert time.monotonic() - began >= 0.2
        proxy.heal()
        began = time.monotonic()
        assert exchange(client, b"quick") == b"quick"
        assert time.monotonic() - began < 0.2


def test_hold_loses_nothing(proxy: FaultProxy, echo: EchoServer) -> None:
    with connect(proxy) as client:
        proxy.hold()
        client.sendall(b"one")
        assert_silent(client)
        assert echo.heard == b""
        proxy.heal()
        assert client.recv(16) == b"one"


def test_hold_still_accepts(proxy: FaultProxy) -> None:
    proxy.hold()
    with connect(proxy) as client:
        client.sendall(b"one")
        assert_silent(client)


def test_half_open_requests_arrive_and_replies_do_not(proxy: FaultProxy, echo: EchoServer) -> None:
    with connect(proxy) as client:
        proxy.hold_replies()
        client.sendall(b"one")
        echo.wait_until_heard(b"one")
        assert_silent(client)
        proxy.heal()
        assert client.recv(16) == b"one"


def test_half_open_then_reset_loses_the_reply(proxy: FaultProxy, echo: EchoServer) -> None:
    with connect(proxy) as client:
        proxy.hold_replies()
        client.sendall(b"one")
        echo.wait_until_heard(b"one")
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(16)


def test_cut_ends_in_order_and_the_next_connection_works(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        assert exchange(client, b"one") == b"one"
        proxy.cut()
        assert client.recv(16) == b""
    with connect(proxy) as client:
        assert exchange(client, b"two") == b"two"
    assert proxy.accepted == 2


def test_reset_breaks_and_the_next_connection_works(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        assert exchange(client, b"one") == b"one"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(16)
    with connect(proxy) as client:
        assert exchange(client, b"two") == b"two"


def test_refuse_breaks_and_takes_no_new_ones_until_healed(proxy: FaultProxy) -> None:
    port = proxy.port
    with connect(proxy) as client:
        assert exchange(client, b"one") == b"one"
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            client.recv(16)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    assert proxy.port == port
    with connect(proxy) as client:
        assert exchange(client, b"two") == b"two"


def test_a_target_that_is_down_breaks_the_connection(faulty_network: Network) -> None:
    # It may break as soon as it is made, or when it is used.
    with pytest.raises(ConnectionResetError), connect(faulty_network(free_port())) as client:
        client.recv(16)
