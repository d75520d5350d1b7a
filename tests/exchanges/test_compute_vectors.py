"""Computed messages, the order book and data types, against what the reference was recorded to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.computed import BookSnapshots, Computable, Computer, OrderBook, TradeBars, parse_data_types
from tardis_machine.errors import OptionsError
from tardis_machine.messages import BookChange, BookLevel, from_json, js_number, to_json

# Where ours is meant to differ: an hour is a unit of bars, and a name that is none is refused rather than passed over.
OURS = {
    ("trade", "trade_bar_1h"): [TradeBars("time", 3_600_000, "trade_bar_1h")],
    ("unknown_type",): OptionsError,
}


@pytest.mark.parametrize("kind", ["compute", "orderbook", "datatypes", "data_type_filter"])
def test_rows(vectors: Path, kind: str) -> None:
    check = {
        "compute": check_compute,
        "orderbook": check_order_book,
        "datatypes": check_data_types,
        "data_type_filter": check_shown,
    }
    rows = [
        (json.loads(line), json.loads(line, parse_float=str, parse_int=str))
        for line in (vectors / "compute.jsonl").read_text("utf-8").splitlines()
        if json.loads(line)["kind"] == kind
    ]
    failures = []
    for row, exact in rows:
        try:
            check[kind](row, exact)
        except AssertionError as error:
            failures.append(f"{row['id']}: {error}")
    print(f"{kind}: {len(rows) - len(failures)}/{len(rows)} = {100 * (1 - len(failures) / len(rows)):.1f}%")
    assert not failures, "\n".join(failures[:5])


def printed(value: Any) -> Any:
    return json.loads(to_json(value), parse_float=str, parse_int=str)


def check_compute(row: dict[str, Any], exact: dict[str, Any]) -> None:
    computables = [computable_of(options) for options in row["computables"]]
    if "dataTypes" in row:
        assert list(parse_data_types(row["dataTypes"]).computables) == computables
    computer = Computer(computables, keep_sources=True)
    for message, text, expected in zip(row["input"], exact["input"], exact["expected"], strict=True):
        source, *computed = computer.feed([from_json(json.dumps(message))])
        assert printed(source) == text
        assert [printed(item) for item in computed] == expected


def computable_of(options: dict[str, Any]) -> Computable:
    name = options.get("name", "")
    if options["computable"] == "trade_bar":
        return TradeBars(options["kind"], options["interval"], name)
    crossed = options.get("removeCrossedLevels", False)
    return BookSnapshots(options["depth"], options["interval"], options.get("grouping"), name, crossed)


def check_order_book(row: dict[str, Any], exact: dict[str, Any]) -> None:
    removed: list[Any] = []
    book = OrderBook(row["options"].get("removeCrossedLevels", False), lambda *levels: removed.append(levels))
    for change, expected in zip(row["input"], exact["expected"], strict=True):
        removed.clear()
        book.update(BookChange("", "", change["isSnapshot"], levels_of(change["bids"]), levels_of(change["asks"]), "", ""))
        state = {"bids": list(book.bids()), "asks": list(book.asks()), "removed": removed}
        assert printed(state) == {key: expected[key] for key in state}
        assert printed([book.best_bid, book.best_ask]) == [expected.get("bestBid"), expected.get("bestAsk")]


def levels_of(levels: list[dict[str, float]]) -> list[BookLevel]:
    return [BookLevel(js_number(float(level["price"])), js_number(float(level["amount"]))) for level in levels]


def check_data_types(row: dict[str, Any], _: dict[str, Any]) -> None:
    names = tuple(row["dataTypes"])
    ours: Any = OURS.get(names, OptionsError if "error" in row else None)
    if ours is OptionsError:
        with pytest.raises(OptionsError) as raised:
            parse_data_types(names)
        assert any(f"'{name}'" in str(raised.value) for name in names)
        return
    parsed = parse_data_types(names)
    assert list(parsed.normalizers) == row["normalizers"]
    assert list(parsed.computables) == ([computable_of(options) for options in row["computables"]] if ours is None else ours)


def check_shown(row: dict[str, Any], _: dict[str, Any]) -> None:
    for message, passes in zip(row["messages"], row["pass"], strict=True):
        asked = [options for options in row["options"] if options["exchange"] == message["exchange"]]
        if message["type"] == "disconnect":
            assert passes == any(options.get("withDisconnectMessages", False) for options in asked)
        else:
            shown = {kind.__struct_config__.tag for options in asked for kind in parse_data_types(options["dataTypes"]).shown}
            assert passes == (message["type"] in shown)
