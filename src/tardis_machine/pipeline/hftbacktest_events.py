"""Trades and changes of books as the events of hftbacktest: one array, ordered as the exchange made them and as they arrived.

An event that others overtook on their way is there twice, once in each order; `ev` says which of the two an entry stands for. A
snapshot clears both sides first. https://hftbacktest.readthedocs.io/en/latest/data.html

Invariant: entries of the exchange are in the order of `exch_ts`, local ones in that of `local_ts`, each event is once in each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["to_events"]

_DEPTH, _TRADE, _CLEAR, _SNAPSHOT = 1, 2, 3, 4
_SELL, _BUY, _LOCAL, _EXCHANGE = 1 << 28, 1 << 29, 1 << 30, 1 << 31
_COLUMNS = [
    ("ev", "<u8"),
    ("exch_ts", "<i8"),
    ("local_ts", "<i8"),
    ("px", "<f8"),
    ("qty", "<f8"),
    ("order_id", "<u8"),
    ("ival", "<i8"),
    ("fval", "<f8"),
]


def to_events(trades: pa.Table, levels: pa.Table) -> np.ndarray[Any, Any]:
    """Of rows of `trades` and of `incremental_book_L2`. A trade comes before the change that it causes, where both have one time."""
    try:
        import numpy as np
    except ImportError:
        raise MissingExtraError("export hftbacktest", "export") from None
    executed = _to_rows(trades, np.full(len(trades), _TRADE))
    events = np.concatenate([executed, _to_book(levels)])
    # A clock that is behind that of the exchange would make events arrive before they are made.
    earliest = int((events["local_ts"] - events["exch_ts"]).min(initial=0))
    events["local_ts"] -= earliest
    return _in_both_orders(events[np.argsort(events["local_ts"], kind="stable")])


def _to_rows(table: pa.Table, kinds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np
    import pyarrow as pa

    side = np.asarray(table["side"].fill_null("").to_numpy(zero_copy_only=False), dtype=object)
    sides = np.where((side == "buy") | (side == "bid"), _BUY, np.where((side == "sell") | (side == "ask"), _SELL, 0))
    rows = np.zeros(len(table), np.dtype(_COLUMNS))
    rows["ev"] = kinds | sides
    for name, column in (("exch_ts", "timestamp"), ("local_ts", "local_timestamp")):
        rows[name] = table[column].to_numpy() * 1000
    for name, column in (("px", "price"), ("qty", "amount")):
        rows[name] = table[column].cast(pa.float64()).to_numpy()
    return rows


def _to_book(levels: pa.Table) -> np.ndarray[Any, Any]:
    import numpy as np

    is_snapshot = levels["is_snapshot"].to_numpy(zero_copy_only=False).astype(bool)
    rows = _to_rows(levels, np.where(is_snapshot, _SNAPSHOT, _DEPTH))
    if not is_snapshot.any():
        return rows
    place = np.arange(len(rows))
    # A snapshot is what came at one time.
    begins = is_snapshot.copy()
    begins[1:] &= ~is_snapshot[:-1] | (rows["local_ts"][1:] != rows["local_ts"][:-1])
    first = np.maximum.accumulate(np.where(begins, place, 0))
    anchor = np.where(is_snapshot, first, place)
    is_ask = np.where(is_snapshot, (rows["ev"] & _SELL) != 0, False)
    starts = np.flatnonzero(begins)
    clears = np.repeat(rows[starts], 2)
    clears["ev"] = np.tile(np.array([_CLEAR | _BUY, _CLEAR | _SELL], "<u8"), len(starts))
    clears["px"], clears["qty"] = np.nan, 0.0  # no price: the whole side
    # Of each snapshot bids first, then asks, a side's clearing before its levels.
    order = np.lexsort(
        (
            np.concatenate([place, np.full(len(clears), -1)]),
            np.concatenate([is_ask, np.tile([False, True], len(starts))]),
            np.concatenate([anchor, np.repeat(starts, 2)]),
        )
    )
    joined: np.ndarray[Any, Any] = np.concatenate([rows, clears])[order]
    return joined


def _in_both_orders(events: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Events in the order of their arrival, with those twice that the exchange made in another order."""
    import numpy as np

    made = np.argsort(events["exch_ts"], kind="stable")
    # Up to where all that was made has arrived, and the other way round, the rest is in order by itself.
    ends = np.flatnonzero(np.maximum.accumulate(made) == np.arange(len(made))) + 1
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    events["ev"] |= _EXCHANGE | _LOCAL
    parts: list[np.ndarray[Any, Any]] = []
    done = 0
    for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
        parts += [events[done:start], _merged(events[start:end], made[start:end] - start)]
        done = end
    return np.concatenate([*parts, events[done:]])


def _merged(events: np.ndarray[Any, Any], made: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    times = list(zip(events["exch_ts"].tolist(), events["local_ts"].tolist(), strict=True))
    # Which event, and which of the two orders it does not stand in.
    taken: list[tuple[int, int]] = []
    by_exchange = made.tolist()
    at, local = 0, 0
    while at < len(by_exchange) or local < len(times):
        if at < len(by_exchange) and local < len(times) and by_exchange[at] == local:
            taken.append((local, 0))
            at, local = at + 1, local + 1
        elif local == len(times) or (at < len(by_exchange) and times[by_exchange[at]] <= times[local]):
            taken.append((by_exchange[at], _LOCAL))
            at += 1
        else:
            taken.append((local, _EXCHANGE))
            local += 1
    found = events[[index for index, _ in taken]]
    found["ev"] &= ~np.array([missing for _, missing in taken], "<u8")
    return found
