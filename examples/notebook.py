"""What a notebook does: messages one after the other, a book that follows them, a data frame, a book at an instant. No event loop.

python examples/notebook.py     pip install 'tardis-machine[pandas]'
TM_API_URL: where history comes from, if not from tardis.dev
"""

from __future__ import annotations

import os

import tardis_machine as machine

SOURCE = {"exchange": "bitmex", "api_url": os.environ.get("TM_API_URL")}
SPAN = {"symbols": ["XBTUSD"], "from_": "2020-02-01T00:00", "to": "2020-02-01T00:02"}

book = machine.OrderBook()
for message in machine.replay_normalized_sync(**SOURCE, **SPAN, data_types=["book_change"]):
    book.update(message)  # type: ignore[arg-type]
print("best bid and ask after two minutes:", book.best_bid, book.best_ask)

trades = machine.to_pandas(machine.replay_normalized_sync(**SOURCE, **SPAN, data_types=["trade"]))
print(trades.groupby("side")["amount"].agg(["count", "sum"]))

at = machine.book_at_sync(**SOURCE, symbol="XBTUSD", at="2020-02-01T00:01:30", depth=3)
print("at half past one:", [(level.price, level.amount) for level in at.bids])
