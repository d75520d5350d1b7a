"""A client in a process of its own that reads an answer and throws it away, as cheaply as Python can.

    python -m benchmarks.drain PORT, and a JSON object on standard input: {"request", "subscription", "count"}

Invariant: an answer that does not end as a complete one does is an error, not a fast run.
"""

from __future__ import annotations

import base64
import json
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

BUFFER_BYTES = 1 << 20
WS_END = b"\x03\xe8WS replay finished"
HTTP_END = b"\r\n0\r\n\r\n"


def drain(port: int, asked: dict[str, Any]) -> dict[str, float]:
    """Sends a request, and times its answer from the first byte sent and from the first one received."""
    request: str = asked["request"]
    is_ws = "Upgrade: websocket" in request
    end = WS_END if is_ws else HTTP_END
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    kept: list[bytes] = []
    with socket.create_connection(("127.0.0.1", port)) as client:
        began = time.perf_counter()
        client.sendall(request.encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1 << 16) or sys.exit("the server hung up")
        head, _, first = head.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101" if is_ws else b"HTTP/1.1 200"):
            sys.exit(f"the server answered {(head + first).decode()}")
        if asked.get("subscription"):
            client.sendall(to_masked_frame(asked["subscription"].encode()))
        if asked.get("count"):
            kept.append(first)
        total = len(first)
        tail = first[-len(end) :]
        first_byte: float | None = time.perf_counter() if total else None
        while tail != end:
            size = client.recv_into(view)
            if not size:
                sys.exit("the answer was cut")
            if first_byte is None:
                first_byte = time.perf_counter()
            total += size
            tail = bytes(view[size - len(end) : size]) if size >= len(end) else (tail + bytes(view[:size]))[-len(end) :]
            if asked.get("count"):
                kept.append(bytes(view[:size]))
        ended = time.perf_counter()
    messages = 0
    if kept:
        data = b"".join(kept)
        messages = sum(1 for _ in frames(data)) - 1 if is_ws else b"".join(chunks(data)).count(b"\n")
    return {"seconds": ended - began, "streaming_seconds": ended - (first_byte or began), "bytes": total, "messages": messages}


def to_masked_frame(payload: bytes) -> bytes:
    """A short text frame as a client sends it; the mask is zero."""
    return bytes([0x81, 0x80 | 126]) + len(payload).to_bytes(2, "big") + bytes(4) + payload


def frames(data: bytes) -> Iterator[bytes]:
    """The payloads of a server's frames."""
    place = 0
    while place < len(data):
        size = data[place + 1]
        place += 2
        if size >= 126:
            width = 2 if size == 126 else 8
            size = int.from_bytes(data[place : place + width], "big")
            place += width
        yield data[place : place + size]
        place += size


def chunks(data: bytes) -> Iterator[bytes]:
    """The parts of a chunked body."""
    place = 0
    while True:
        line_end = data.index(b"\r\n", place)
        size = int(data[place:line_end], 16)
        if not size:
            return
        yield data[line_end + 2 : line_end + 2 + size]
        place = line_end + 4 + size


def ws_request(target: str) -> str:
    """An offer to speak WebSocket."""
    key = base64.b64encode(b"sixteen bytes ok").decode()
    fields = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""])


def http_request(path: str, options: object) -> str:
    """A POST of options, after which the connection closes."""
    body = json.dumps(options)
    fields = ["Connection: close", f"Content-Length: {len(body)}"]
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *fields, "", body])


if __name__ == "__main__":
    print(json.dumps(drain(int(sys.argv[1]), json.load(sys.stdin))))
