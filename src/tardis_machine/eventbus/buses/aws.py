"""What the buses at Amazon share: options, credentials, the client, calls cut to their limits, and what errors mean.

Invariant: no text made here holds a key, a token or a signature.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from importlib.util import find_spec
from typing import Any

import msgspec

from ...errors import DeliveryError, MissingExtraError, SettingsError, TerminalDeliveryError, TransientDeliveryError
from ...settings import Option, duration, path, text, url
from ..contract import Failure, Record

__all__ = ["AwsAccess", "AwsCall", "AwsClient", "AwsEntry", "Kind", "Problem", "aws_options", "send_entries", "with_later_ones"]

_CONNECT_TIMEOUT_S = 5.0
_MESSAGE_LENGTH = 300


def aws_options(prefix: str) -> tuple[Option, ...]:
    """Region, credentials and endpoint, as `--{prefix}-…`."""

    def option(name: str, help_: str, *, alias: str = "", **fields: Any) -> Option:
        aliases = (f"{prefix}-{alias}",) if alias else ()
        return Option(name=f"{prefix}-{name}", help=help_, group=prefix, aliases=aliases, **fields)

    chain = "by default from the usual AWS chain (environment, profile, role)"
    return (
        option("region", f"AWS region; {chain}", parse=text(), metavar="REGION"),
        option("access-key-id", f"AWS access key; {chain}", alias="access-key", parse=text(), metavar="KEY", secret=True),
        option(
            "secret-access-key", "Secret of the AWS access key", alias="secret-key", parse=text(), metavar="SECRET", secret=True
        ),
        option("session-token", "Session token of temporary credentials", parse=text(), metavar="TOKEN", secret=True),
        option("endpoint-url", "URL of the service, if it is not AWS itself", parse=url("http", "https")),
        option("ca-bundle", "File of certificates (PEM) to trust; AWS_CA_BUNDLE does the same", parse=path),
        option("request-timeout", "How long one request may take", parse=duration(0.05, 300), default=15.0),
    )


class Kind(Enum):
    """What an error of the service asks for."""

    THROTTLED = "too much at once: what it concerns waits"
    BROKEN = "may pass: the network, the service, or what is not known here"
    EXPIRED = "who we were: credentials are looked for again"
    CREDENTIALS = "who we are: not one the service knows"
    FORBIDDEN = "what we may: not this"
    MISSING = "there is no such destination"
    INVALID = "this request will never do"


_CODES: Mapping[Kind, str] = {
    Kind.THROTTLED: """
        ProvisionedThroughputExceededException LimitExceededException ThrottlingException Throttling ThrottledException
        RequestThrottled RequestThrottledException RequestLimitExceeded TooManyRequestsException OverLimit SlowDown
        KMSThrottlingException KmsThrottled KMS.ThrottlingException BandwidthLimitExceeded""",
    Kind.EXPIRED: "ExpiredToken ExpiredTokenException RequestExpired",
    Kind.CREDENTIALS: """
        UnrecognizedClientException InvalidClientTokenId InvalidAccessKeyId
        InvalidSignatureException SignatureDoesNotMatch IncompleteSignature IncompleteSignatureException AuthFailure
        MissingAuthenticationToken MissingAuthenticationTokenException NotAuthorized""",
    Kind.FORBIDDEN: """
        AccessDenied AccessDeniedException AuthorizationError UnauthorizedOperation OptInRequired InvalidSecurity
        KMSAccessDeniedException KmsAccessDenied KMS.AccessDeniedException""",
    Kind.MISSING: "ResourceNotFoundException QueueDoesNotExist NonExistentQueue InvalidAddress",
    Kind.INVALID: """
        ValidationException ValidationError InvalidArgumentException InvalidParameterValue InvalidParameterException
        InvalidParameterCombination MissingParameter InvalidMessageContents InvalidAttributeName InvalidAttributeValue
        BatchRequestTooLong TooManyEntriesInBatchRequest EmptyBatchRequest InvalidBatchEntryId BatchEntryIdsNotDistinct
        MessageTooLong UnsupportedOperation SerializationException RequestEntityTooLarge 413""",
}
_KINDS = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
# Its text may be the request as the service signed it, token and all.
_TELLS_TOO_MUCH = ("InvalidSignatureException", "SignatureDoesNotMatch", "IncompleteSignature", "IncompleteSignatureException")


class Problem(msgspec.Struct, frozen=True):
    """Why a request, or one entry of it, was not done."""

    kind: Kind
    sentence: str

    def at_connect(self) -> DeliveryError:
        """As the bus's start takes it: what will not pass by itself is Terminal."""
        will_pass = self.kind in (Kind.THROTTLED, Kind.BROKEN, Kind.EXPIRED)
        return TransientDeliveryError(self.sentence) if will_pass else TerminalDeliveryError(self.sentence)

    def at_send(self) -> DeliveryError:
        """As a record's delivery takes it: credentials can be renewed while records wait."""
        is_final = self.kind in (Kind.FORBIDDEN, Kind.MISSING, Kind.INVALID)
        return TerminalDeliveryError(self.sentence) if is_final else TransientDeliveryError(self.sentence)


