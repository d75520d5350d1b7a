"""Tables on disk: made when missing, grown when the declaration did, refused when they do not agree with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse import tables
from tardis_machine.lakehouse.lake import check_table, prepare_table
from tardis_machine.lakehouse.tables import QUARANTINE
from tests.spark.lake_under_test import LakeUnderTest

pytestmark = pytest.mark.timeout(300)


def test_a_table_grows_by_new_columns_and_refuses_any_other_change(lake: LakeUnderTest) -> None:
    spark, place = lake.spark, lake.lake
    first = replace(QUARANTINE, columns={"stage": "STRING", "n": "INT"})
    assert not check_table(place, first)
    prepare_table(place, first)
    assert check_table(place, first)
    spark.createDataFrame([("a", 1)], "stage STRING, n INT").write.format("delta").mode("append").save(place.path(first))

    wider = replace(first, columns={**first.columns, "more": "STRING"})
    prepare_table(place, wider)
    assert lake.rows(wider) == [("a", 1, None)]

    with pytest.raises(LakeError, match=r"bronze.quarantine in .* has columns that this release does not know: more"):
        prepare_table(place, first)
    with pytest.raises(LakeError, match=r"the column n of type int, not bigint"):
        prepare_table(place, replace(wider, columns={**wider.columns, "n": "BIGINT"}))


def test_a_table_of_a_later_version_or_of_another_program_is_refused(lake: LakeUnderTest) -> None:
    spark, place = lake.spark, lake.lake
    prepare_table(place, replace(QUARANTINE, version=2))
    with pytest.raises(LakeError, match=r"is of version 2, and this release knows versions up to 1; use a later release"):
        lake.ingest()
    spark.sql(f"ALTER TABLE delta.`{place.path(QUARANTINE)}` UNSET TBLPROPERTIES ('{tables.VERSION_PROPERTY}')")
    with pytest.raises(LakeError, match=r"holds a table of another program"):
        check_table(place, QUARANTINE)
