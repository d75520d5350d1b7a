"""What is on disk when the power goes: only what was synced, in folders whose names were."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


class Disk:
    """Knows what every fsync of this process, and every write to a file that is synced at once, made durable below a folder."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.at_sync: list[Callable[[Path], None]] = []
        """Called with each path before it is synced."""
        # What a file held when it was synced last, by its number; and which file a name in a folder meant.
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._fsync = os.fsync
        self._write = os.write
        self.settle()
        patch.setattr(os, "fsync", self._note)
        patch.setattr(os, "fdatasync", self._note)
        patch.setattr(os, "write", self._note_write)

    def settle(self) -> None:
        """Everything that is there now was so long ago that it is on disk."""
        for path in (self.folder.parent, self.folder, *self.folder.rglob("*")):
            self._take(path)

    def _note(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        for look in self.at_sync:
            look(path)
        self._fsync(fd)
        self._take(path)

    def _note_write(self, fd: int, data: bytes) -> int:
        written = self._write(fd, data)
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC:
            self._take(Path(f"/proc/self/fd/{fd}").readlink())
        return written

    def _take(self, path: Path) -> None:
        if path.is_dir():
            self._names[path] = {name.name: name.stat().st_ino for name in path.iterdir()}
        else:
            self._contents[path.stat().st_ino] = path.read_bytes()

    def holds(self, path: Path) -> bool:
        """Whether a file would be there in full."""
        places = (path, *path.parents)
        named = all(self._names.get(place.parent, {}).get(place.name) == place.stat().st_ino for place in self._below(places))
        return named and self._contents.get(path.stat().st_ino) == path.read_bytes()

    def _below(self, places: tuple[Path, ...]) -> list[Path]:
        return [place for place in places if place.is_relative_to(self.folder)]

    def after_power_cut(self, target: Path) -> Path:
        """A folder as it would be found; a file that was never synced is empty."""
        self._copy(self.folder, target)
        return target

    def _copy(self, source: Path, target: Path) -> None:
        target.mkdir()
        for name, inode in self._names.get(source, {}).items():
            if (source / name).is_dir():
                self._copy(source / name, target / name)
            else:
                (target / name).write_bytes(self._contents.get(inode, b""))
