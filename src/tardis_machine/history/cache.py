"""Slices on disk, in the layout that the Node and Python clients of the history API share.

    {cache_dir}/feeds/{exchange}/{sha256 of the filters}/{YYYY}/{MM}/{DD}/{HH}/{mm}[.size-{k}].json.{zst|gz}

Invariant: a file under its final name was complete when it got that name; anything else in the folders is not looked at. What is
made here is this user's alone: folders 0700, files 0600.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from msgspec import UNSET

from ..errors import CacheError, OptionsError
from ..filters import Filter, to_compact_json
from ..settings.defaults import cache_dir as default_cache_dir
from .slice import MINUTE_US, Encoding, to_datetime

__all__ = ["CachedFile", "FeedCache", "check_exchange", "clear_cache", "make_folder", "node_cache_dir", "write_private"]

HOUR_US = 60 * MINUTE_US

_EXCHANGE = re.compile(r"[a-z0-9-]+")
_FILE_NAME = re.compile(r"([0-5]\d)(?:\.size-([1-9]\d{0,3}))?\.json\.(zst|gz)")

_ENCODINGS: tuple[Encoding, ...] = ("zst", "gz")
"""The preferred one first."""

_STORE_ATTEMPTS = 10


def node_cache_dir() -> Path:
    """Where the Node client keeps its cache unless told otherwise: a folder that all users of the system share."""
    return Path(tempfile.gettempdir()) / ".tardis-cache"


def clear_cache(cache_dir: Path | str | None = None) -> None:
    """Removes all cached slices; the folder itself and whatever else lies in it stay. What a link points to is never touched.

    Without a folder it is the one that replays use by default.
    """
    feeds = Path(default_cache_dir(os.environ) if cache_dir is None else cache_dir) / "feeds"
    try:
        folder = os.open(feeds, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        problem = "it is a link, and links are not followed" if feeds.is_symlink() else error.strerror
        raise CacheError(f"the cache in {feeds} can't be cleared: {problem}") from error
    try:
        # By names within the open folder, so that it can't be exchanged for a link meanwhile.
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            _remove_entry(name, folder)
    except OSError as error:
        raise CacheError(f"the cache in {feeds} can't be cleared: {error.filename or feeds}: {error.strerror}") from error
    finally:
        os.close(folder)


def _remove_entry(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


def check_exchange(exchange: str) -> str:
    """The name, when it is one that may stand in a path and a URL."""
    if not _EXCHANGE.fullmatch(exchange):
        raise OptionsError(f"exchange: expected a name of lower-case letters, digits and dashes, got {exchange!r}", "exchange")
    return exchange


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file under its final name, and the minutes that its name says it covers."""

    start_us: int
    minutes: int
    encoding: Encoding
    path: str

    @property
    def end_us(self) -> int:
        return self.start_us + self.minutes * MINUTE_US


class FeedCache:
    """The cached files of one exchange and one set of filters. Synchronous: call it in a thread.

    What can't be read counts as not cached; what can't be written raises OSError and leaves nothing behind.
    """

    def __init__(self, cache_dir: Path, exchange: str, filters: tuple[Filter, ...]) -> None:
        """`filters` are optimized ones."""
        self._feeds = cache_dir / "feeds"
        feed = self._feeds / check_exchange(exchange)
        spellings = dict.fromkeys((to_compact_json(filters), _python_client_json(filters)))
        self._folders = [feed / hashlib.sha256(spelling).hexdigest() for spelling in spellings]

    @property
    def folder(self) -> Path:
        """Where slices are written; one of its kind for these filters."""
        return self._folders[0]

    def to_path(self, start_us: int, minutes: int, encoding: Encoding) -> str:
        """Where these minutes are written."""
        return f"{self.folder}/{_to_name(start_us, minutes)}.{encoding}"

    def find(self, start_us: int, minutes: int) -> CachedFile | None:
        """The file of exactly these minutes."""
        name = _to_name(start_us, minutes)
        for encoding in _ENCODINGS:
            for folder in self._folders:
                path = folder / f"{name}.{encoding}"
                with suppress(OSError):
                    if path.is_file():
                        return CachedFile(start_us, minutes, encoding, str(path))
        return None

    def list_hour(self, hour_us: int) -> list[CachedFile]:
        """All files that begin within this hour."""
        return [
            file for folder in self._folders for file in _list_folder(folder / f"{to_datetime(hour_us):%Y/%m/%d/%H}", hour_us)
        ]

    def store(self, start_us: int, minutes: int, encoding: Encoding, data: bytes) -> str:
        """Writes a slice under a name of its own, then gives it the final one; returns its path."""
        path = Path(self.to_path(start_us, minutes, encoding))
        for _ in range(_STORE_ATTEMPTS - 1):
            # A clean-up elsewhere may take the folder away while it is still empty, also between two looks of mkdir.
            with suppress(FileNotFoundError, FileExistsError):
                return write_private(path, data)
        return write_private(path, data)

    def remove(self, *paths: str) -> None:
        """Removes files, and the folders above them that this leaves empty."""
        for file in map(Path, paths):
            with suppress(OSError):
                file.unlink(missing_ok=True)
                for folder in file.parents:
                    if folder == self._feeds:
                        break
                    folder.rmdir()


def write_private(path: Path, data: bytes) -> str:
    """Writes it under a name of its own, then under the final one; returns that."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.unconfirmed")
    try:
        make_folder(path.parent)
        with open(draft, "xb", opener=_open_private) as file:
            file.write(data)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    return str(path)


def make_folder(folder: Path) -> None:
    """Makes it, and those above it that are missing, for this user alone."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _to_name(start_us: int, minutes: int) -> str:
    size = "" if minutes == 1 else f".size-{minutes}"
    return f"{to_datetime(start_us):%Y/%m/%d/%H/%M}{size}.json"


def _list_folder(folder: Path, hour_us: int) -> Iterator[CachedFile]:
    try:
        files = list(folder.iterdir())
    except OSError:
        return
    for file in files:
        if match := _FILE_NAME.fullmatch(file.name):
            minute, size, encoding = match.groups()
            yield CachedFile(hour_us + int(minute) * MINUTE_US, int(size or 1), cast(Encoding, encoding), str(file))


def _python_client_json(filters: tuple[Filter, ...]) -> bytes:
    """The filters as the Python client hashes them: it spells absent symbols as null, and letters beyond ASCII as escapes."""
    spelled = [{"channel": item.channel, "symbols": None if item.symbols is UNSET else list(item.symbols)} for item in filters]
    return json.dumps(spelled, separators=(",", ":")).encode()
