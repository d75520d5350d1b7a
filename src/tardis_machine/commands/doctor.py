"""`tardis-machine doctor`: is every bus that is on reachable, allowed, large enough, and does an event get there?

The probe is the end of a session that had no events (`session_end`, complete, no entries): consumers that count see nothing missing,
and nobody is alarmed. It is sent by the bus itself, past queue and spool. Where the allow list does not have it, the probe is an
`error` that says what it is; where it has neither, there is none.

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
    from ..eventbus.publisher import BusPlan
    from ..eventbus.routing import Router
    from ..settings import Settings

__all__ = ["Finding", "examine", "run"]

T = TypeVar("T")
State = Literal["ok", "risk", "no"]
"""Works; works, and may lose events another day; does not work."""

# A book of a thousand levels on each side takes about this much.
_ROOMY_BYTES = 64 * 1024
_COLORS: Mapping[State, str] = {"ok": "green", "risk": "yellow", "no": "red"}


class Finding(NamedTuple):
    """One line: what was checked of a bus, how it is, and what to do where it is not well."""

    bus: str
    check: str
    state: State
    says: str
    to_do: str = ""

    @property
    def is_well(self) -> bool:
        """It works, be it at a risk."""
        return self.state != "no"


class _NotWellError(Exception):
    """Ends the examination of a bus."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.says)
        self.finding = finding


def run(settings: Settings) -> int:
    """The command: 1 when a bus is not well."""
    if not settings.buses:
        print("No bus is on, so nothing is published: there is nothing to check. 'tardis-machine --help' says what turns one on.")
        return 0
    findings = asyncio.run(examine(settings))
    _print(findings)
    return 0 if all(finding.is_well for finding in findings) else 1


async def examine(settings: Settings) -> list[Finding]:
    """All buses at once; the findings of one are together, in the order of `settings.buses`."""
    examinations = [_examine_bus(bus, settings) for bus in settings.buses]
    return [finding for findings in await asyncio.gather(*examinations) for finding in findings]


async def _examine_bus(bus: str, settings: Settings) -> list[Finding]:
    found: list[Finding] = []
    try:
        plan, router = _plan(bus, settings)
        try:
            await _look(plan.bus, router, settings, found)
        finally:
            await _let_go(plan.bus, settings.check_timeout)
    except _NotWellError as error:
        found.append(error.finding)
    return [finding._replace(says=redact(finding.says), to_do=redact(finding.to_do)) for finding in found]


async def _look(service: EventBus, router: Router, settings: Settings, found: list[Finding]) -> None:
    """Check after check, until one fails."""
    bus, timeout_s = service.name, settings.check_timeout
    await _within(timeout_s, bus, "connects", service.connect, "start it, or correct its address and credentials")
    found.append(Finding(bus, "connects", "ok", "it answers, and lets this user in"))
    sentences = await _within(timeout_s, bus, "exists", service.check, "make what is missing, or allow it")
    found += [
        Finding(bus, "exists", "ok", sentence) if isinstance(sentence, str) else Finding(bus, "is safe", "risk", *sentence)
        for sentence in sentences
    ]
    found.append(_judge_limits(service))
    if settings.for_bus(bus)["overflow"] == "drop":
        says = f"events are dropped while its queue is full (--{bus}-overflow drop)"
        found.append(Finding(bus, "is safe", "risk", says, "leave it out: a full queue then goes on in the spool"))
    if not settings.probe:
        return
    probe = _make_probe(bus, router)
    says = "not tried, as the allow list has neither session_end nor error"
    if probe is not None:
        says = await _within(timeout_s, bus, "takes a probe", lambda: _send(service, probe), "allow this user to write")
    found.append(Finding(bus, "takes a probe", "ok", says))


def _plan(bus: str, settings: Settings) -> tuple[BusPlan, Router]:
    from ..eventbus import plan_bus
    from ..eventbus.routing import Router

    try:
        plan = plan_bus(bus, settings.for_bus(bus))
        return plan, Router(bus, plan.routing, carries_headers=plan.bus.limits.carries_headers)
    except TardisMachineError as error:
        says = "; ".join(error.problems) if isinstance(error, SettingsError) else str(error)
        raise _NotWellError(Finding(bus, "is set up", "no", says, "correct the options")) from None


async def _within(timeout_s: float, bus: str, check: str, step: Callable[[], Awaitable[T]], to_do: str) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await step()
    except TimeoutError:
        says = f"no answer within {timeout_s:g} s"
    except TardisMachineError as error:
        says = str(error)
        # It says by itself what is wrong; waiting will not help.
        to_do = "correct what is named here" if isinstance(error, TerminalDeliveryError) and check == "connects" else to_do
    except Exception as error:  # whatever a client raises, it is a finding and no crash
        says = f"{type(error).__name__}: {error}"
    raise _NotWellError(Finding(bus, check, "no", says, to_do)) from None


def _judge_limits(service: EventBus) -> Finding:
    record_bytes = service.limits.record_bytes
    says = f"it takes {record_bytes} bytes a record, and {service.limits.batch_records} records at once"
    if record_bytes >= _ROOMY_BYTES:
        return Finding(service.name, "is large enough", "ok", says)
    to_do = f"large books need {_ROOMY_BYTES} bytes: raise the limit of the service, or set --{service.name}-oversize split"
    return Finding(service.name, "is large enough", "no", says, to_do)


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
        (event,) = encoder.encode([ErrorMessage("", to_timestamp(now_us), "a probe of 'tardis-machine doctor', and no error")])
    else:
        return None
    return Record(router.route(event.stream), event)


async def _send(service: EventBus, probe: Record) -> str:
    for failure in await service.send([probe]):
        raise failure.error
    return f"{probe.destination} confirmed a {probe.route.payload_case} of session {probe.route.session_id}"


async def _let_go(service: EventBus, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await service.close()
    except Exception:  # noqa: S110 - what is known of it has been said
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
            f"[{color}]{escape(finding.says)}[/]",
            escape(finding.to_do),
        )
        table.add_row(*texts)
    console.print(table)
    buses = dict.fromkeys(finding.bus for finding in findings)
    ill = dict.fromkeys(finding.bus for finding in findings if not finding.is_well)
    risky = dict.fromkeys(finding.bus for finding in findings if finding.state == "risk")
    said = [f"{what}: {', '.join(which)}." for what, which in (("Not well", ill), ("Events are at risk", risky)) if which]
    console.print(" ".join(said) or f"All is well with {', '.join(buses)}.")
