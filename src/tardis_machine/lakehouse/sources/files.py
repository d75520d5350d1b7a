"""The Parquet files of the file bus, in the order in which they were finished.

Invariant: a file is read once it has its name, which it gets by a rename, so it is whole; a record's position is its file's name
and its row. Spark keeps the list of files already read in the checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS = ()

_SCHEMA = "value BINARY, key STRING, headers MAP<STRING, STRING>, destination STRING"


def identity(settings: Any) -> str:
    """The folder."""
    return _folder(settings)


def read_stream(spark: SparkSession, settings: Any, max_batch_bytes: int) -> DataFrame:
    """The records of all files in the folder and below."""
    from pyspark.sql import functions as F  # noqa: N812

    folder = _folder(settings)
    if "://" not in folder and not Path(folder).is_dir():
        raise LakeError(f"--file-dir: there is no folder {folder}")
    options = {"pathGlobFilter": "*.parquet", "recursiveFileLookup": "true", "maxBytesPerTrigger": str(max_batch_bytes)}
    files = spark.readStream.schema(_SCHEMA).options(**options).parquet(folder)
    return files.select(
        "key",
        "value",
        "headers",
        F.concat_ws(":", "_metadata.file_name", "_metadata.row_index").alias("position"),
        F.col("_metadata.file_modification_time").alias("broker_timestamp"),
        "destination",
    )


def _folder(settings: Any) -> str:
    given = settings.file_dir
    if not given:
        raise LakeError("--file-dir: is needed to read files, and names their folder")
    text = str(given)
    return text if "://" in text else str(Path(text).expanduser().absolute())
