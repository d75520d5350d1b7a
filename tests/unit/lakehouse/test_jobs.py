"""What a lake job can't do is said before Spark is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tardis_machine.errors import LakeError, OptionsError, TardisMachineError
from tardis_machine.lakehouse import backfill, jobs
from tardis_machine.lakehouse.ingest import Ingest
from tardis_machine.lakehouse.tables import Lake


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(jobs, "start_session", start)


def settings(tmp_path: Path, **changes: Any) -> Any:
    asked = {"exchange": "bitmex", "symbols": ["XBTUSD"], "from_": "2020-02-01", "to": "2020-02-02", "data_types": ["trade"]}
    lake = {"lake": str(tmp_path / "lake"), "until": "gold", "gold": ("bars_1m",), "file_dir": tmp_path}
    return SimpleNamespace(**{**asked, **lake, **changes})


@pytest.mark.parametrize("command", ["ingest", "backfill"])
@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"lake": "{}/file/lake"}, LakeError, r"--lake: no lake can be made in .*/file/lake: Not a directory"),
        ({"gold": ("bars_1m", "bricks")}, OptionsError, r"--gold: there is no product 'bricks', only such as bars_1m, .*gaps"),
        ({"gold": ("bars_1x",)}, OptionsError, r"--gold: got the interval '1x', takes such as"),
    ],
)
def test_it_names_the_flag(
    tmp_path: Path, command: str, changes: dict[str, Any], error: type[TardisMachineError], reason: str
) -> None:
    (tmp_path / "file").touch()
    changed = {name: value.format(tmp_path) if isinstance(value, str) else value for name, value in changes.items()}
    given = settings(tmp_path, **changed)
    with pytest.raises(error, match=reason):
        jobs.ingest(SimpleNamespace(**{**vars(given), "from_": "files"})) if command == "ingest" else backfill.run(given)


def test_products_matter_only_where_gold_is_filled(tmp_path: Path) -> None:
    assert jobs.open_lake(settings(tmp_path, until="silver", gold=("bricks",))) == Lake.at(tmp_path / "lake")
    with pytest.raises(OptionsError, match="--gold: there is no product 'bricks'"):
        Ingest(None, Lake.at(tmp_path), "files", None, until="gold", gold=("bricks",))  # type: ignore[arg-type]
