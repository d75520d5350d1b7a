"""What a job tells while it runs: on a terminal, and in a log."""

from __future__ import annotations

import io
import re
import time

import pytest

from tardis_machine.lakehouse import progress
from tardis_machine.lakehouse.backfill_progress import BackfillProgress
from tardis_machine.lakehouse.progress import ProgressLine, StatusLine
from tardis_machine.lakehouse.streams import Counts


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def counts() -> list[Counts]:
    bronze = Counts({"bronze.events": 2000, "bronze.quarantine": 3}, newest_us=int((time.time() - 60) * 1e6), lost=4)
    silver = Counts({"silver.trades": 1500, "silver.quotes": 100})
    return [bronze, silver]


def test_a_line_tells_rows_speed_lag_and_what_is_left() -> None:
    line = ProgressLine(io.StringIO())
    said = counts()
    begins = r"bronze 2,000 · silver 1,600 · [\d,]+ rows/s · quarantined 3 · lost 4 · lag \d+\.\d s"
    assert re.fullmatch(begins, line.text(said))
    said[0].left, said[1].left = {"messages": 0, "files": 1200}, {"rows for silver": 400}
    assert re.fullmatch(rf"{begins} · left 1,200 files, 400 rows for silver", line.text(said))
    said[0].left, said[1].left = {"records": 0}, {}
    assert re.fullmatch(rf"{begins} · nothing left", line.text(said))


def test_batches_that_run_elsewhere_are_counted_there_and_what_is_left_here() -> None:
    line = ProgressLine(io.StringIO(), is_remote=True)
    assert line.text([Counts(left={"records": 7})]) == "0 s in the Spark Connect server, which alone counts rows · left 7 records"


def test_a_terminal_is_redrawn_and_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, log = Terminal(), io.StringIO()
    for out in (terminal, log):
        line = StatusLine(out)
        line.show(lambda: "one")
        monkeypatch.setattr(progress, "_LOG_EVERY_S", 0.0)
        line.show(lambda: "two")
        monkeypatch.undo()
        line.show(lambda: "three")
        line.end("four")
    assert terminal.getvalue() == "".join(f"\r\x1b[2K{text}" for text in ("one", "two", "three", "four\n"))
    assert log.getvalue() == "two\nfour\n"


def test_a_backfill_tells_what_it_fetched_before_it_is_committed() -> None:
    done = BackfillProgress(total=12, done=4, skipped=2, fetched=2, rows=1000, started=time.monotonic() - 240)
    assert re.fullmatch(
        r"backfill \[█{12}·{12}\] 6 of 12 symbol days · 1,000 rows · \d rows/s · about 6 min left · 2 were there already",
        done.text,
    )
