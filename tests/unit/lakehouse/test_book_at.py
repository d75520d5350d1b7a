"""What stands for `book_at` in a query; what it answers is tested with Spark."""

from __future__ import annotations

import pytest

from tardis_machine.errors import LakeError
from tardis_machine.lakehouse.book_at import with_books


def test_a_call_becomes_a_query_of_its_own() -> None:
    asked = "SELECT price FROM book_at('bitmex', 'XBT''USD', TIMESTAMP '2020-02-01 10:00:00', 5) AS book WHERE side = 'bid'"
    text = with_books(asked)
    assert text.startswith("SELECT price FROM (\nWITH ")
    assert text.endswith("ranked.level <= 5\n) AS book WHERE side = 'bid'")
    assert "symbol = 'XBT''USD'" in text
    assert text.count("TIMESTAMP '2020-02-01 10:00:00'") == text.count("'2020-02-01 10:00:00'")
    assert "book_at" not in text
    assert "NULL IS NULL" in with_books("FROM BOOK_AT ( 'a', 'b', '2020-02-01' )")


def test_other_queries_stay_as_they_are() -> None:
    assert with_books("SELECT book_at FROM silver.trades") == "SELECT book_at FROM silver.trades"


@pytest.mark.parametrize("call", ["book_at()", "book_at(exchange, symbol, local_ts, 5)", "book_at('a', 'b', '2020', -1)"])
def test_what_is_no_literal_is_refused(call: str) -> None:
    with pytest.raises(LakeError, match="book_at takes an exchange, a symbol, an instant and a number of levels or NULL"):
        with_books(f"SELECT * FROM {call}")
