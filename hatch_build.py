"""Compiles the one hot loop that is written in Cython, where there is a C compiler; without one the package is whole, and slower.

TARDIS_MACHINE_COMPILED=1 in the environment makes it an error where there is none, =0 leaves compiling out.
"""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/tardis_machine/eventbus/_sealing.pyx")


class CompileHook(BuildHookInterface[Any]):
    """Runs around the build of a wheel, an editable one included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, and has the wheel take what came of it; an editable one finds it beside its source."""
        self._made = TemporaryDirectory()
        source = Path(self.root, SOURCE)
        if version == "editable":
            for stale in (*source.parent.glob("*.so"), *source.parent.glob("*.pyd")):
                stale.unlink()
        wanted = os.environ.get("TARDIS_MACHINE_COMPILED", "")
        if wanted == "0":
            return
        try:
            compiled = _compile(source, Path(self._made.name))
        except (Exception, SystemExit) as error:
            if wanted:
                raise
            self.app.display_warning(f"{SOURCE} is not compiled, so that Python alone encodes events, more slowly: {error}")
            return
        if version == "editable":
            copy(compiled, source.parent)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(compiled)] = f"tardis_machine/eventbus/{compiled.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what the wheel has by now."""
        self._made.cleanup()


def _compile(source: Path, folder: Path) -> Path:
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    extension = Extension("tardis_machine.eventbus._sealing", [str(source)], extra_compile_args=["-O3"])
    modules = cythonize(extension, build_dir=str(folder / "c"), quiet=True)
    command: Any = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.ensure_finalized()
    command.run()
    (compiled,) = (folder / "lib").rglob("_sealing.*")
    return compiled
