"""The options of the lake commands.

Invariant: plain data; importing this loads neither Spark nor Arrow.
"""

from __future__ import annotations

from ..settings.option import Option
from ..settings.values import duration, pairs, path, size_bytes, switch, text, url

__all__ = ["INGEST_OPTIONS", "LAKE_OPTIONS", "SQL_OPTIONS"]

LAKE_OPTIONS = (
    Option(
        name="lake",
        help="Folder or URI of the lake",
        group="lake",
        parse=text("a folder or a URI"),
        metavar="PATH",
        default="lake",
    ),
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

LAYER_OPTIONS = (
    Option(
        name="until",
        help="The last layer that this job fills",
        group="lake ingest",
        choices=("bronze", "silver"),
        default="silver",
    ),
    Option(
        name="lake-batch-bytes",
        help="About how much a batch reads",
        group="lake ingest",
        parse=size_bytes(1),
        default=256 * 1024**2,
    ),
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
    *LAYER_OPTIONS,
    Option(
        name="landing-dir",
        help="Folder where messages of SQS wait to be taken in",
        group="lake ingest",
        parse=path,
        default_text="{lake}/_landing",
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
