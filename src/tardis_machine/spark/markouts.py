"""Markouts: what each trade was worth to its taker some time later, or how the market had moved before it.

Invariant: a row for each trade and horizon; what is not known is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ..errors import OptionsError
from .asof import Matching, check_new, join_at, length_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["markouts"]


def markouts(
    trades: DataFrame,
    tops: DataFrame,
    horizons: Sequence[str] = ("1s", "10s", "1m"),
    *,
    reference: Literal["price", "mid"] = "price",
    mid: str = "mid",
    on: str = "local_ts",
    right_on: str | None = None,
    by: Sequence[str] | Mapping[str, str] = ("exchange", "symbol"),
    max_age: str = "1m",
    at_same_instant: bool = False,
    order: Sequence[str] = (),
    bucket: str = "5m",
    watermark: str = "10s",
) -> DataFrame:
    """The rows of `trades` for each of `horizons`, with `horizon`, `mid` (the last one known then) and `markout`.

    `markout` is what the taker gained by then: mid - reference for a buyer, reference - mid for a seller, null where the side is not
    known. The reference is the trade's `price`; with `reference="mid"` the mid known at the trade, which is what to take where `by` maps
    to another symbol. A negative horizon tells of the time before the trade. What the other arguments mean says `asof_join`; `tops` have
    the column `mid`, as gold.top_of_book has, or one by another name or expression.

    markouts(trades, tops, horizons=("-1s", "1s", "5m"))
    """
    from pyspark.sql import functions as F  # noqa: N812

    if reference not in ("price", "mid"):
        raise OptionsError(f"reference: expected price or mid, got {reference!r}", "reference")
    if not horizons:
        raise OptionsError("horizons: expected at least one length of time, got none", "horizons")
    check_new("trades", trades, "horizon", "mid", "markout")
    matching = Matching.of(
        on=on,
        right_on=right_on,
        by=by,
        max_age=max_age,
        at_same_instant=at_same_instant,
        order=order,
        bucket=bucket,
        watermark=watermark,
    )
    later = {horizon: length_us("horizons", horizon) for horizon in horizons}
    each = F.expr(
        f"explode(array({', '.join(f'struct({after_us}L AS us, {text!r} AS text)' for text, after_us in later.items())}))"
    )
    asked = trades.withColumn("_horizon", each)
    points = {"_then": "_horizon.us", **({"_now": "0L"} if reference == "mid" else {})}
    reach = min(0, *later.values()), max(0, *later.values())
    joined = join_at(asked, tops.withColumn("_mid", F.expr(mid)), matching, points, reach)
    sign = "CASE side WHEN 'buy' THEN 1 WHEN 'sell' THEN -1 END"
    base = "_now._mid" if reference == "mid" else "price"
    return joined.selectExpr(
        *(f"`{name}`" for name in trades.columns),
        "_horizon.text AS horizon",
        "_then._mid AS mid",
        f"(_then._mid - {base}) * {sign} AS markout",
    )
