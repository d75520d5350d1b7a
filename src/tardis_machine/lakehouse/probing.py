"""Whether executors see the folder that the driver sees.

A folder of the same name on a disk of each machine's own looks like a lake until files are missed: executors write, and the driver finds
nothing. So each executor leaves a file in the lake and looks for the driver's, before anything is taken in.

Invariant: nothing of it stays in the lake.
"""

from __future__ import annotations

import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import LakeError
from .lake import Lake
from .tasks import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_shared"]

_TASKS_PER_CORE = 4
"""So that every executor gets one, whichever is quicker."""


def check_shared(spark: SparkSession, lake: Lake) -> None:
    """Raises LakeError where an executor does not see what the driver writes, or the driver not what an executor writes."""
    root = lake.storage.local_folder
    if root is None:
        return
    folder = root / "_probe" / uuid.uuid4().hex
    folder.mkdir(parents=True)
    try:
        (folder / "driver").touch()
        count = cores(spark) * _TASKS_PER_CORE
        answers = spark.range(0, count, 1, count).mapInArrow(partial(_probe, str(folder)), "host STRING, name STRING").collect()
        there = {file.name for file in folder.iterdir()}
        apart = sorted({row["host"] for row in answers if row["name"] not in there})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if apart:
        raise LakeError(
            f"{root} is not the same folder on {', '.join(apart)} as on {socket.gethostname()}; mount one folder on all machines of the "
            "cluster, or keep the lake in an object store (--lake s3://BUCKET/PATH)"
        )


def _probe(folder: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What one task does: leaves a file, where it finds the driver's."""
    for batch in batches:
        names = [f"task-{number}" for number in batch.column(0).to_pylist()]
        if (Path(folder) / "driver").exists():
            for name in names:
                (Path(folder) / name).touch()
        yield pa.RecordBatch.from_pydict({"host": [socket.gethostname()] * len(names), "name": names})
