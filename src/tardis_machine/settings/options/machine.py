"""The options of the machine itself: where history and live data come from, and how the server and its processes run.

Invariant: an option that several commands take is declared once, in a tuple that all of them list.
"""

from __future__ import annotations

from ..defaults import cache_dir, core_count
from ..option import Option
from ..values import duration, host_names, integer, items, origins, pairs, path, switch, text, url

__all__ = [
    "ENGINE_OPTIONS",
    "HISTORY_API_OPTIONS",
    "HISTORY_OPTIONS",
    "LIVE_OPTIONS",
    "MAX_LIVE_REQUESTS",
    "RECORD_DIR",
    "SERVER_OPTIONS",
    "SHUTDOWN_TIMEOUT",
]

HISTORY_API_OPTIONS = (
    Option(name="api-key", help="API key of the history API", group="history", parse=text(), metavar="KEY", secret=True),
    Option(
        name="api-url",
        help="Base URL of the history API",
        group="history",
        parse=url("http", "https"),
        default="https://api.tardis.dev/v1",
    ),
    Option(
        name="cache-dir",
        help="Folder where fetched history is kept",
        group="history",
        parse=path,
        default=cache_dir,
        default_text="{cache}/tardis-machine",
    ),
)

RECORD_DIR = Option(
    name="record-dir",
    help="Folder where the raw messages of live feeds are kept; replays find in it what was recorded",
    group="history",
    parse=path,
)

HISTORY_OPTIONS = (
    *HISTORY_API_OPTIONS,
    RECORD_DIR,
    Option(name="clear-cache", help="Empty the cache at start", group="history", parse=switch, default=False),
)

SERVER_OPTIONS = (
    Option(name="host", help="Address to listen on", group="server", parse=text(), metavar="HOST", default="127.0.0.1"),
    Option(
        name="port",
        help="Port for HTTP and WebSocket; the next port is used for WebSocket too",
        group="server",
        parse=integer(0, 65534, "PORT"),
        default=8000,
        variables=("PORT",),
    ),
    Option(
        name="auth-token",
        help=(
            "Token that clients must send (Authorization: Bearer …), or several, one of which they must send; "
            "without it, anyone who reaches the port is served"
        ),
        group="server",
        parse=items(text(), takes="a non-empty line of text, or several with commas between them", metavar="TOKEN,…"),
        secret=True,
    ),
    Option(
        name="max-connections",
        help="How many connections of clients may be open; a new one then takes the place of one that waits for nothing",
        group="server",
        parse=integer(1, 1_000_000),
        default=2_000,
    ),
    Option(
        name="request-timeout",
        help="How long a client may take to send its first request, and the body of any",
        group="server",
        parse=duration(0.1),
        default=30.0,
    ),
    Option(
        name="idle-timeout",
        help="How long a connection may stay open between two requests",
        group="server",
        parse=duration(0.1),
        default=75.0,
    ),
    Option(
        name="allowed-origins",
        help="Web pages that may use this server, beside those of this machine: https://app.example.com, or * for all",
        group="server",
        parse=origins,
        default_text="*; none where a bus is on, an API key is set or live data is recorded",
    ),
    Option(
        name="allowed-hosts",
        help="Names that this server answers to, beside those of this machine and addresses; * for all",
        group="server",
        parse=host_names,
        default_text="none; * where --host is no loopback address",
    ),
    Option(
        name="tls-cert",
        help="Certificate of this server in PEM, with those that vouch for it: HTTPS and WSS on both ports",
        group="server",
        parse=path,
        metavar="FILE",
    ),
    Option(
        name="tls-key",
        help="Key of the certificate in PEM, without a password; by default in the same file",
        group="server",
        parse=path,
        metavar="FILE",
    ),
    Option(
        name="ui",
        help="Serve the page at /: what runs, the market, a builder of requests",
        group="server",
        choices=("on", "off"),
        default="on",
    ),
    Option(
        name="ui-control",
        help="Let the page pause and step any replay that runs, not only its own",
        group="server",
        parse=switch,
        default=False,
    ),
    Option(
        name="lake-metrics",
        help="Where lake jobs run with --metrics-port, such as http://spark:9101/metrics: the page shows how far they are",
        group="server",
        parse=items(
            url("http", "https"),
            takes="URLs that start with http:// or https:// and have a host, separated by commas",
            metavar="URL,…",
        ),
    ),
    Option(
        name="cluster-mode",
        help="Ignored; accepted so that older configurations still work (see --workers)",
        group="server",
        parse=switch,
        default=False,
    ),
)

SHUTDOWN_TIMEOUT = Option(
    name="shutdown-timeout",
    help="How long to wait at the end for the buses to confirm",
    group="server",
    parse=duration(),
    default=30.0,
)

ENGINE_OPTIONS = (
    Option(
        name="workers",
        help="Number of processes that normalize; with 0 the main process does it, for debugging",
        group="server",
        parse=integer(0, 1024),
        default=core_count,
        default_text="the number of cores",
    ),
    SHUTDOWN_TIMEOUT,
)

MAX_LIVE_REQUESTS = Option(
    name="max-live-requests",
    help="How many different live requests may run at a time; each has its own process, which clients that ask for the same share",
    group="live",
    parse=integer(1, 10_000),
    default=64,
)

LIVE_OPTIONS = (
    Option(
        name="exchange-urls",
        help="Addresses to use instead of the exchanges' own: bitmex:ws://…, binance-rest:http://…",
        group="live",
        parse=pairs(
            value=url("ws", "wss", "http", "https"),
            takes="exchange:URL pairs separated by commas, with exchange-rest for a REST address",
        ),
    ),
    Option(
        name="exchange-credentials",
        help="Accounts at exchanges, for live data that needs one: COINBASE_API_KEY=…, or the environment's variables of these names",
        group="live",
        parse=pairs("="),
        secret=True,
    ),
)
