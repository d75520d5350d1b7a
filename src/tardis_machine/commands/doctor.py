"""`tardis-machine doctor`: checks every bus that is on: connection, destinations, size limits, and one probe event.

The probe is the end of a session that had no events (`session_end`, complete, no entries), so consumers that count find nothing
missing. It goes straight to the bus, past queue and spool. If the allow list has no `session_end`, the probe is an `error` that text
what it is; if it has neither, no probe is sent.

Invariant: each check ends in time, and a finding holds no secret.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar
from uuid import uuid4

from ..errors import SettingsError, TardisMachineError, TerminalDeliveryError
from ..telemetry import redact

if TYPE_CHECKING:
    from ..eventbus.contract import EventBus, Record
    from ..eventbus.publisher import BusPlan, LetterPlan
    from ..eventbus.routing import Router
    from ..settings import Settings

__all__ = ["Finding", "check_buses", "run"]

T = TypeVar("T")
State = Literal["ok", "risk", "failed"]
"""`risk`: it works, and may lose events another day."""

# A book of a thousand levels on each side is about this large.
_LARGE_BOOK_BYTES = 64 * 1024
_COLORS: Mapping[State, str] = {"ok": "green", "risk": "yellow", "failed": "red"}


class Finding(NamedTuple):
    """The outcome of one check of a bus, and what to do if it did not pass."""

    bus: str
    check: str
    state: State
    text: str
    to_do: str = ""

    @property
    def has_passed(self) -> bool:
        """A risk is no failure."""
        return self.state != "failed"


class _CheckFailedError(Exception):
    """Ends the checks of a bus."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


def run(settings: Settings) -> int:
    """The `doctor` command: 1 when a check failed."""
    if not settings.buses:
        print("No bus is on, so there is nothing to check. 'tardis-machine --help' lists the options that turn one on.")
        return 0
    findings = asyncio.run(check_buses(settings))
    _print(findings)
    return 0 if all(finding.has_passed for finding in findings) else 1


async def check_buses(settings: Settings) -> list[Finding]:
    """All buses at once; the findings of one are together, in the order of `settings.buses`."""
    checks = [_check_bus(bus, settings) for bus in settings.buses]
    return [finding for findings in await asyncio.gather(*checks) for finding in findings]


async def _check_bus(bus: str, settings: Settings) -> list[Finding]:
    found: list[Finding] = []
    try:
        plan, router = _plan(bus, settings)
        try:
            await _run_checks(plan.bus, router, plan.letters, settings, found)
        finally:
            await _close(plan.bus, settings.check_timeout)
    except _CheckFailedError as error:
        found.append(error.finding)
    return [finding._replace(text=redact(finding.text), to_do=redact(finding.to_do)) for finding in found]


async def _run_checks(
    service: EventBus, router: Router, letters: LetterPlan | None, settings: Settings, found: list[Finding]
) -> None:
    """Check after check, until one fails."""
    bus, timeout_s = service.name, settings.check_timeout
    await _within(timeout_s, bus, "connection", service.connect, "start it, or correct its address and credentials")
    found.append(Finding(bus, "connection", "ok", "reachable, and access is granted"))
    sentences = await _within(timeout_s, bus, "destinations", service.check, "create what is missing, or grant access to it")
    found += [
        Finding(bus, "destinations", "ok", sentence) if isinstance(sentence, str) else Finding(bus, "safety", "risk", *sentence)
        for sentence in sentences
    ]
    if letters is not None:
        found.append(await _check_letters(letters, settings))
    found.append(_judge_limits(service))
    if settings.for_bus(bus)["overflow"] == "drop":
        text = f"events are dropped while the queue is full (--{bus}-overflow drop)"
        to_do = f"remove --{bus}-overflow, so that a full queue goes to the spool"
        found.append(Finding(bus, "safety", "risk", text, to_do))
    if not settings.probe:
        return
    probe = _make_probe(bus, router)
    text = f"not sent: --{bus}-include-payloads has neither session_end nor error"
    if probe is not None:
        text = await _within(timeout_s, bus, "probe", lambda: _send(service, probe), "allow this user to write")
    found.append(Finding(bus, "probe", "ok", text))


