"""Compiles what `src/tardis_machine/_compiled.py` names, where there is a C compiler; without one the package is whole, and slower.

The build of a wheel runs it, and that of an editable one, which compiles in place. `python hatch_build.py` compiles in place what was
changed since, and says nothing where nothing was; `python hatch_build.py check` only tells what that is.
TARDIS_MACHINE_COMPILED=1 in the environment makes a missing compiler an error, =0 leaves compiling out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import chdir
from importlib.util import module_from_spec, source_hash, spec_from_file_location
from pathlib import Path
from shutil import copy, rmtree
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("src/tardis_machine")
# Python's own semantics: annotations are no types of C, and negative indexes count from the end.
_AS_IT_IS = {"language_level": 3, "annotation_typing": False}
# Twice as fast to compile as -O2, and the code as fast: it calls Python's functions, and computes next to nothing itself.
_AS_IT_IS_OPTIONS = ["-O1", "-g0"]
_CYTHON_OPTIONS = ["-O3", "-g0"]


class CompileHook(BuildHookInterface[Any]):
    """Runs around the build of a wheel, an editable one included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, and has the wheel take what came of it; an editable one finds it in its source."""
        self._made = TemporaryDirectory()
        wanted = os.environ.get("TARDIS_MACHINE_COMPILED", "")
        if wanted == "0":
            return
        package = Path(self.root, PACKAGE)
        try:
            if version == "editable":
                compile_in_place(package)
                return
            compiled = _compile(package, Path(self._made.name))
        except (Exception, SystemExit) as error:
            if wanted:
                raise
            self.app.display_warning(f"nothing is compiled, so that Python alone does the work, more slowly: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {str(module): f"tardis_machine/{place}" for place, module in compiled.items()}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what the wheel has by now."""
        self._made.cleanup()


def find_changed(package: Path) -> dict[str, Path]:
    """The sources of modules that were not compiled from what they are now, by name."""
    rules = _rules(package)
    folder = package / rules.FOLDER
    if not _is_made_with(folder):
        return dict(rules.sources(package))
    return {
        name: source
        for name, source in rules.sources(package).items()
        if not folder.joinpath(rules.file_name(package, name, source)).exists()
    }


def compile_in_place(package: Path) -> None:
    """Compiles what was changed, and removes what was compiled of anything else."""
    rules = _rules(package)
    folder = package / rules.FOLDER
    changed = find_changed(package)
    if not _is_made_with(folder):
        rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    folder.joinpath(_MADE_WITH).write_text(_made_with())
    with TemporaryDirectory() as made:
        for place, module in _compile(package, Path(made), changed).items():
            copy(module, package / place)
    current = {rules.file_name(package, name, source) for name, source in rules.sources(package).items()}
    for file in folder.iterdir():
        if file.name not in current and file.name != _MADE_WITH:
            file.unlink()


_MADE_WITH = "made_with"


def _made_with() -> str:
    """What the outcome depends on beside the sources."""
    from Cython import __version__

    return f"Cython {__version__}, hatch_build.py {source_hash(Path(__file__).read_bytes()).hex()}\n"


def _is_made_with(folder: Path) -> bool:
    file = folder / _MADE_WITH
    return file.exists() and file.read_text() == _made_with()


def _rules(package: Path) -> Any:
    """`_compiled`, without the package around it, which needs more than a build has."""
    spec = spec_from_file_location("compiled_rules", package / "_compiled.py")
    assert spec is not None
    assert spec.loader is not None
    rules = module_from_spec(spec)
    spec.loader.exec_module(rules)
    return rules


