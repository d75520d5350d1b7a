"""The options of the lake commands.

Invariant: none of them needs Spark or Arrow to be read or shown.
"""

from __future__ import annotations

from ..defaults import state_dir
from ..option import Option
from ..values import duration, integer, items, pairs, path, size_bytes, switch, text, url
from .request import data_types, exchange, span, symbols

__all__ = [
    "BACKFILL_OPTIONS",
    "BATCH_BYTES",
    "CERTIFICATE_OPTIONS",
    "DEFAULT_GOLD",
    "INGEST_OPTIONS",
    "INSTRUMENTS_OPTIONS",
    "LAKE_OPTION",
    "LAKE_OPTIONS",
    "OPTIMIZE_OPTIONS",
    "REGISTER_OPTIONS",
    "SQL_OPTIONS",
    "VERIFY_OPTIONS",
]

LAKE_OPTION = Option(
    name="lake-option",
    help="How the object store of the lake is reached: endpoint, region, access_key_id, secret_access_key, …",
    group="lake",
    parse=pairs(separator="="),
    metavar="NAME=VALUE,…",
    default={},
    repeated=True,
)

LAKE_OPTIONS = (
    Option(
        name="lake",
        help="Folder or URI of the lake",
        group="lake",
        parse=text("a folder or a URI"),
        metavar="PATH",
        default="lake",
    ),
    LAKE_OPTION,
    Option(
        name="master",
        help="Spark master: this machine, or a cluster (spark://…, yarn, k8s://…)",
        group="lake",
        parse=text(),
        metavar="MASTER",
        default="local[*]",
    ),
    Option(
        name="remote", help="Spark Connect server to use instead of a master", group="lake", parse=url("sc"), metavar="sc://HOST"
    ),
    Option(
        name="spark-jars",
        help="Folder with the jars of Delta Lake; by default where 'make setup' puts them",
        group="lake",
        parse=path,
        metavar="DIR",
    ),
    Option(
        name="spark-conf",
        help="Spark properties, which win over the defaults",
        group="lake",
        parse=pairs(separator="="),
        metavar="NAME=VALUE,…",
        default={},
        repeated=True,
    ),
)

DEFAULT_GOLD = ("bars_1m", "top_of_book", "gaps")

BATCH_BYTES = Option(
    name="lake-batch-bytes",
    help="About how much a batch reads",
    group="lake ingest",
    parse=size_bytes(1),
    default=256 * 1024**2,
)

LAYER_OPTIONS = (
    Option(
        name="metrics-port",
        help="Port where the job answers /metrics; without it, nobody is answered",
        group="lake ingest",
        parse=integer(1, 65535, "PORT"),
    ),
    Option(
        name="metrics-host",
        help="Address for that port",
        group="lake ingest",
        parse=text(),
        metavar="HOST",
        default="127.0.0.1",
    ),
    Option(
        name="until",
        help="The last layer that this job fills",
        group="lake ingest",
        choices=("bronze", "silver", "gold"),
        default="gold",
    ),
    Option(
        name="gold",
        help="Products that are kept in gold: bars_1m, book_state_10_1s, funding_1h, …",
        group="lake ingest",
        parse=items(str, takes="names of products with commas between them"),
        default=DEFAULT_GOLD,
    ),
    BATCH_BYTES,
)

INGEST_OPTIONS = (
    Option(
        name="from",
        help="Bus to read, at the address and destination that its own options give",
        group="lake ingest",
        choices=("files", "kafka", "redis", "nats", "kinesis", "sqs"),
        required=True,
    ),
    Option(name="once", help="Takes in what is there, then ends", group="lake ingest", parse=switch, default=False),
    Option(name="trigger", help="Pause between batches", group="lake ingest", parse=duration(0.1), default=5.0),
    Option(
        name="auto-optimize",
        help="Joins small files between batches; old ones go after a week",
        group="lake ingest",
        parse=switch,
        default_text="true with a trigger, false with --once",
    ),
    *LAYER_OPTIONS,
    Option(
        name="landing-dir",
        help="Folder where messages of SQS wait to be taken in",
        group="lake ingest",
        parse=path,
        default_text="{lake}/_landing",
    ),
    Option(
        name="receivers",
        help="Tasks on executors that receive messages of SQS, each on a core of its own; with none the command itself receives",
        group="lake ingest",
        parse=integer(0, 10_000),
        metavar="N",
        default=0,
    ),
)

