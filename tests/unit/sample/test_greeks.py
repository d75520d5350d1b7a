from __future__ import annotations

from math import erf, exp, log, pi, sqrt

import pytest

from tardis_machine.sample.greeks import price_option


def _normal(x: float) -> float:
    return 0.5 * (1 + erf(x / sqrt(2)))


@pytest.mark.parametrize("strike", [15_000.0, 24_000.0, 30_000.0, 36_000.0, 90_000.0])
@pytest.mark.parametrize("years", [0.01, 0.25, 1.5])
def test_the_call_is_that_of_the_textbook(strike: float, years: float) -> None:
    greeks = price_option(call=True, underlying=30_000.0, strike=strike, years=years, volatility=0.6)
    root = 0.6 * sqrt(years)
    d1 = log(30_000.0 / strike) / root + root / 2
    assert greeks.value == pytest.approx(30_000.0 * _normal(d1) - strike * _normal(d1 - root), abs=1e-6)
    assert greeks.delta == pytest.approx(_normal(d1), abs=1e-12)
    assert greeks.gamma == pytest.approx(exp(-d1 * d1 / 2) / sqrt(2 * pi) / (30_000.0 * root), rel=1e-9)
    assert greeks.vega == pytest.approx(30_000.0 * exp(-d1 * d1 / 2) / sqrt(2 * pi) * sqrt(years) / 100, rel=1e-9)


def test_put_and_call_differ_by_what_the_underlying_is_above_the_strike() -> None:
    call, put = (
        price_option(call=call, underlying=31_000.0, strike=29_000.0, years=0.3, volatility=0.5) for call in (True, False)
    )
    assert call.value - put.value == pytest.approx(2_000.0, abs=1e-6)
    assert call.delta - put.delta == pytest.approx(1.0)
    assert call.gamma == put.gamma
    assert put.rho < 0 < call.rho


def test_an_option_loses_value_with_time() -> None:
    now, later = (
        price_option(call=True, underlying=100.0, strike=100.0, years=years, volatility=0.5) for years in (0.5, 0.5 - 1 / 365)
    )
    assert now.theta == pytest.approx(later.value - now.value, rel=0.01)
