"""A program: prints, as JSON, the files that executors import the package and what is compiled of it from.

python -m tests.spark.where_executors_import {"master": …, "remote": …, "conf": {…}}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tardis_machine.lakehouse.session import start_session

NAMES = ("tardis_machine", "tardis_machine.lakehouse.envelope_compiled", "tardis_machine.exchanges.bitmex")


def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os
    from importlib import import_module

    # Also where everything else runs as Python, to see which lines are run.
    os.environ["TARDIS_MACHINE_COMPILED"] = "1"
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"file": [import_module(name).__file__ for name in NAMES]})


if __name__ == "__main__":
    spark = start_session(**json.loads(sys.argv[1]))
    print(json.dumps([row["file"] for row in spark.range(1).mapInArrow(find, "file STRING").collect()]))
    spark.stop()
