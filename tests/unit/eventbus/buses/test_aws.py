from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.errors import SettingsError, TerminalDeliveryError, TransientDeliveryError
from tardis_machine.eventbus.buses.aws import AwsAccess, AwsCall, AwsEntry, Kind, Problem, send_entries, to_calls

OPTIONS: dict[str, Any] = {
    "region": "eu-west-1",
    "access_key_id": "AKIA1",
    "secret_access_key": "s3cr3t",
    "session_token": "t0ken",
    "endpoint_url": None,
    "ca_bundle": None,
    "request_timeout": 1.0,
}


def make_entry(number: int, destination: str = "a", size: int = 10, turn: int = 0) -> AwsEntry:
    return AwsEntry(destination, {"n": number}, size, (number,), turn, (destination, "key") if turn or size == 99 else None)


@pytest.fixture
def no_chain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.mark.usefixtures("no_chain")
def test_the_region_comes_from_the_option_the_destination_the_environment_or_a_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unsaid = {**OPTIONS, "region": None}
    with pytest.raises(SettingsError, match="--sqs-region is required, as neither AWS_REGION nor a profile names a region"):
        AwsAccess("sqs", unsaid, None)
    (tmp_path / "config").write_text("[default]\nregion = ap-south-1\n")
    assert AwsAccess("sqs", unsaid, None).region == "ap-south-1"
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert AwsAccess("sqs", unsaid, None).region == "us-west-2"
    assert AwsAccess("sqs", unsaid, "eu-north-1").region == "eu-north-1"
    assert AwsAccess("sqs", OPTIONS, "eu-north-1").region == "eu-west-1"


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (("secret_access_key",), "--kinesis-access-key-id needs --kinesis-secret-access-key"),
        (("access_key_id",), "--kinesis-secret-access-key needs --kinesis-access-key-id"),
        (
            ("access_key_id", "secret_access_key"),
            "--kinesis-session-token needs --kinesis-access-key-id and --kinesis-secret-access-key",
        ),
    ],
)
def test_half_of_the_credentials_is_refused(missing: tuple[str, ...], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        AwsAccess("kinesis", {**OPTIONS, **dict.fromkeys(missing)}, None)
    assert refused.value.problems == [says]


@pytest.mark.parametrize(
    ("code", "kind", "ends_the_start", "ends_a_record"),
    [
        ("ProvisionedThroughputExceededException", Kind.THROTTLED, False, False),
        ("ThrottlingException", Kind.THROTTLED, False, False),
        ("RequestThrottled", Kind.THROTTLED, False, False),
        ("InternalFailure", Kind.BROKEN, False, False),
        ("ServiceUnavailable", Kind.BROKEN, False, False),
        ("500", Kind.BROKEN, False, False),
        ("KMSDisabledException", Kind.BROKEN, False, False),
        ("ExpiredTokenException", Kind.EXPIRED, False, False),
        ("UnrecognizedClientException", Kind.CREDENTIALS, True, False),
        ("InvalidSignatureException", Kind.CREDENTIALS, True, False),
        ("AccessDeniedException", Kind.FORBIDDEN, True, True),
        ("ResourceNotFoundException", Kind.MISSING, True, True),
        ("AWS.SimpleQueueService.NonExistentQueue", Kind.MISSING, True, True),
        ("ValidationException", Kind.INVALID, True, True),
        ("AWS.SimpleQueueService.BatchRequestTooLong", Kind.INVALID, True, True),
    ],
)
def test_what_errors_mean(code: str, kind: Kind, ends_the_start: bool, ends_a_record: bool) -> None:
    problem = AwsAccess("kinesis", OPTIONS, None).problem(code, "because", "write to x")
    assert problem.kind is kind
    assert problem.sentence.startswith(f"can't write to x: {code}")
    assert isinstance(problem.at_connect(), TerminalDeliveryError if ends_the_start else TransientDeliveryError)
    assert isinstance(problem.at_send(), TerminalDeliveryError if ends_a_record else TransientDeliveryError)


def test_no_sentence_holds_a_secret() -> None:
    access = AwsAccess("kinesis", OPTIONS, None)
    told = [
        access.problem("SignatureDoesNotMatch", "the canonical string is 'x-amz-security-token:t0ken'", "write"),
        access.problem("AccessDenied", "AKIA1 with t0ken and s3cr3t\nmay not", "write"),
        access.explain(OSError("s3cr3t"), "write"),
        access.explain(ValueError("s3cr3t"), "write"),
    ]
    for problem in told:
        assert not {"AKIA1", "s3cr3t", "t0ken"} & set(problem.sentence.replace("'", " ").replace(":", " ").split())
    assert "s3cr3t" not in repr(access) + str(vars(type(access)))
    assert access.problem("X", "long " * 1000, "write").sentence.endswith("…")


def test_calls_are_by_destination_in_order_and_within_the_limits() -> None:
    entries = [make_entry(number, "ab"[number % 3 == 0], size=40 if number == 7 else 10) for number in range(20)]
    calls = to_calls(entries, max_entries=4, max_bytes=45)
    for call in calls:
        assert len(call.entries) <= 4
        assert sum(entry.size_bytes for entry in call.entries) <= 45
        assert {entry.destination for entry in call.entries} == {call.destination}
    for destination in "ab":
        sent = [entry for call in calls if call.destination == destination for entry in call.entries]
        assert sent == [entry for entry in entries if entry.destination == destination]
    assert len(to_calls([make_entry(0, size=100)], 4, 45)) == 1, "one that is too large is for the service to refuse"


class Service:
    """RefusedEntries calls from a script, and notes them."""

    def __init__(self, refuses: dict[int, Problem] | None = None, poison: int | None = None) -> None:
        self.refuses = refuses or {}
        self.poison = poison
        self.calls: list[list[int]] = []

    async def put(self, call: AwsCall) -> dict[int, Problem] | Problem:
        numbers = [entry.body["n"] for entry in call.entries]
        self.calls.append(numbers)
        await asyncio.sleep(0)
        if self.poison in numbers:
            return Problem(Kind.INVALID, "poison")
        return {place: self.refuses[number] for place, number in enumerate(numbers) if number in self.refuses}

    async def send(self, entries: list[AwsEntry], *, several: bool = False) -> dict[int, str]:
        failures = await send_entries(entries, max_entries=10, max_bytes=10_000, put=self.put, several_destinations=several)
        return {failure.index: str(failure.error) for failure in failures}


async def test_one_that_makes_a_call_invalid_is_found_and_the_others_are_sent() -> None:
    service = Service(poison=5)
    assert await service.send([make_entry(number) for number in range(10)]) == {5: "poison"}
    stored = [number for call in service.calls if 5 not in call for number in call]
    assert stored == [0, 1, 2, 3, 4, 6, 7, 8, 9]


async def test_an_entry_waits_for_those_of_its_lane_and_fails_with_them() -> None:
    entries = [
        make_entry(0, size=99),
        make_entry(1, turn=1),
        make_entry(2, turn=2),
        make_entry(3, "b", size=99),
        make_entry(4, "b", turn=1),
    ]
    service = Service()
    assert await service.send(entries) == {}
    assert service.calls == [[0], [3], [1], [4], [2]]
    service = Service({0: Problem(Kind.THROTTLED, "slow down")})
    failed = await service.send(entries)
    assert failed == {
        0: "slow down",
        1: "waits for an earlier record of its key: slow down",
        2: "waits for an earlier record of its key: slow down",
    }
    assert service.calls == [[0], [3], [4]]
