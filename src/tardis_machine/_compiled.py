"""Which modules run compiled, and which as Python.

The build compiles two kinds of modules. Some are compiled as they are, from the text that also runs as Python: all of `exchanges`,
what encodes the rarer events, and what is done around the books of `computed`. A few are written in Cython: `NAME_compiled.pyx` does
faster what is frequent in the Python module `NAME.py` beside it, which is the definition, and takes the compiled functions over by
`import *`. What was compiled is in the folder `__compiled__`, in files that are named after their module and a hash of the text that
it was compiled from.

Invariant: a module runs compiled only where its text is the one that was compiled. Whoever edits it runs Python at once, until it is
compiled again. TARDIS_MACHINE_COMPILED=0 in the environment makes everything run as Python.

Imports nothing of ours: `hatch_build.py` loads it too, without the package around it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import source_hash, spec_from_file_location
from pathlib import Path
from types import ModuleType

__all__ = ["FOLDER", "CompiledFinder", "file_name", "sources"]

FOLDER = "__compiled__"
_PATTERNS = (
    "**/*_compiled.pyx",
    "exchanges/**/*.py",
    "bronze/payloads.py",
    "bronze/wire.py",
    "computed/bucket.py",
    "pipeline/current_state.py",
)
_DECLARATIONS = ("_declarations.pxd", "_book.pxd", "computed/order_book_compiled.pxd")
"""What modules that are written in Cython share; a change of it is one of theirs."""


def sources(package: Path) -> dict[str, Path]:
    """The files that are compiled, by the names that their modules have within the package."""
    found = [file for pattern in _PATTERNS for file in package.glob(pattern) if file.name != "__init__.py"]
    return {".".join(file.relative_to(package).with_suffix("").parts): file for file in sorted(found)}


def file_name(package: Path, name: str, source: Path) -> str:
    """What a module is called in `__compiled__` that was compiled from what its file holds now."""
    text = source.read_bytes()
    if source.suffix == ".pyx":
        text += b"".join(package.joinpath(*name.split("/")).read_bytes() for name in _DECLARATIONS)
    return f"{name}-{source_hash(text).hex()}{EXTENSION_SUFFIXES[0]}"


class _CompiledLoader(ExtensionFileLoader):
    """Loads a compiled module; tracebacks show the lines of its text."""

    def __init__(self, name: str, path: str, source: Path) -> None:
        super().__init__(name, path)
        self._source = source

    def get_source(self, fullname: str) -> str:  # type: ignore[override]
        return self._source.read_text(encoding="utf-8")


class CompiledFinder(MetaPathFinder):
    """Finds the compiled modules of a package, before Python looks for their text."""

    def __init__(self, name: str, folder: Path) -> None:
        self._folder = folder
        try:
            self._files = frozenset(file.name for file in folder.joinpath(FOLDER).iterdir())
        except OSError:
            # Nothing was compiled, or the package is in an archive.
            self._files = frozenset()
        self._names = frozenset(f"{name}.{file.partition('-')[0]}" for file in self._files)

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where the module is compiled; None where Python is to look for its text."""
        if fullname not in self._names or os.environ.get("TARDIS_MACHINE_COMPILED") == "0":
            return None
        name = fullname.partition(".")[2]
        source = self._folder.joinpath(*name.split(".")).with_suffix(".pyx" if name.endswith("_compiled") else ".py")
        try:
            file = file_name(self._folder, name, source)
        except OSError:
            # Somebody left the text out.
            return None
        if file not in self._files:
            return None
        location = str(self._folder / FOLDER / file)
        return spec_from_file_location(fullname, location, loader=_CompiledLoader(fullname, location, source))


if __package__:
    sys.meta_path.insert(0, CompiledFinder(__package__, Path(__file__).parent))
