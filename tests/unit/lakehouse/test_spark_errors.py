"""One sentence out of what Spark, the JVM and workers say."""

from __future__ import annotations

import pytest

from tardis_machine.lakehouse.spark_errors import own_words, sentence

WORKER = """An error occurred while calling o104.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times
Traceback (most recent call last):
tardis_machine.errors.LakeError: 400: no such symbol

The above exception was the direct cause of the following exception:

tardis_machine.errors.LakeError: backfill|bitmex|X: 400: no such symbol

	at org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
"""
EXECUTOR = """An error occurred while calling o55.collectToPython.
: org.apache.spark.SparkException: Job aborted: Lost task 0.0 in stage 1.0 (TID 1)
Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012
	at org.apache.spark.sql.errors.QueryExecutionErrors$.divideByZeroError(QueryExecutionErrors.scala:211)
"""


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (WORKER, "backfill|bitmex|X: 400: no such symbol"),
        (EXECUTOR, "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012"),
        (
            "An error occurred while calling o9.start.\n: java.io.IOException: disk full\n\tat java.base",
            "java.io.IOException: disk full",
        ),
        ("can't be reached\nand more", "can't be reached"),
        ("", "RuntimeError"),
    ],
)
def test_a_page_becomes_a_sentence(page: str, said: str) -> None:
    assert sentence(RuntimeError(page)) == said


def test_only_a_worker_of_ours_has_words_of_its_own() -> None:
    assert own_words(RuntimeError(WORKER)) == "backfill|bitmex|X: 400: no such symbol"
    assert own_words(RuntimeError(EXECUTOR)) is None
