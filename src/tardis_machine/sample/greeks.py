"""Option prices and sensitivities after Black and Scholes, for the sample market's options.

Invariant: like `noise`, only correctly rounded operations are used; the C library's exp, log and erf differ in their last bit
between platforms, and a sample must not.
"""

from __future__ import annotations

from math import frexp, ldexp, sqrt
from typing import NamedTuple

__all__ = ["Greeks", "price_option"]

_LN2 = 0.6931471805599453
_ROOT_OF_TWO_PI = 2.5066282746310002
_YEAR_DAYS = 365.0


class Greeks(NamedTuple):
    """An option's value in quote currency and its sensitivities, in the units that exchanges use."""

    value: float
    delta: float
    gamma: float
    vega: float
    """For one point of volatility."""
    theta: float
    """For one day."""
    rho: float
    """For one point of interest rate."""


def price_option(*, call: bool, underlying: float, strike: float, years: float, volatility: float) -> Greeks:
    """Value and greeks without interest."""
    root = volatility * sqrt(years)
    d1 = _log(underlying / strike) / root + root / 2.0
    d2 = d1 - root
    density = _exp(-d1 * d1 / 2.0) / _ROOT_OF_TWO_PI
    chance1, chance2 = _normal(d1), _normal(d2)
    sign = 1.0 if call else -1.0
    if not call:
        chance1, chance2 = 1.0 - chance1, 1.0 - chance2
    return Greeks(
        value=max(sign * (underlying * chance1 - strike * chance2), 0.0),
        delta=sign * chance1,
        gamma=density / (underlying * root),
        vega=underlying * density * sqrt(years) / 100.0,
        theta=-underlying * density * volatility / (2.0 * sqrt(years)) / _YEAR_DAYS,
        rho=sign * strike * years * chance2 / 100.0,
    )


def _exp(x: float) -> float:
    halvings = int(x / _LN2)
    rest = x - halvings * _LN2
    total = term = 1.0
    for n in range(1, 22):
        term *= rest / n
        total += term
    return ldexp(total, halvings)


def _log(x: float) -> float:
    mantissa, exponent = frexp(x)
    z = (mantissa - 1.0) / (mantissa + 1.0)
    total, power = 0.0, z
    for n in range(1, 40, 2):
        total += power / n
        power *= z * z
    return 2.0 * total + exponent * _LN2


def _normal(x: float) -> float:
    """The chance of a standard normal below x."""
    if abs(x) > 8.0:
        return 1.0 if x > 0 else 0.0
    total, term, n = 0.0, x, 1
    while abs(term) > 1e-17:
        total += term
        n += 2
        term *= x * x / n
    return 0.5 + total * _exp(-x * x / 2.0) / _ROOT_OF_TWO_PI
