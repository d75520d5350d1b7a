"""The options of sources: each source declares the ones that it reads of its bus, with their types.

Invariant: a checkpoint's name depends on `identity`, so what that writes of an option must not change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from ...settings import Settings

__all__ = ["AwsSourceOptions", "SourceOptions"]


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Fields have the names that `Settings.for_bus` gives. Equal options are the same source; workers get a copy."""

    @classmethod
    def from_settings(cls, settings: Settings, bus: str) -> Self:
        """The options of a bus; SettingsError where it is off."""
        given = settings.for_bus(bus)
        return cls(**{name: given[name] for name in cls.__struct_fields__})

    def __repr__(self) -> str:
        """Without values, as some are secret."""
        return f"{type(self).__name__}(…)"

    def to_mapping(self) -> dict[str, Any]:
        """As the modules of buses take them."""
        return msgspec.structs.asdict(self)

    def identity(self, *names: str) -> str:
        """What tells a source apart: some of its options, without passwords."""
        from ...settings.option import mask

        given = {name: getattr(self, name) for name in names}
        return json.dumps({name: mask(str(value)) for name, value in given.items() if value is not None}, sort_keys=True)


class AwsSourceOptions(SourceOptions, frozen=True, kw_only=True):
    """Where a service of AWS is, and who asks."""

    routing: Mapping[str, str] | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    endpoint_url: str | None = None
    ca_bundle: Path | None = None
    request_timeout: float = 15.0