SQL_OPTIONS = (
    Option(
        name="query",
        help="What to ask",
        group="lake sql",
        parse=text("a query", lines=True),
        metavar="QUERY",
        positional=True,
        required=True,
    ),
    Option(
        name="format",
        help="How to write the answer",
        group="lake sql",
        choices=("table", "csv", "json", "parquet"),
        default="table",
    ),
    Option(name="output", help="File to write it to, instead of standard output", group="lake sql", parse=path, metavar="FILE"),
    Option(
        name="chart",
        help="PNG to draw: the numeric columns over the first column of times",
        group="lake sql",
        parse=path,
        metavar="FILE.png",
    ),
)

BACKFILL_OPTIONS = (
    exchange("lake backfill", "Exchange to fetch", required=True),
    symbols("lake backfill", "Its symbols", required=True),
    *span("lake backfill", required=True),
    data_types("lake backfill", required=True),
    *LAYER_OPTIONS,
)

INSTRUMENTS_OPTIONS = (
    Option(
        name="exchanges",
        help="Exchanges whose instruments are asked for; by default those that the lake has events of",
        group="lake instruments",
        parse=items(str, takes="names of exchanges with commas between them"),
        default=(),
        default_text="those of the lake",
    ),
)

CERTIFICATE_OPTIONS = (
    exchange("lake certificate", "Exchange of what is certified"),
    Option(name="symbol", help="Its symbol", group="lake certificate", parse=text(), metavar="SYMBOL"),
    Option(name="date", help="The day, in UTC", group="lake certificate", parse=text(), metavar="YYYY-MM-DD"),
    Option(
        name="check",
        help="Certificate to compare the lake with instead; exit code 1 when the lake has something else now",
        group="lake certificate",
        parse=path,
        metavar="FILE",
    ),
    Option(
        name="output",
        help="File to write the certificate to, instead of standard output",
        group="lake certificate",
        parse=path,
        metavar="FILE",
    ),
)

OPTIMIZE_OPTIONS = (
    Option(
        name="retain",
        help=(
            "Files that no table needs any more are removed when they are older; less than a week may break readers and streams, "
            "less than an hour is refused"
        ),
        group="lake optimize",
        parse=duration(),
        default=7 * 86_400.0,
    ),
    Option(
        name="z-order",
        help="Sorts files by time as well; rewrites whole partitions, for those that rows no longer come to",
        group="lake optimize",
        parse=switch,
        default=False,
    ),
)

REGISTER_OPTIONS = (
    Option(
        name="catalog",
        help="Catalog of Spark's: spark_catalog is Hive's, another is declared with --spark-conf spark.sql.catalog.NAME=CLASS",
        group="lake register",
        parse=text(),
        metavar="NAME",
        default="spark_catalog",
    ),
    Option(
        name="schema-prefix",
        help="What the names of schemas begin with, before bronze, silver and gold",
        group="lake register",
        metavar="TEXT",
        default="",
    ),
    Option(
        name="print-only",
        help="Prints the statements, and does nothing",
        group="lake register",
        parse=switch,
        default=False,
    ),
)

VERIFY_OPTIONS = (
    Option(
        name="format",
        help="How to write what was found",
        group="lake verify",
        choices=("table", "json"),
        default="table",
    ),
    Option(
        name="repair",
        help="Brings what is missing, from dead letters, recordings or the history API, and looks again",
        group="lake verify",
        parse=switch,
        default=False,
    ),
    Option(
        name="dead-letters",
        help="Folder below which dead letters of any bus are looked for",
        group="lake verify",
        parse=path,
        metavar="DIR",
        default=lambda environ: state_dir(environ) / "dead-letter",
        default_text="{state}/dead-letter",
    ),
    *LAYER_OPTIONS,
)
