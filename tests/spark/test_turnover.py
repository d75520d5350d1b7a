"""Turnover and liquidations against rows computed by hand: inverse, quanto, linear with a dated change, spot, and what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse import backfill, instruments, jobs
from tardis_machine.lakehouse.gold.liquidations import LIQUIDATIONS
from tardis_machine.lakehouse.gold.turnover import TURNOVER
from tardis_machine.lakehouse.instruments import INSTRUMENTS, keep_instruments, to_rows
from tardis_machine.lakehouse.tables import Table
from tardis_machine.messages import Liquidation, Message, Trade, to_timestamp
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.settings import resolve
from tests.spark.lake_under_test import START_US, LakeUnderTest, encode

pytestmark = pytest.mark.timeout(600)

SECOND_US, MINUTE_US = 1_000_000, 60_000_000
PRODUCTS = ("turnover_1m", "liquidations_1m")
# The multiplier of the swap was 0.1 until 30 s into the second minute.
CHANGED = to_timestamp(START_US + MINUTE_US + 30 * SECOND_US, milliseconds=True)
LISTED: Sequence[Any] = [
    {
        "id": "XBTUSD",
        "type": "perpetual",
        "baseCurrency": "BTC",
        "quoteCurrency": "USD",
        "inverse": True,
        "contractMultiplier": 1,
    },
    {
        "id": "ETHUSD",
        "type": "perpetual",
        "baseCurrency": "ETH",
        "quoteCurrency": "USD",
        "settlementCurrency": "BTC",
        "quanto": True,
        "contractMultiplier": 0.000001,
    },
    # In the case of the API, not of messages.
    {
        "id": "eth-usdt-swap",
        "type": "perpetual",
        "baseCurrency": "ETH",
        "quoteCurrency": "USDT",
        "contractMultiplier": 0.01,
        "changes": [{"until": CHANGED, "contractMultiplier": 0.1}],
    },
    {"id": "XBT_USDT", "type": "spot", "baseCurrency": "BTC", "quoteCurrency": "USDT"},
    {"id": "XBTM20", "type": "future", "baseCurrency": "BTC", "quoteCurrency": "USD", "inverse": True},
    # Its premium is so much of a bitcoin.
    {
        "id": "BTC-27MAR20-9000-C",
        "type": "option",
        "baseCurrency": "BTC",
        "quoteCurrency": "USD",
        "inverse": True,
        "contractMultiplier": 1,
    },
]


def trade(symbol: str, price: float, amount: float, side: str, at_s: int) -> Message:
    at = to_timestamp(START_US + at_s * SECOND_US)
    return Trade(symbol, "bitmex", f"{symbol}-{at_s}", price, amount, side, at, at)  # type: ignore[arg-type]


def rows(lake: LakeUnderTest, table: Table, *names: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """By symbol and the minute; decimals without the zeros at their end."""
    found = DeltaTable(lake.lake.path(table)).to_pyarrow_table().to_pylist()
    start = datetime.fromtimestamp(START_US / 1e6, UTC)
    return {
        (row["symbol"], (row["start"] - start).seconds // 60): tuple(
            float(row[name]) if isinstance(row[name], Decimal) else row[name] for name in names
        )
        for row in found
    }


def test_notional_is_what_contracts_are_worth(lake: LakeUnderTest) -> None:
    at = to_timestamp(START_US + SECOND_US)
    messages = [
        trade("XBTUSD", 8000, 1000, "buy", 1),
        trade("XBTUSD", 10000, 500, "sell", 2),
        trade("ETHUSD", 180, 1000, "buy", 3),
        trade("ETH-USDT-SWAP", 200, 3, "buy", 4),
        trade("ETH-USDT-SWAP", 200, 3, "sell", 89),
        trade("ETH-USDT-SWAP", 200, 3, "sell", 90),
        trade("XBT_USDT", 9000, 0.5, "unknown", 5),
        trade("XBTM20", 9000, 100, "buy", 6),
        trade("NOT_LISTED", 1, 2, "buy", 7),
        trade("BTC-27MAR20-9000-C", 0.05, 3, "buy", 8),
        trade("BTC-27MAR20-9000-C", 0.04, 1, "sell", 9),
        # What no exchange should say must not end the job.
        trade("XBTUSD", 0, 10, "buy", 120),
        trade("XBTUSD", 8000, 9e19, "buy", 180),
        trade("XBTUSD", 8000, 8e19, "buy", 181),
        Liquidation("XBTUSD", "bitmex", "l1", 8000, 30, "sell", at, at),
        Liquidation("XBTUSD", "bitmex", "l2", 4000, 12, "sell", at, at),
    ]
    lake.bus.write("a", encode(messages))
    lake.ingest(until="gold", gold=PRODUCTS)
    unknown = rows(lake, TURNOVER, "trades", "amount", "notional", "base_amount", "notional_currency")
    assert unknown["XBTUSD", 0] == (2, 1500, None, None, None)
    assert rows(lake, LIQUIDATIONS, "liquidations", "notional") == {("XBTUSD", 0): (2, None)}

    # What is learned of instruments makes known what was there, without new trades.
    keep_instruments(lake.lake, to_rows("bitmex", LISTED), datetime(2024, 1, 1, tzinfo=UTC))
    lake.ingest(until="gold", gold=PRODUCTS)
    columns = (
        "trades",
        "amount",
        "notional",
        "buy_notional",
        "sell_notional",
        "notional_currency",
        "base_amount",
        "average_price",
    )
    assert rows(lake, TURNOVER, *columns) == {
        # 1000 $ at 8000 are 0.125 BTC, 500 $ at 10000 are 0.05.
        ("XBTUSD", 0): (2, 1500, 1500, 1000, 500, "USD", 0.175, pytest.approx(1500 / 0.175)),
        # 180 points of a millionth of a bitcoin each.
        ("ETHUSD", 0): (1, 1000, pytest.approx(0.18), pytest.approx(0.18), 0, "BTC", None, None),
        # Three contracts of a tenth of an ether; products of doubles, so not exact to the last digit.
        ("ETH-USDT-SWAP", 0): (1, 3, pytest.approx(60), pytest.approx(60), 0, "USDT", pytest.approx(0.3), pytest.approx(200)),
        # One before the change and one after it: 60 and 6.
        ("ETH-USDT-SWAP", 1): (2, 6, pytest.approx(66), 0, pytest.approx(66), "USDT", pytest.approx(0.33), pytest.approx(200)),
        ("XBT_USDT", 0): (1, 0.5, 4500, 0, 0, "USDT", 0.5, pytest.approx(9000)),
        # A contract of which nobody says what it is worth.
        ("XBTM20", 0): (1, 100, None, None, 0, "USD", None, None),
        ("NOT_LISTED", 0): (1, 2, None, None, 0, None, None, None),
        # 3 × 0.05 and 1 × 0.04 bitcoins of premium, for options of four bitcoins.
        ("BTC-27MAR20-9000-C", 0): (
            *(2, 4, pytest.approx(0.19), pytest.approx(0.15), pytest.approx(0.04)),
            *("BTC", 4, pytest.approx(0.0475)),
        ),
        # At no price contracts are worth their dollars, but no number of bitcoins.
        ("XBTUSD", 2): (1, 10, 10, 10, 0, "USD", None, None),
        # Wider than a number of the lake.
        ("XBTUSD", 3): (2, None, None, None, 0, "USD", pytest.approx(1.7e20 / 8000), None),
    }
    assert rows(lake, LIQUIDATIONS, "amount", "notional", "notional_currency") == {("XBTUSD", 0): (42, 42, "USD")}

    # Upstream corrects itself: only the rows of that instrument are computed anew.
    corrected: Any = [{**item, "contractMultiplier": 100} if item["id"] == "XBTM20" else item for item in LISTED]
    assert keep_instruments(lake.lake, to_rows("bitmex", corrected), datetime(2024, 1, 2, tzinfo=UTC)) == 1
    assert lake.ingest(until="gold", gold=PRODUCTS) == {"gold.turnover": 1}
    assert rows(lake, TURNOVER, "notional")["XBTM20", 0] == (10_000,)


def test_only_what_is_new_or_has_changed_is_added(lake: LakeUnderTest) -> None:
    now = datetime(2024, 3, 1, tzinfo=UTC)

    def eth(**fields: Any) -> Any:
        return {"id": "ETHUSD", **fields}

    both = to_rows("bitmex", [LISTED[0], eth(contractMultiplier=1)])
    assert keep_instruments(lake.lake, both, now) == 2
    assert keep_instruments(lake.lake, both, now + timedelta(hours=1)) == 0
    changed = to_rows("bitmex", [eth(contractMultiplier=2, changes=[{"until": "2024-02-01", "contractMultiplier": 1}])])
    assert keep_instruments(lake.lake, changed, now + timedelta(days=1)) == 1
    assert keep_instruments(lake.lake, changed, now + timedelta(days=2)) == 0
    rows = DeltaTable(lake.lake.path(INSTRUMENTS)).to_pyarrow_table().to_pylist()
    assert sorted(
        (row["symbol"], row["local_ts"] - now, row["contract_multiplier"]) for row in rows if row["symbol"] == "ETHUSD"
    ) == [
        ("ETHUSD", timedelta(0), 1),
        ("ETHUSD", timedelta(days=1), 1),
        ("ETHUSD", timedelta(days=1), 2),
    ]


def test_a_backfill_asks_what_its_contracts_are_worth_and_so_does_the_command(
    lake: LakeUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for opened in ("open_session", "open_writing_session"):
        monkeypatch.setattr(jobs, opened, lambda *_: lake.spark)
    with SampleHistoryApi(Recording(SampleMarket(1, 0.05))).serve_in_thread() as api:
        place = ["--lake", lake.lake.root, "--api-url", api.url, "--cache-dir", str(tmp_path / "cache")]
        asked = ["--exchange", "bitmex", "--symbols", "XBTUSD", "--data-types", "trade"]
        span = ["--from", "2020-02-01", "--to", "2020-02-01T00:01:00Z", "--gold", "turnover_1m"]
        assert backfill.run(resolve([*place, *asked, *span], {}, command="lake backfill")) == 0
        for (_, minute), (amount, notional, currency) in rows(lake, TURNOVER, "amount", "notional", "notional_currency").items():
            assert (notional, currency) == (amount, "USD"), minute
        assert lake.count(TURNOVER)
        capsys.readouterr()
        assert instruments.run(resolve(place, {}, command="lake instruments")) == 0
        assert capsys.readouterr().out.endswith("instruments of bitmex: 0 are new or have changed\n")
        with pytest.raises(LakeError, match="the instruments of nowhere are not known: "):
            instruments.run(resolve([*place, "--exchanges", "nowhere"], {}, command="lake instruments"))
