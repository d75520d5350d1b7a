"""The demo as a user runs it: the whole walk, with counts that agree at every stage."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(400)
def test_the_demo_walks_through_every_room_and_its_counts_agree(tmp_path: Path) -> None:
    folder = tmp_path / "a demo"
    for left_over in ("events/part-old.parquet", "lake/silver/trades/_delta_log/00000000000000000000.json", "spool/file/lock"):
        (folder / left_over).parent.mkdir(parents=True)
        (folder / left_over).write_text("of an earlier run that was killed")
    command = [sys.executable, "-m", "tardis_machine", "demo", "--demo-dir", str(folder), "--demo-minutes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"│ (.+?) +│ +([\d,]+) │ +([\d,]+) │ +([\d,]+) │ (.) │", done.stdout)
    assert [stage for stage, *_ in rows] == ["received by the client", "in the files of the bus", "bronze.events", "silver"]
    assert len({tuple(counts) for _, *counts, _mark in rows}) == 1
    assert int(rows[0][1].replace(",", "")) > 500
    assert (folder / "trades.png").stat().st_size > 10_000
