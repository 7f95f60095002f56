"""Imports run in one direction: between packages, between the modules of each, and towards libraries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from tools.drawing import DRAWING, draw, reduced
from tools.imports import PACKAGE, REPOSITORY, Source, cycle

#: Modules of ``common`` that load neither KFP's SDK nor change what it does.
_PLAIN = {"errors", *(f"common.{name}" for name in ("extras", "files", "safe_files", "text"))}
#: The seam between the wings: the form of a compiled stage, and what a stage recorded.
_SEAM = {"contract", "tracking.recorder"}
#: The packages and modules that each room of the package may import. A name stands for everything in it.
MAY_IMPORT: Mapping[str, set[str]] = {
    "common": {"errors"},
    "errors": set(),
    "contract": {"errors"},
    # A stage's command carries only modules of this package.
    "contract.carried": set(),
    # The mission's wing: authors of stages and their applications.
    "tracking": {*_PLAIN, "common.archive", "common.git", "contract"},
    "authoring": {*_PLAIN, "common", "contract", "tracking"},
    "authoring.engines": _PLAIN,
    "hpo": {*_PLAIN, "contract", "authoring"},
    "hpo.ax": {*_PLAIN, "contract", "tracking"},
    # The other wing runs, follows and reports any KFP pipeline.
    "execution.pipeline": {*_PLAIN, "common", "contract"},
    "execution.model": {*_PLAIN, "contract", "execution.pipeline"},
    "execution.runs": {*_PLAIN, *_SEAM, "execution.pipeline"},
    "execution.local": {*_PLAIN, *_SEAM, *(f"execution.{name}" for name in ("pipeline", "model", "runs"))},
    "execution.host": {*_PLAIN, *_SEAM, *(f"execution.{name}" for name in ("pipeline", "model", "runs"))},
    "execution.report": {*_PLAIN, *_SEAM, "execution.pipeline", "execution.runs"},
    "local": {*_PLAIN, "execution"},
    "host": {*_PLAIN, "execution.host"},
    # Programs that use both.
    "entrypoints.scheduler": {*_PLAIN, "contract", "authoring", "execution"},
    "entrypoints.doctor": {*_PLAIN, "common", "contract", "authoring", "tracking", "execution"},
    "entrypoints.cli": {
        *{*_PLAIN, "common", "contract", "authoring", "tracking", "execution", "local"},
        "entrypoints.doctor",
    },
    "__main__": {*_PLAIN, "entrypoints.cli"},
}
#: The packages and modules in ``torchx_kfp/``, at most ten: the two wings, their seam, and what stands before them.
DOORS = {
    *{"authoring", "tracking", "hpo"},
    "contract",
    *{"execution", "local", "host"},
    *{"entrypoints", "common", "errors"},
}

#: The packages (with everything in them) or modules that may use each library.
MAY_USE: Mapping[str, set[str]] = {
    "fsspec": {"tracking", "contract.carried", "execution.local", "entrypoints.doctor"},
    "kfp": {
        "authoring",
        "hpo.rounds",
        "common.sdk",
        "execution.pipeline.load",
        "execution.host.connection",
        "entrypoints.cli.pipeline_files",
        "entrypoints.doctor",
    },
    "torchx": {
        *{"authoring", "hpo.ax", "hpo.rounds", "entrypoints.scheduler", "entrypoints.cli.component"},
        "entrypoints.doctor",
        *{"tracking.backends", "tracking.forwarding"},
    },
    "ax": {"hpo.ax.library"},
    "yaml": {"execution"},
    "celpy": {"execution.pipeline", "entrypoints.cli"},
    "pathspec": {"common.archive"},
    "packaging": {"execution.local.packages", "entrypoints.doctor"},
    "click": {"entrypoints.cli"},
    "rich": {"entrypoints.cli"},
    "docker": {"execution.local.executors"},
    "urllib3": {"execution.host.connection", "execution.host.answers"},
    "jinja2": {"execution.report"},
    "markdown_it": {"execution.report"},
    "markupsafe": {"execution.report"},
    "mlflow": {"tracking.backends"},
    "pandas": {"tracking"},
    "typing_extensions": {"authoring", "hpo.rounds", "execution.local.runner", "execution.host.submission"},
}
#: Libraries that an extra installs, that are slow to load, or that only type checkers need. Modules must not import
#: them at the top.
LATE = {"celpy", "docker", "jinja2", "markdown_it", "markupsafe", "pandas", "typing_extensions"}

SOURCE = Source(REPOSITORY / PACKAGE)
PACKAGES = [package for package in sorted(SOURCE.packages) if package]


def inside(name: str, places: Iterable[str]) -> str | None:
    """Return the longest of the places that is the module, or holds it."""
    return max((place for place in places if f"{name}.".startswith(f"{place}.")), key=len, default=None)


def test_packages_import_those_below_them_only() -> None:
    wrong = []
    for it in SOURCE.imports:
        room = inside(it.importer, MAY_IMPORT)
        # The package itself, "", has the names that users import.
        if it.importer and it.imported and not inside(it.imported, {str(room), *MAY_IMPORT[str(room)]}):
            wrong.append(str(it))
    assert not wrong, "a package imports another one that it must not know: move what both need below them"


def test_every_module_has_its_rule() -> None:
    assert {name for name in SOURCE.modules if not inside(name, MAY_IMPORT)} == {"execution", "entrypoints"}


def test_the_tree_shows_the_architecture() -> None:
    assert {name.partition(".")[0] for name in SOURCE.modules} == {*DOORS, "__main__"}
    assert len(DOORS) <= 10


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_and_packages_inside_of_a_package_have_no_cycles(package: str) -> None:
    assert cycle(SOURCE.arrows(package)) is None


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_do_not_import_the_package_that_holds_them(package: str) -> None:
    wrong = [str(it) for it in SOURCE.imports if it.imported == package and it.importer.startswith(f"{package}.")]
    assert not wrong, "the package imports its modules: name the module"


def test_libraries_are_used_where_they_belong() -> None:
    wrong = [
        str(it)
        for it in SOURCE.libraries
        if not any(f"{it.importer}.".startswith(f"{place}.") for place in MAY_USE.get(it.imported, ()))
    ]
    assert not wrong


def test_optional_and_slow_libraries_are_loaded_when_they_are_needed() -> None:
    assert not [str(it) for it in SOURCE.libraries if it.imported in LATE and it.when == "top"]


def test_the_rules_name_nothing_that_is_gone() -> None:
    assert {it.imported for it in SOURCE.libraries} == set(MAY_USE)
    places = {place for used_in in MAY_USE.values() for place in used_in}
    assert places <= set(SOURCE.modules)


def test_every_permission_is_used() -> None:
    rooms = [(inside(it.importer, MAY_IMPORT), it.imported) for it in SOURCE.imports]
    used = {(room, inside(imported, MAY_IMPORT[room])) for room, imported in rooms if room}
    assert not {(room, place) for room, places in MAY_IMPORT.items() for place in places - _PLAIN} - used
    libraries = {(it.imported, inside(it.importer, MAY_USE[it.imported])) for it in SOURCE.libraries}
    assert not {(library, place) for library, places in MAY_USE.items() for place in places} - libraries


def test_what_imports_are_there_is_seen() -> None:
    """Imports inside functions and those only for types count like any other, and so does a name from a package."""
    found = {(it.importer, it.imported, it.when) for it in SOURCE.imports}
    assert ("entrypoints.cli", "errors", "top") in found
    assert ("__main__", "entrypoints.cli", "late") in found
    assert ("", "authoring.tasks", "typing") in found
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) is not None


def test_the_drawing_in_the_docs_is_up_to_date() -> None:
    assert DRAWING.read_text(encoding="utf-8") == draw(SOURCE), "run `make goldens`"


def test_the_drawing_leaves_out_arrows_that_longer_ways_replace() -> None:
    arrows = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"a", "d"}}
    assert reduced(arrows) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"a"}}
    assert reduced(arrows, without={"b"}) == {"a": {"c"}, "c": {"d"}, "d": set(), "e": {"a"}}