class AwsAccess:
    """Where a service is and who we are there."""

    def __init__(self, bus: str, options: Mapping[str, Any], region: str | None, endpoint_url: str | None = None) -> None:
        """`region` and `endpoint_url` are what a destination says of itself; options come first."""
        if find_spec("aiobotocore") is None:
            raise MissingExtraError(f"the {bus} bus", "aws")
        self._bus = bus
        self._keys = {name: options[name] for name in ("access_key_id", "secret_access_key", "session_token") if options[name]}
        self._ca_bundle = options["ca_bundle"]
        self._endpoint_url = options["endpoint_url"] or endpoint_url
        self.request_timeout_s: float = options["request_timeout"]
        self.region: str | None = options["region"] or region or _region_of_chain()
        problems = self._problems()
        if problems:
            raise SettingsError(problems)

    def _problems(self) -> list[str]:
        problems = []
        if self.region is None:
            problems.append(f"--{self._bus}-region is required, as neither AWS_REGION nor a profile names a region")
        if self._keys and not {"access_key_id", "secret_access_key"} <= self._keys.keys():
            flags = {name: f"--{self._bus}-{name.replace('_', '-')}" for name in ("access_key_id", "secret_access_key")}
            missing = " and ".join(flag for name, flag in flags.items() if name not in self._keys)
            given = next(iter(self._keys)).replace("_", "-")
            problems.append(f"--{self._bus}-{given} needs {missing}")
        if self._ca_bundle is not None and not self._ca_bundle.is_file():
            problems.append(f"--{self._bus}-ca-bundle: {str(self._ca_bundle)!r} is not a file")
        return problems

    def client_options(self, connections: int) -> dict[str, Any]:
        """As the client library takes them."""
        from aiobotocore.config import AioConfig

        config = AioConfig(
            # The publisher tries again, in order and within its bounds.
            retries={"total_max_attempts": 1},
            connect_timeout=min(_CONNECT_TIMEOUT_S, self.request_timeout_s),
            read_timeout=self.request_timeout_s,
            max_pool_connections=connections,
            parameter_validation=False,
        )
        return {
            "region_name": self.region,
            "endpoint_url": self._endpoint_url,
            "verify": None if self._ca_bundle is None else str(self._ca_bundle),
            "config": config,
            **{f"aws_{name}": value for name, value in self._keys.items()},
        }

    def explain(self, error: Exception, doing: str) -> Problem:
        """What an exception of the client means; `doing` says what was asked for: `describe the stream x`."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            CredentialRetrievalError,
            NoCredentialsError,
            PartialCredentialsError,
            SSLError,
        )

        if isinstance(error, ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            found = error.response.get("Error", {})
            return self.problem(str(found.get("Code") or status), str(found.get("Message") or ""), doing)
        if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError):
            flags = f"--{self._bus}-access-key-id and --{self._bus}-secret-access-key"
            return Problem(Kind.CREDENTIALS, f"no AWS credentials were found to {doing}: give {flags}, or a profile or role")
        if isinstance(error, SSLError):
            return Problem(Kind.CREDENTIALS, f"can't {doing}: its certificate is not trusted: {self._tidy(str(error))}")
        if isinstance(error, BotoCoreError | OSError):
            return Problem(Kind.BROKEN, f"can't {doing}: {self._tidy(str(error)) or type(error).__name__}")
        return Problem(Kind.BROKEN, f"can't {doing}: {type(error).__name__}: {self._tidy(str(error))}")

    def problem(self, code: str, message: str, doing: str) -> Problem:
        """What an error of the service means, of a whole request or of one entry."""
        kind = _KINDS.get(code.rpartition("AWS.SimpleQueueService.")[2], Kind.BROKEN)
        detail = "" if code in _TELLS_TOO_MUCH else self._tidy(message)
        if code == "RequestEntityTooLarge" or not detail:
            return Problem(kind, f"can't {doing}: {code}")
        return Problem(kind, f"can't {doing}: {code}: {detail}")

    def _tidy(self, message: str) -> str:
        """Its first line, without secrets."""
        line = message.strip().partition("\n")[0]
        for secret in self._keys.values():
            line = line.replace(secret, "***")
        return line if len(line) <= _MESSAGE_LENGTH else f"{line[:_MESSAGE_LENGTH]}…"


def _region_of_chain() -> str | None:
    found = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if found:
        return found
    from botocore.session import Session

    region: str | None = Session().get_config_variable("region")
    return region


def _keep_quiet() -> None:
    """The client's debug lines hold session tokens and signed requests."""
    for name in ("botocore", "aiobotocore"):
        logger = logging.getLogger(name)
        if logger.getEffectiveLevel() < logging.INFO:
            logger.setLevel(logging.INFO)


