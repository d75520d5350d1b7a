"""`python -m tardis_machine.sample.live`: the simulated exchanges on their own, until a signal or the end of standard input.

The first line it prints is JSON: `{"exchange_urls": {...}, "control_url": "…"}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from contextlib import suppress

from ...errors import UsageError
from .families import DEFAULT_EXCHANGES
from .server import SimulatedExchanges


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tardis_machine.sample.live", description="Simulated exchanges.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="the port; 0 takes a free one (0)")
    parser.add_argument(
        "--exchanges", default=",".join(DEFAULT_EXCHANGES), help="which of them, separated by commas (all that are open)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the market (1)")
    parser.add_argument("--speed", type=float, default=1.0, help="of the market; 0: it stands until told to advance (1)")
    parser.add_argument("--activity", type=float, default=1.0, help="scales the rates of trades and book changes (1)")
    parser.add_argument("--timer-speed", type=float, default=1.0, help="of heartbeats and time-outs (1)")
    parser.add_argument("--keep-sent", type=int, default=0, help="how many sent messages to keep for /control/sent (0)")
    parser.add_argument("--until-stdin-ends", action="store_true", help="end when standard input does, as its parent may die")
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not every platform can.
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, ended.set)
    async with SimulatedExchanges(
        arguments.seed,
        arguments.exchanges.split(","),
        speed=arguments.speed or None,
        activity=arguments.activity,
        timer_speed=arguments.timer_speed,
        host=arguments.host,
        port=arguments.port,
        keep_sent=arguments.keep_sent,
    ) as simulated:
        print(json.dumps({"exchange_urls": simulated.urls, "control_url": simulated.control_url}), flush=True)
        if arguments.until_stdin_ends:
            await loop.run_in_executor(None, sys.stdin.read)
        else:
            await ended.wait()


def main() -> int:
    """Serves; the exit code is 2 for wrong arguments and 1 for a port that is taken."""
    # The next minute is made in a thread: it must not hold the loop up for long.
    sys.setswitchinterval(0.0005)
    try:
        asyncio.run(_serve(_parse_arguments()))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"the simulated exchanges can't listen: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
