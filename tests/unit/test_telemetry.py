"""Logs and metrics: one line each, in UTC, with fields, without secrets; names that Prometheus takes."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tardis_machine import telemetry
from tardis_machine.telemetry import METRICS, Metric, get_logger, render_metrics, setup_logging

Write = Callable[..., str]
log = get_logger("tardis_machine.eventbus.publisher")


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leaves logging and the known secrets as they were."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    forget_secrets(monkeypatch)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def forget_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    redactor = telemetry._Redactor()
    monkeypatch.setattr(telemetry, "hide", redactor.hide)
    monkeypatch.setattr(telemetry, "redact", redactor.redact)


def start(log_format: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    setup_logging(log_format, level, stream)
    return stream


def last(stream: io.StringIO) -> dict[str, object]:
    found: dict[str, object] = json.loads(stream.getvalue().splitlines()[-1])
    return found


def test_a_text_line_has_time_level_logger_message_and_fields() -> None:
    stream = start("text")
    before = time.time()
    log.info("connected", bus="file", seconds=0.25, dir="a b", first=True, last=None, empty="", quoted='say "x"')
    moment, rest = stream.getvalue().split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment)
    assert time.strftime("%Y-%m-%dT%H", time.gmtime(before)) == moment[:13]
    assert rest == (
        "INFO    eventbus.publisher: connected bus=file seconds=0.25 "
        'dir="a b" first=true last=null empty="" quoted="say \\"x\\""\n'
    )


def test_a_json_line_has_the_same() -> None:
    stream = start("json")
    log.warning("retrying", bus="file", tries=3, at=0.5, again=True, what={"a"}, level="mine")
    found = last(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(found.pop("time")))
    assert found == {
        "level": "warning",
        "logger": "eventbus.publisher",
        "message": "retrying",
        "bus": "file",
        "tries": 3,
        "at": 0.5,
        "again": True,
        "what": "{'a'}",
        "level_": "mine",
    }


def test_numbers_that_json_does_not_know_stay_readable() -> None:
    stream = start("json")
    log.info("odd", ratio=float("nan"), bound=float("inf"))
    found = json.loads(stream.getvalue(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (found["ratio"], found["bound"]) == ("nan", "inf")


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_levels(level: str) -> None:
    stream = start("json", level)
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)(name)
    shown = [json.loads(line)["level"] for line in stream.getvalue().splitlines()]
    assert shown == ["debug", "info", "warning", "error"][["debug", "info", "warning", "error"].index(level) :]


def test_other_libraries_are_heard_from_warnings_up() -> None:
    stream = start("json")
    logging.getLogger("somebody.else").info("chatter")
    logging.getLogger("somebody.else").warning("took %d s", 3)
    warnings.warn("old call", DeprecationWarning, stacklevel=1)
    messages = [(entry["logger"], entry["message"]) for entry in map(json.loads, stream.getvalue().splitlines())]
    assert messages[0] == ("somebody.else", "took 3 s")
    assert messages[1][0] == "py.warnings"
    assert "old call" in messages[1][1]


def test_setting_up_again_replaces_the_stream() -> None:
    first, second = start("text"), start("json")
    log.info("hello")
    assert first.getvalue() == ""
    assert last(second)["message"] == "hello"
    assert len(second.getvalue().splitlines()) == 1


def fail() -> Exception:
    try:
        raise ValueError("bad\nvalue")
    except ValueError as error:
        return error


def test_an_exception_is_one_line_with_its_traceback_where_that_helps() -> None:
    stream = start("text")
    log.exception("failed", cause=fail(), bus="file")
    assert stream.getvalue().endswith(' failed bus=file error="ValueError: bad\\nvalue"\n')
    stream = start("text", "debug")
    log.exception("failed", cause=fail())
    assert len(stream.getvalue().splitlines()) == 1
    assert 'traceback="Traceback (most recent call last):\\n' in stream.getvalue()
    stream = start("json")
    log.exception("failed", cause=fail())
    assert last(stream)["error"] == "ValueError: bad\nvalue"
    assert str(last(stream)["traceback"]).startswith("Traceback (most recent call last):\n")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(message=st.text(), value=st.text(), log_format=st.sampled_from(["text", "json"]))
def test_every_record_is_one_line(message: str, value: str, log_format: str) -> None:
    stream = start(log_format)
    log.info(message, field=value)
    assert len(stream.getvalue().splitlines()) == 1
    if log_format == "json":
        assert (last(stream)["message"], last(stream)["field"]) == (message, value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(secret=st.text(min_size=8).filter(lambda text: text.strip() == text), log_format=st.sampled_from(["text", "json"]))
def test_a_secret_is_in_no_line(secret: str, log_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assume(secret != "traceback")  # a field's name, which every line may have
    forget_secrets(monkeypatch)
    telemetry.hide(secret)
    stream = start(log_format, "debug")
    log.info(f"with {secret} in it", field=secret, nested={"key": secret}, **{f"f_{secret}": 1})
    try:
        raise RuntimeError(secret) from ValueError(secret)
    except RuntimeError as error:
        log.exception("failed", cause=error)
    logging.getLogger("other").error("args %s %r", secret, secret)
    shown = stream.getvalue()
    assert secret not in shown
    assert json.dumps(secret)[1:-1] not in shown
    assert repr(secret)[1:-1] not in shown
    assert "***" in shown


def test_a_number_that_is_a_secret_and_a_secret_in_a_url_are_hidden() -> None:
    telemetry.hide("12345678", "p@ss/word")
    stream = start("json")
    log.info("called http://me:p%40ss%2Fword@host", token=12345678, other=1)
    assert last(stream)["message"] == "called http://me:***@host"
    assert (last(stream)["token"], last(stream)["other"]) == ("***", 1)


def test_the_longer_of_two_secrets_is_hidden_whole() -> None:
    telemetry.hide("abc", "abcdef", "")
    assert telemetry.redact("abcdef abc") == "*** ***"


def test_metrics_are_declared_once_with_names_that_prometheus_takes() -> None:
    names = [metric.full_name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert re.fullmatch(r"tardis_machine_[a-z]+(_[a-z]+)*", metric.full_name)
        assert metric.full_name.endswith("_total") == (metric.kind == "counter")
        assert metric.help
        assert not metric.help.endswith(".")


def test_what_is_rendered_is_what_is_declared() -> None:
    telemetry.EVENTS_PUBLISHED.labels("only here", "trade").inc(3)
    telemetry.QUEUE_BYTES.labels("only here").set(5)
    telemetry.CONFIRM_SECONDS.labels("only here", "trade").observe(0.2)
    text = render_metrics().decode()
    assert 'tardis_machine_bus_events_published_total{bus="only here",payload_case="trade"} 3.0\n' in text
    assert 'tardis_machine_bus_queue_bytes{bus="only here"} 5.0\n' in text
    assert 'tardis_machine_bus_confirm_seconds_bucket{bus="only here",le="0.25",payload_case="trade"} 1.0\n' in text
    for metric in METRICS:
        assert f"# TYPE {metric.full_name} {metric.kind}\n" in text
    assert all(line.startswith(("# ", "tardis_machine_")) for line in text.splitlines())


def test_a_metric_is_made_when_it_is_used() -> None:
    program = "import sys, tardis_machine.telemetry; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_labels_must_be_those_declared() -> None:
    Metric("seldom_used_total", "counter", "Without labels").labels().inc()
    assert b"tardis_machine_seldom_used_total 1.0\n" in render_metrics()
    with pytest.raises(ValueError):
        Metric("never_used_total", "counter", "Never", ("bus",)).labels("a", "b")
