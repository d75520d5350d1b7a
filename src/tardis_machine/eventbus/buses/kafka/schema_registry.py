"""The schema registry: the id of the Bronze schema under the subject of each topic, and the frame that says it in front of a value.

Invariant: a frame is the magic byte 0, the id in four bytes, and the path of NormalizedEvent in its file; nothing is asked for a
record, only for a topic.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ....errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError

__all__ = ["SchemaRegistry", "encode_frame", "subject_of"]

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 1024 * 1024


def subject_of(topic: str) -> str:
    """TopicNameStrategy: a subject for the values of each topic."""
    return f"{topic}-value"


def encode_frame(schema_id: int) -> bytes:
    """What stands in front of a value; NormalizedEvent is the first message of its file, which is written as one zero byte."""
    return b"\x00" + schema_id.to_bytes(4, "big") + b"\x00"


class SchemaRegistry:
    """The registry at `url`; a schema that it lacks is registered, unless `registers` says only to look."""

    def __init__(self, url: str, *, username: str | None, password: str | None, registers: bool) -> None:
        parts = urlsplit(url)
        address = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, address, parts.path.rstrip("/"), "", ""))
        self._username = username or (parts.username and unquote(parts.username))
        self._password = password or (parts.password and unquote(parts.password))
        self._registers = registers

    async def fetch_frames(self, topics: Iterable[str]) -> dict[str, bytes]:
        """The frame of each topic's values."""
        import aiohttp

        headers = {"Accept": _CONTENT_TYPE}
        if self._username is not None:
            login = f"{self._username}:{self._password or ''}"
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        try:
            async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
                return {topic: encode_frame(await self._fetch_id(session, subject_of(topic))) for topic in topics}
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise TransientDeliveryError(f"the schema registry at {self._url} can't be reached: {reason}") from error

    async def _fetch_id(self, session: Any, subject: str) -> int:
        path = f"{self._url}/subjects/{quote(subject, safe='')}"
        body = {"schemaType": "PROTOBUF", "schema": _schema_text()}
        async with session.post(f"{path}/versions" if self._registers else path, json=body) as response:
            answer = await _read_json(response)
            if response.status == 200 and isinstance(answer.get("id"), int):
                return cast(int, answer["id"])
            raise self._to_error(response.status, str(answer.get("message", "")).strip(), subject)

    def _to_error(self, status: int, message: str, subject: str) -> DeliveryError:
        said = f"the schema registry at {self._url} answered {status}" + (f" ({message})" if message else "")
        if status in (401, 403):
            said += ": see --kafka-schema-registry-username and --kafka-schema-registry-password"
            return TerminalDeliveryError(said)
        if status == 404 and not self._registers:
            return TerminalDeliveryError(f"{said}: subject {subject} lacks the schema, and --kafka-schema-register is off")
        if status == 409:
            return TerminalDeliveryError(f"{said}: the schema does not go with those that subject {subject} has")
        if 400 <= status < 500 and status not in (408, 429):
            return TerminalDeliveryError(f"{said} for subject {subject}: see --kafka-schema-registry-url")
        return TransientDeliveryError(f"{said} for subject {subject}")


async def _read_json(response: Any) -> dict[str, Any]:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > _MAX_ANSWER_BYTES:
            return {}
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _schema_text() -> str:
    """The file's descriptor in base64, which registries take for its source; they know Google's own types."""
    from ....generated.lakehouse.bronze.v1 import normalized_event_pb2

    return base64.b64encode(normalized_event_pb2.DESCRIPTOR.serialized_pb).decode()
