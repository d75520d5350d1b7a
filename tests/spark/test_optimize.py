"""Files that no table has: those that a job is about to add stay, those that nobody will add are removed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.lakehouse.appending import Appender
from tardis_machine.lakehouse.optimize import MIN_RETAIN_S, optimize
from tardis_machine.lakehouse.table_files import WrittenFile, write_files
from tardis_machine.lakehouse.tables import EVENTS
from tests.spark.lake_under_test import LakeUnderTest, encode, make_older, trades

pytestmark = pytest.mark.timeout(600)


def write_uncommitted(lake: LakeUnderTest) -> list[WrittenFile]:
    """What a task leaves before the driver commits it: all rows of bronze once more."""
    storage, rows = lake.lake.storage, lake.lake.read(lake.spark, EVENTS).toArrow().combine_chunks()
    return write_files(
        lambda batches: ((EVENTS, batch) for batch in batches), storage, {EVENTS.name: lake.lake.path(EVENTS)}, rows.to_batches()
    )


def test_files_of_a_batch_that_runs_are_not_removed(lake: LakeUnderTest) -> None:
    lake.bus.write("a", encode(trades(10)))
    lake.ingest(until="bronze")
    left_behind = write_uncommitted(lake)
    make_older(Path(lake.lake.root), MIN_RETAIN_S)
    under_way = write_uncommitted(lake)

    for retain_s in (0, 5.0, MIN_RETAIN_S - 1):
        with pytest.raises(OptionsError, match=rf"^--retain {retain_s:g}s is less than 3600s: .*; give 3600s or more$"):
            optimize(lake.spark, lake.lake, retain_s=retain_s)
    [*_] = optimize(lake.spark, lake.lake, retain_s=MIN_RETAIN_S)

    assert not Path(lake.lake.path(EVENTS), left_behind[0].path).exists()
    commits = Appender(lake.lake).commits
    assert commits.commit(EVENTS, under_way)
    assert lake.count(EVENTS) == 20
    assert pa.table(lake.lake.read(lake.spark, EVENTS).select("value").toArrow()).num_rows == 20
