from __future__ import annotations

import gzip
from pathlib import Path

import zstandard

from tardis_machine.filters import Filter
from tardis_machine.sample.cache_dir import fill_cache
from tardis_machine.sample.market import MINUTE_US, SampleMarket
from tardis_machine.sample.recording import Recording

FROM_US = 1_704_151_140_000_000  # 2024-01-01T23:19
RECORDING = Recording(SampleMarket(1, activity=0.2))


def test_minutes_lie_where_every_client_looks_for_them(tmp_path: Path) -> None:
    filters = [Filter("trade", ["XBTUSD"]), Filter("orderBookL2", ["XBTUSD", "ETHUSD"])]
    paths = fill_cache(tmp_path, "bitmex", filters, FROM_US + 40 * MINUTE_US, FROM_US + 43 * MINUTE_US, recording=RECORDING)
    # SHA-256 of [{"channel":"orderBookL2","symbols":["ETHUSD","XBTUSD"]},{"channel":"trade","symbols":["XBTUSD"]}]
    folder = tmp_path / "feeds" / "bitmex" / "4f910da87fa8c8e0af47167f67f6e05f056ad4a2da6231a544bedf5cdf0eff4c"
    assert paths == [
        folder / name for name in ("2024/01/01/23/59.json.gz", "2024/01/02/00/00.json.gz", "2024/01/02/00/01.json.gz")
    ]
    for place, path in enumerate(paths):
        assert gzip.decompress(path.read_bytes()) == RECORDING.minute("bitmex", FROM_US // MINUTE_US + 40 + place, filters)
    assert sorted(each for each in tmp_path.rglob("*") if each.is_file()) == sorted(paths)


def test_zstd_and_no_filters(tmp_path: Path) -> None:
    (path,) = fill_cache(tmp_path, "coinbase", [], FROM_US, FROM_US + MINUTE_US, "zstd", recording=RECORDING)
    empty = "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"
    assert path == tmp_path / "feeds" / "coinbase" / empty / "2024" / "01" / "01" / "23" / "19.json.zst"
    assert zstandard.decompress(path.read_bytes()) == RECORDING.minute("coinbase", FROM_US // MINUTE_US)
