"""`tardis-machine lake …`: ingest, sql, backfill, instruments, verify, certificate, optimize and register. What they do is in `lakehouse`.

Invariant: Spark is imported only when one of them runs.
"""

from __future__ import annotations

from ..settings import Settings

__all__ = ["backfill", "certificate", "ingest", "instruments", "optimize", "register", "sql", "verify"]


def ingest(settings: Settings) -> int:
    """`lake ingest`: events from a bus to the lake."""
    from ..lakehouse import jobs

    return jobs.ingest(settings)


def sql(settings: Settings) -> int:
    """`lake sql`: a query, and its answer."""
    from ..lakehouse import sql

    return sql.run(settings)


def backfill(settings: Settings) -> int:
    """`lake backfill`: history to the lake, without a bus."""
    from ..lakehouse import backfill

    return backfill.run(settings)


def instruments(settings: Settings) -> int:
    """`lake instruments`: what contracts are worth."""
    from ..lakehouse import instruments

    return instruments.run(settings)


def verify(settings: Settings) -> int:
    """`lake verify`: 1 when something that was published is missing."""
    from ..lakehouse import verify

    return verify.run(settings)


def certificate(settings: Settings) -> int:
    """`lake certificate`: 1 when the lake has something else than the certificate that is checked."""
    from ..lakehouse import certificate

    return certificate.run(settings)


def optimize(settings: Settings) -> int:
    """`lake optimize`: small files joined, old ones removed."""
    from ..lakehouse import optimize

    return optimize.run(settings)


def register(settings: Settings) -> int:
    """`lake register`: the tables under their names in a catalog."""
    from ..lakehouse import register

    return register.run(settings)
