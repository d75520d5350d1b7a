"""Compiles the hot loops that are written in Cython, where there is a C compiler; without one the package is whole, and slower.

TARDIS_MACHINE_COMPILED=1 in the environment makes it an error where there is none, =0 leaves compiling out.
"""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("src/tardis_machine")


class CompileHook(BuildHookInterface[Any]):
    """Runs around the build of a wheel, an editable one included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, and has the wheel take what came of it; an editable one finds it beside its source."""
        self._made = TemporaryDirectory()
        package = Path(self.root, PACKAGE)
        if version == "editable":
            for stale in (*package.rglob("*.so"), *package.rglob("*.pyd")):
                stale.unlink()
        wanted = os.environ.get("TARDIS_MACHINE_COMPILED", "")
        if wanted == "0":
            return
        try:
            compiled = _compile(package, Path(self._made.name))
        except (Exception, SystemExit) as error:
            if wanted:
                raise
            self.app.display_warning(
                f"{', '.join(_sources(package))} are not compiled, so that Python alone does their work, more slowly: {error}"
            )
            return
        if version == "editable":
            for place, module in compiled.items():
                copy(module, package / place)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {str(module): f"tardis_machine/{place}" for place, module in compiled.items()}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what the wheel has by now."""
        self._made.cleanup()


def _sources(package: Path) -> list[str]:
    """All there are, by their places in the package."""
    return sorted(str(source.relative_to(package).as_posix()) for source in package.rglob("*.pyx"))


def _compile(package: Path, folder: Path) -> dict[str, Path]:
    """By the place in the package that each belongs to."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    extensions = [
        Extension(
            f"tardis_machine.{source.removesuffix('.pyx').replace('/', '.')}", [str(package / source)], extra_compile_args=["-O3"]
        )
        for source in _sources(package)
    ]
    modules = cythonize(extensions, build_dir=str(folder / "c"), quiet=True)
    command: Any = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.ensure_finalized()
    command.run()
    made = folder / "lib" / "tardis_machine"
    return {str(module.relative_to(made).as_posix()): module for module in made.rglob("*") if module.is_file()}
