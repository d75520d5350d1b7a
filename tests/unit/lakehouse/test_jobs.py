"""What a lake job can't do is said before Spark is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tardis_machine.errors import LakeError, OptionsError, TardisMachineError
from tardis_machine.lakehouse import backfill, jobs
from tardis_machine.lakehouse.ingest import Ingest
from tardis_machine.lakehouse.lake import Lake
from tardis_machine.lakehouse.sources.files import FilesSource
from tardis_machine.settings import from_keywords


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(jobs, "start_session", start)


def settings(tmp_path: Path, **changes: Any) -> Any:
    asked = {"exchange": "bitmex", "symbols": ["XBTUSD"], "from_": "2020-02-01", "to": "2020-02-02", "data_types": ["trade"]}
    lake: dict[str, Any] = {"lake": str(tmp_path / "lake"), "lake_option": {}, "until": "gold", "gold": ("bars_1m",)}
    lake["for_bus"] = from_keywords({"file": {"dir": tmp_path}}, {}).for_bus
    return SimpleNamespace(**{**asked, **lake, **changes})


@pytest.mark.parametrize("command", ["ingest", "backfill"])
@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        (
            {"lake": "{}/file/lake"},
            LakeError,
            r"the lake can't be made in .*/file/lake: Not a directory; choose another place with --lake",
        ),
        (
            {"gold": ("bars_1m", "bricks")},
            OptionsError,
            r"there is no gold product 'bricks'; --gold takes names such as bars_1m, .*gaps",
        ),
        ({"gold": ("bars_1x",)}, OptionsError, r"'1x' is no interval of a gold product; --gold takes intervals such as"),
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
    with pytest.raises(OptionsError, match="there is no gold product 'bricks'"):
        Ingest(None, Lake.at(tmp_path), FilesSource(tmp_path), until="gold", gold=("bricks",))  # type: ignore[arg-type]
