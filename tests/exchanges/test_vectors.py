"""Every visible conformance row of each exchange; how many passed is printed by exchange at the end (conftest.py)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.errors import NormalizeError
from tardis_machine.exchanges import DATA_TYPES, EXCHANGES
from tardis_machine.filters import Filter, optimize_filters
from tardis_machine.messages import parse_timestamp_us, to_json
from tardis_machine.pipeline.normalizer import Normalizer

# Ids that the reference rounds to a double, where ours keep every digit.
ROUNDED_IDS = {"crypto-com", "huobi"}
TIMESTAMPS = {"timestamp", "localTimestamp", "fundingTimestamp", "expirationDate", "openTimestamp", "closeTimestamp"}


def comparable(text: bytes | str, exchange: str) -> Any:
    """Parsed JSON with number text kept apart from strings, timestamps as instants and free ids left out."""

    def visit(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: visit(v, k) for k, v in value.items() if not (k == "id" and exchange in ROUNDED_IDS)}
        if isinstance(value, list):
            return [visit(item) for item in value]
        if key in TIMESTAMPS and isinstance(value, str):
            return parse_timestamp_us(value)
        return ("number", str(value)) if isinstance(value, RawNumber) else value

    return visit(parse_keeping_numbers(text))


def rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open("rb") as lines:
            for line in lines:
                yield json.loads(line) | {"text": line}


def check_all(
    exchange: str,
    kind: str,
    cases: list[dict[str, Any]],
    check: Callable[[dict[str, Any]], str | None],
    record_property: Callable[[str, object], None],
) -> None:
    failures = [f"{case.get('id', '')} {problem}" for case in cases if (problem := check(case)) is not None]
    passed = len(cases) - len(failures)
    record_property("vector_rows", [exchange, kind, passed, len(cases)])
    assert not failures, "\n".join(failures[:5])


class RawNumber(str):
    """A number's own text: a round trip through Python's floats must not touch it."""

    __slots__ = ()


def parse_keeping_numbers(text: bytes | str) -> Any:
    return json.loads(text, parse_float=RawNumber, parse_int=RawNumber)


def dump(value: Any) -> str:
    if isinstance(value, RawNumber):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{dump(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value)


def check_session(case: dict[str, Any]) -> str | None:
    exchange = case["exchange"]
    at = None if case["createdAt"] is None else parse_timestamp_us(case["createdAt"])
    normalizer = Normalizer(exchange, case["dataTypes"], at, case["realtime"])
    for index, step in enumerate(parse_keeping_numbers(case["text"])["steps"]):
        raw = dump(step["message"]).encode()
        raised: NormalizeError | None = None
        try:
            messages = normalizer.feed(step["localTimestamp"].encode(), raw)
        except NormalizeError as error:
            raised, messages = error, list(error.emitted)  # type: ignore[arg-type]
        if (raised is not None) != ("error" in step):
            return f"step {index}: raised {raised!r}, the reference: {step.get('error')!r}"
        got = [comparable(to_json(message), exchange) for message in messages]
        expected = comparable(dump(step["expected"]), exchange)
        if got != expected:
            return f"step {index}: got {got}\n  expected {expected}\n  raw {raw[:600]!r}"
    return None


@pytest.mark.parametrize("folder", ["normalize", "normalize_mutated"])
@pytest.mark.parametrize("exchange", sorted(EXCHANGES))
def test_normalized_messages(vectors: Path, exchange: str, folder: str, record_property: Callable[[str, object], None]) -> None:
    check_all(exchange, folder, list(rows(vectors / folder / f"{exchange}.jsonl")), check_session, record_property)


@pytest.mark.parametrize("exchange", sorted(EXCHANGES))
def test_filters(vectors: Path, exchange: str, record_property: Callable[[str, object], None]) -> None:
    def check(case: dict[str, Any]) -> str | None:
        try:
            filters = Normalizer(exchange, case["dataTypes"], parse_timestamp_us(case["date"])).filters(case["symbols"])
        except Exception as error:
            return None if "error" in case else f"{case} raised {error!r}"
        if "error" in case:
            return f"{case} should have raised"
        got = [json.loads(to_json(filters)), json.loads(to_json(optimize_filters(filters)))]
        expected = [case["filters"], case["optimized"]]
        return None if got == expected else f"{case['dataTypes']} {case['date']} {case['symbols']} got {got} expected {expected}"

    cases = [case for case in rows(vectors / "filters.jsonl") if case["exchange"] == exchange]
    check_all(exchange, "filters", cases, check, record_property)


@pytest.mark.parametrize("exchange", sorted(EXCHANGES))
def test_subscriptions(vectors: Path, exchange: str, record_property: Callable[[str, object], None]) -> None:
    def check(case: dict[str, Any]) -> str | None:
        filters = EXCHANGES[exchange].subscriptions(case["message"], parse_timestamp_us(case["date"]))
        if "error" in case or "unknownChannels" in case:
            # A fault of the reference: ours serves the subscription, with channels that exist.
            unknown = [item.channel for item in filters or () if item.channel not in EXCHANGES[exchange].channels]
            return f"{case['message']} asks for unknown channels {unknown}" if unknown or filters is None else None
        if not case["canHandle"]:
            return None if filters is None else f"{case['message']} is no subscription, got {filters}"
        got = None if filters is None else json.loads(to_json(list[Filter](filters)))
        return None if got == case["filters"] else f"{case['message']} got {got} expected {case['filters']}"

    cases = [case for case in rows(vectors / "subscriptions.jsonl") if case["exchange"] == exchange]
    check_all(exchange, "subscriptions", cases, check, record_property)


def test_registry_agrees_with_the_reference(vectors: Path) -> None:
    known = json.loads((vectors / "exchanges.json").read_text())
    for name, exchange in EXCHANGES.items():
        assert set(exchange.channels) == set(known[name]["channels"]), name
        assert list(exchange.data_types) == [kind for kind in DATA_TYPES if kind in known[name]["dataTypes"]], name
        for kind, versions in exchange.mappers.items():
            ends = [parse_timestamp_us(version.until) for version in versions[:-1] if version.until is not None]
            assert ends == [parse_timestamp_us(date) for date in known[name]["switchDates"][kind]], (name, kind)
