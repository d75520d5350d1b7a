"""The recorder's time is written as the history API writes it."""

from __future__ import annotations

import re
import time

import pytest

from tardis_machine.messages import parse_timestamp_us
from tardis_machine.realtime.clock import recorded_now


def test_seven_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_794_800_227_829_538_528)
    assert recorded_now() == "2026-11-16T03:37:07.8295385Z"
    monkeypatch.setattr(time, "time_ns", lambda: 1_794_800_227_000_000_099)
    assert recorded_now() == "2026-11-16T03:37:07.0000000Z"


def test_it_is_now() -> None:
    before_us = time.time_ns() // 1000
    now = recorded_now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z", now)
    assert before_us <= parse_timestamp_us(f"{now[:26]}Z") <= time.time_ns() // 1000
