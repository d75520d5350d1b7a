"""A client in a process of its own that takes lines at a steady pace, as one that works with them does, and sees when it has to wait.

    python -m benchmarks.paced PORT LINES_A_SECOND, and the request on standard input

Invariant: a line is taken when it is there, and not before its turn; what the client itself oversleeps it makes up for, what it had
to wait for it does not. An answer that does not end as a complete one does is an error.
"""

from __future__ import annotations

import json
import socket
import sys
import time

from benchmarks.drain import HTTP_END

__all__ = ["read_paced"]

# About twenty lines: small enough to see where one has to wait, large enough not to measure system calls.
READ_BYTES = 4096


def read_paced(port: int, request: bytes, lines_a_second: float) -> dict[str, float]:
    """How fast it went, and how far lines lay apart."""
    turn_s = 1 / lines_a_second
    # Of the lines that were not there in their turn, how long they were waited for; all others lie a turn apart.
    late_gaps_s: list[float] = []
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1) or sys.exit("the server hung up")
        if not head.startswith(b"HTTP/1.1 200"):
            sys.exit(f"the server answered {head.decode()}")
        lines, tail = 0, b""
        data = client.recv(READ_BYTES)
        began = due = time.perf_counter()
        while data:
            count = data.count(b"\n") - data.count(b"\r\n")  # those are of the transfer
            lines += max(count, 0)
            due += max(count, 0) * turn_s
            if (ahead_s := due - time.perf_counter()) > 0.001:
                time.sleep(ahead_s)
            tail = (tail + data)[-len(HTTP_END) :]
            if tail == HTTP_END:
                break
            try:
                data = client.recv(READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                asked_at = time.perf_counter()
                data = client.recv(READ_BYTES)
                # Early or late, it was ready for the line from here on.
                late_s = time.perf_counter() - max(asked_at, due)
                if late_s > 0:
                    late_gaps_s.append(turn_s + late_s)
                    due += late_s
    if tail != HTTP_END:
        sys.exit("the answer was cut")
    late_gaps_s.sort(reverse=True)

    def percentile_s(share: float) -> float:
        place = int(lines * (1 - share))
        return late_gaps_s[place] if place < len(late_gaps_s) else turn_s

    return {
        "lines": lines,
        "lines_a_second": lines / (time.perf_counter() - began),
        "p99_s": percentile_s(0.99),
        "p999_s": percentile_s(0.999),
        "longest_s": late_gaps_s[0] if late_gaps_s else turn_s,
    }


if __name__ == "__main__":
    print(json.dumps(read_paced(int(sys.argv[1]), sys.stdin.buffer.read(), float(sys.argv[2]))))