class AwsClient:
    """One service, whose calls give an answer or a Problem: `await client.call("put_records", "write to x", StreamName=…)`."""

    def __init__(self, access: AwsAccess, service: str, connections: int) -> None:
        self._access = access
        self._service = service
        self._connections = connections
        self._stack: AsyncExitStack | None = None
        self._client: Any = None
        self._is_stale = False

    async def open(self) -> None:
        """Cheap where it is open already, unless its credentials turned out to be of no use: then they are looked for again."""
        if self._is_stale:
            await self.close()
        if self._stack is None:
            from aiobotocore.session import AioSession

            _keep_quiet()
            stack = AsyncExitStack()
            options = self._access.client_options(self._connections)
            self._client = await stack.enter_async_context(AioSession().create_client(self._service, **options))
            self._stack = stack
            self._is_stale = False

    async def call(self, operation: str, doing: str, **parameters: Any) -> Mapping[str, Any] | Problem:
        """`doing` is for the Problem's sentence."""
        try:
            answer: Mapping[str, Any] = await getattr(self._client, operation)(**parameters)
        except Exception as error:  # what the client raises has no common base
            problem = self._access.explain(error, doing)
            self._is_stale = self._is_stale or problem.kind in (Kind.EXPIRED, Kind.CREDENTIALS)
            return problem
        return answer

    async def close(self) -> None:
        """Ends connections."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()


class AwsEntry(msgspec.Struct, gc=False):
    """What one entry of a call carries, and which records of the batch that is."""

    destination: str
    body: dict[str, Any]
    size_bytes: int
    """What the service counts."""
    indexes: Sequence[int]
    turn: int = 0
    """How many entries of its lane come before it: it is sent when they are confirmed, and fails when one of them fails."""
    lane: tuple[str, str] | None = None
    """Where entries have turns."""


class AwsCall(msgspec.Struct):
    """Entries that fit into one request."""

    destination: str
    entries: Sequence[AwsEntry]


RefusedEntries = Mapping[int, Problem]
"""The entries of a call that were refused, by their place in it."""


async def send_entries(
    entries: Iterable[AwsEntry],
    *,
    max_entries: int,
    max_bytes: int,
    put: Callable[[AwsCall], Awaitable[RefusedEntries | Problem]],
    several_destinations: bool,
) -> list[Failure]:
    """Sends entries in as few calls as they fit into, at once but for turns. `put` returns a Problem where a call failed."""
    import asyncio

    turns: dict[int, list[AwsEntry]] = {}
    for entry in entries:
        turns.setdefault(entry.turn, []).append(entry)
    failures: list[Failure] = []
    stopped: dict[tuple[str, str] | None, Failure] = {}

    def fail(entry: AwsEntry, problem: Problem, *, is_local: bool) -> None:
        failure = Failure(0, problem.at_send(), is_local)
        failures.extend(Failure(index, failure.error, is_local) for index in entry.indexes)
        if entry.lane is not None:
            stopped[entry.lane] = failure

    async def send(call: AwsCall) -> None:
        answers = await put(call)
        if not isinstance(answers, Problem):
            for place, problem in answers.items():
                fail(call.entries[place], problem, is_local=True)
        elif answers.kind is Kind.INVALID and len(call.entries) > 1:
            # Nothing of it was stored, and one entry may be to blame.
            middle = len(call.entries) // 2
            await send(AwsCall(call.destination, call.entries[:middle]))
            await send(AwsCall(call.destination, call.entries[middle:]))
        else:
            is_local = several_destinations and answers.kind not in (Kind.BROKEN, Kind.EXPIRED, Kind.CREDENTIALS)
            for entry in call.entries:
                fail(entry, answers, is_local=is_local)

    for turn in sorted(turns):
        going: list[AwsEntry] = []
        for entry in turns[turn]:
            before = stopped.get(entry.lane) if turn else None
            if before is None:
                going.append(entry)
            else:
                waits = TransientDeliveryError(f"waits for an earlier record of its key: {before.error}")
                failures.extend(Failure(index, waits, before.is_local) for index in entry.indexes)
        calls = to_calls(going, max_entries, max_bytes)
        if len(calls) == 1:
            await send(calls[0])
        else:
            await asyncio.gather(*map(send, calls))
    return failures


def with_later_ones(batch: Sequence[Record], failures: Sequence[Failure]) -> list[Failure]:
    """Failures, and with each that may pass all later records of its lane: stored or not, they are to come behind it."""
    found = {failure.index: failure for failure in failures}
    waiting: dict[tuple[str, str], Failure] = {}
    for index, record in enumerate(batch):
        failure, before = found.get(index), waiting.get(record.route.lane)
        if failure is None and before is not None:
            error = TransientDeliveryError(f"is sent again behind an earlier record of its key: {before.error}")
            found[index] = Failure(index, error, before.is_local)
        elif failure is not None and isinstance(failure.error, TransientDeliveryError):
            waiting.setdefault(record.route.lane, failure)
    return [found[index] for index in sorted(found)]


def to_calls(entries: Iterable[AwsEntry], max_entries: int, max_bytes: int) -> list[AwsCall]:
    """Entries by destination, in their order, cut at the limits of one call."""
    calls: list[AwsCall] = []
    open_calls: dict[str, tuple[list[AwsEntry], int]] = {}
    for entry in entries:
        members, size_bytes = open_calls.get(entry.destination, ([], 0))
        if not members or len(members) >= max_entries or size_bytes + entry.size_bytes > max_bytes:
            members, size_bytes = [], 0
            calls.append(AwsCall(entry.destination, members))
        members.append(entry)
        open_calls[entry.destination] = (members, size_bytes + entry.size_bytes)
    return calls
