"""Where a lake lies: a folder, or an object store.

Invariant: which of the two it is, is decided here, once, by the path; everybody else uses what `contract` declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ...errors import LakeError
from .contract import Storage, StoredTable
from .folder import Folder
from .object_store import ObjectStore

__all__ = ["Folder", "ObjectStore", "Storage", "StoredTable", "open_storage"]

_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


def open_storage(path: str | Path, options: Mapping[str, str] = _NO_OPTIONS) -> Storage:
    """The storage in a folder, or at a URI; LakeError where it can't be one, or where it takes other options."""
    text = str(path).removeprefix("file://")
    if "://" in text:
        return ObjectStore.at(text, options)
    if options:
        raise LakeError(f"--lake-option {next(iter(options))} is for a lake in an object store, and {text} is a folder")
    return Folder(str(Path(text).expanduser().absolute()))