async def _check_letters(letters: LetterPlan, settings: Settings) -> Finding:
    bus, destination = letters.bus.name, settings.for_bus(letters.bus.name)["dead_letter_destination"]
    try:
        await _within(settings.check_timeout, bus, "dead letters", letters.bus.connect, "create it, or grant access to it")
    finally:
        await _close(letters.bus, settings.check_timeout)
    return Finding(bus, "dead letters", "ok", f"{destination} takes copies of them")


def _plan(bus: str, settings: Settings) -> tuple[BusPlan, Router]:
    from ..eventbus import plan_bus
    from ..eventbus.routing import Router

    try:
        plan = plan_bus(bus, settings.for_bus(bus))
        return plan, Router(bus, plan.routing, carries_headers=plan.bus.limits.carries_headers)
    except TardisMachineError as error:
        text = "; ".join(error.problems) if isinstance(error, SettingsError) else str(error)
        raise _CheckFailedError(Finding(bus, "configuration", "failed", text, "correct the options")) from None


async def _within(timeout_s: float, bus: str, check: str, step: Callable[[], Awaitable[T]], to_do: str) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await step()
    except TimeoutError:
        text = f"no answer within {timeout_s:g} s"
    except TardisMachineError as error:
        text = str(error)
        # The error says what is wrong; trying again will not help.
        to_do = "correct what the finding names" if isinstance(error, TerminalDeliveryError) and check == "connection" else to_do
    except Exception as error:  # whatever a client raises, it is a finding and no crash
        text = f"{type(error).__name__}: {error}"
    raise _CheckFailedError(Finding(bus, check, "failed", text, to_do)) from None


def _judge_limits(service: EventBus) -> Finding:
    record_bytes = service.limits.record_bytes
    text = f"accepts records of up to {record_bytes} bytes, {service.limits.batch_records} at a time"
    if record_bytes >= _LARGE_BOOK_BYTES:
        return Finding(service.name, "size limits", "ok", text)
    to_do = (
        f"a large book needs {_LARGE_BOOK_BYTES} bytes: raise the limit of the service, or set --{service.name}-oversize split"
    )
    return Finding(service.name, "size limits", "failed", text, to_do)


def _make_probe(bus: str, router: Router) -> Record | None:
    from ..bronze.encoding import BronzeEncoder
    from ..eventbus.contract import Record
    from ..eventbus.ledger import LedgerSession, to_session_end
    from ..messages import ErrorMessage, to_timestamp

    session_id, now_us, meta = f"doctor-{bus}-{uuid4().hex}", time.time_ns() // 1000, {"transport": "doctor"}
    encoder = BronzeEncoder(session_id=session_id, origin="realtime", meta=meta)
    if router.admits("session_end"):
        session = LedgerSession(session_id, "", "realtime", meta, now_us, ended_us=now_us, complete=True)
        (event,) = encoder.encode_session_end(to_session_end(session))
    elif router.admits("error"):
        (event,) = encoder.encode(
            [ErrorMessage("", to_timestamp(now_us), "a probe sent by 'tardis-machine doctor'; nothing is wrong")]
        )
    else:
        return None
    return Record(router.route(event.stream), event)


async def _send(service: EventBus, probe: Record) -> str:
    for failure in await service.send([probe]):
        raise failure.error
    return f"{probe.destination} confirmed a {probe.route.payload_case} event of session {probe.route.session_id}"


async def _close(service: EventBus, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await service.close()
    except Exception:  # noqa: S110 - the findings are complete
        pass


def _print(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    table = Table(title="Buses that are on", title_justify="left")
    for name in ("bus", "", "check", "finding", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        color = _COLORS[finding.state]
        texts = (
            finding.bus,
            f"[{color}]{finding.state}[/]",
            finding.check,
            f"[{color}]{escape(finding.text)}[/]",
            escape(finding.to_do),
        )
        table.add_row(*texts)
    console.print(table)
    buses = dict.fromkeys(finding.bus for finding in findings)
    failed = dict.fromkeys(finding.bus for finding in findings if not finding.has_passed)
    risky = dict.fromkeys(finding.bus for finding in findings if finding.state == "risk")
    verdicts = [f"{what}: {', '.join(which)}." for what, which in (("Failed", failed), ("Events may be lost", risky)) if which]
    console.print(" ".join(verdicts) or f"All checks passed: {', '.join(buses)}.")
