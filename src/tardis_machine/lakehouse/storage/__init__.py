"""Where a lake lies: a folder, or an object store.

Invariant: which of the two it is, is decided here, once, by the path; everybody else uses what `contract` declares.
"""

from __future__ import annotations

from pathlib import Path

from .contract import DirectStorage, Storage, StoredTable
from .folder import Folder
from .object_store import ObjectStore

__all__ = ["DirectStorage", "Folder", "ObjectStore", "Storage", "StoredTable", "open_storage"]


def open_storage(path: str | Path) -> Storage:
    """The storage in a folder, or at a URI."""
    text = str(path)
    return ObjectStore(text.rstrip("/")) if "://" in text else Folder(str(Path(text).expanduser().absolute()))