def _compile(package: Path, folder: Path, sources: Mapping[str, Path] | None = None) -> dict[str, Path]:
    """What came of the sources, all of them where none are named, by the place in the package that each belongs to."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    rules = _rules(package)
    if sources is None:
        sources = rules.sources(package)
    root = package.parent.resolve()
    # Named from there, as in a traceback: Python finds a module's text where it is installed.
    extensions = {
        name: Extension(
            f"{package.name}.{name}",
            [str(source.resolve().relative_to(root))],
            extra_compile_args=_CYTHON_OPTIONS if source.suffix == ".pyx" else _AS_IT_IS_OPTIONS,
        )
        for name, source in sources.items()
    }
    if not extensions:
        return {}
    processors = os.cpu_count() or 1
    _expect_usual_types()
    with chdir(root):
        modules = cythonize(
            [*extensions.values()],
            build_dir=str(folder / "c"),
            compiler_directives=_AS_IT_IS,
            nthreads=processors,
            quiet=True,
        )
        command: Any = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib, command.build_temp, command.parallel = str(folder / "lib"), str(folder / "objects"), processors
        command.ensure_finalized()
        command.run()
    return {
        f"{rules.FOLDER}/{rules.file_name(package, name, sources[name])}": Path(command.get_ext_fullpath(extension.name))
        for name, extension in extensions.items()
    }


_EXPECTED_TYPES = """
static CYTHON_INLINE PyObject *expected_get(PyObject *object, PyObject *key) {
    if (likely(PyDict_CheckExact(object))) return __Pyx_PyDict_GetItemDefault(object, key, Py_None);
    return PyObject_CallMethod(object, "get", "(O)", key);
}
static CYTHON_INLINE PyObject *expected_get_or(PyObject *object, PyObject *key, PyObject *otherwise) {
    if (likely(PyDict_CheckExact(object))) return __Pyx_PyDict_GetItemDefault(object, key, otherwise);
    return PyObject_CallMethod(object, "get", "(OO)", key, otherwise);
}
static PyObject *expected_match(PyObject *text, PyObject *part, int direction) {
    if (likely(PyUnicode_CheckExact(text) && (PyUnicode_CheckExact(part) || PyTuple_CheckExact(part)))) {
        Py_ssize_t place, count = PyTuple_CheckExact(part) ? PyTuple_GET_SIZE(part) : 1, found = 0;
        for (place = 0; place < count && found == 0; place++) {
            PyObject *one = PyTuple_CheckExact(part) ? PyTuple_GET_ITEM(part, place) : part;
            if (!PyUnicode_Check(one)) { found = -2; break; }
            found = PyUnicode_Tailmatch(text, one, 0, PY_SSIZE_T_MAX, direction);
        }
        if (found == -1) return NULL;
        if (found != -2) return __Pyx_PyBool_FromLong(found);
    }
    return PyObject_CallMethod(text, direction < 0 ? "startswith" : "endswith", "(O)", part);
}
static CYTHON_INLINE PyObject *expected_startswith(PyObject *text, PyObject *part) { return expected_match(text, part, -1); }
static CYTHON_INLINE PyObject *expected_endswith(PyObject *text, PyObject *part) { return expected_match(text, part, 1); }
"""


def _expect_usual_types() -> None:
    """Teaches Cython `get` of what may be a dict, and `startswith` of what may be text, as it knows `append` of what may be a list.

    What they are called on is looked at when they are called: mappers take what exchanges send, whatever its type.
    """
    from Cython.Compiler.Code import UtilityCode
    from Cython.Compiler.ExprNodes import PythonCapiCallNode
    from Cython.Compiler.Optimize import OptimizeBuiltinCalls, load_c_utility
    from Cython.Compiler.PyrexTypes import CFuncType, CFuncTypeArg, py_object_type

    code = UtilityCode(proto=_EXPECTED_TYPES, requires=[load_c_utility("dict_getitem_default")])

    def handler(functions: Mapping[int, str]) -> Any:
        def handle(self: Any, node: Any, function: Any, args: Any, is_unbound_method: bool) -> Any:
            if len(args) not in functions or is_unbound_method or node.function.entry:
                return node
            kind = CFuncType(py_object_type, [CFuncTypeArg(name, py_object_type, None) for name in "abc"[: len(args)]])
            return PythonCapiCallNode(
                node.pos, functions[len(args)], kind, args=args, may_return_none=True, is_temp=node.is_temp, utility_code=code
            )

        return handle

    OptimizeBuiltinCalls._handle_simple_method_object_get = handler({2: "expected_get", 3: "expected_get_or"})
    OptimizeBuiltinCalls._handle_simple_method_object_startswith = handler({2: "expected_startswith"})
    OptimizeBuiltinCalls._handle_simple_method_object_endswith = handler({2: "expected_endswith"})


if __name__ == "__main__":
    here = Path(__file__).parent / PACKAGE
    if sys.argv[1:] == ["check"]:
        print(*find_changed(here), sep="\n")
    else:
        compile_in_place(here)
