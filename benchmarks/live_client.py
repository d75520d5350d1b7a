"""A client of live data in a process of its own: counts what it gets, and how old each trade is when it comes.

    python -m benchmarks.live_client URL [SUBSCRIPTION]     prints {"messages", "seconds", "ages_ms": [p50, p99, max]}

Invariant: it reads until the last trade, and takes a trade's age when its bytes arrive, before it looks at the rest of them.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from urllib.parse import urlsplit

from benchmarks.drain import to_masked_frame, ws_request
from benchmarks.live_exchange import LAST

_ID = re.compile(rb'"(?:id|trdMatchID)":"(\d{19})"')
_COUNTED = re.compile(rb'"(?:type|table)":"')
BUFFER_BYTES = 1 << 20


def read(url: str, subscription: str = "") -> dict[str, object]:
    """What came, until the last trade."""
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    ages: list[int] = []
    messages, tail, last, is_last = 0, b"", LAST.encode(), False
    began_s: float | None = None
    with socket.create_connection((parts.hostname or "", parts.port or 80)) as client:
        client.sendall(ws_request(target).encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1) or sys.exit("the server hung up")
        if subscription:
            client.sendall(to_masked_frame(subscription.encode()))
        while not is_last:
            data = client.recv(BUFFER_BYTES)
            now_ns = time.time_ns()
            if not data:
                sys.exit("the answer was cut")
            began_s = began_s or time.perf_counter()
            # What is cut at the end is seen whole with the next bytes.
            data = tail + data
            is_last = last in data
            cut = len(data) if is_last else max(data.rfind(b'{"t'), 0)
            whole, tail = data[:cut], data[cut:]
            messages += len(_COUNTED.findall(whole))
            ages += [now_ns - int(sent) for sent in _ID.findall(whole)]
        ended_s = time.perf_counter()
    ages.sort()
    points = [ages[int(len(ages) * part)] / 1e6 for part in (0.5, 0.99)] + [ages[-1] / 1e6] if ages else []
    return {"messages": messages, "seconds": ended_s - (began_s or ended_s), "ages_ms": points}


if __name__ == "__main__":
    print(json.dumps(read(*sys.argv[1:])))
