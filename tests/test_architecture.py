"""Imports run in one direction: between packages, between the modules of each, and towards libraries."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tools.drawing import DRAWING, draw, reduced
from tools.imports import PACKAGE, REPOSITORY, Source, cycle

_FOUNDATION = {"contract", "errors", "extras", "files", "named", "safe_files", "text"}
#: The packages and modules that each package, and each module next to the packages, may import.
MAY_IMPORT: Mapping[str, set[str]] = {
    "text": set(),
    "safe_files": set(),
    "files": {"safe_files"},
    "errors": {"text"},
    "extras": {"errors", "text"},
    "named": {"errors", "text"},
    "contract": {"errors"},
    # A stage's command carries only modules of this package.
    "carried": set(),
    "channel_operations": _FOUNDATION,
    "sdk": {*_FOUNDATION, "channel_operations"},
    "tracking": {*_FOUNDATION, "carried"},
    "pipeline": {*_FOUNDATION, "sdk"},
    "semantics": {*_FOUNDATION, "carried", "pipeline"},
    "engines": _FOUNDATION,
    "adapter": {*_FOUNDATION, "carried", "sdk", "tracking", "pipeline", "semantics", "engines"},
    "runs": {*_FOUNDATION, "tracking", "pipeline", "semantics"},
    "local": {*_FOUNDATION, "carried", "tracking", "pipeline", "semantics", "runs"},
    "backend": {*_FOUNDATION, "sdk", "tracking", "pipeline", "semantics", "runs"},
    "report": {*_FOUNDATION, "tracking", "pipeline", "semantics", "runs"},
    "ax": {*_FOUNDATION, "tracking"},
    "hpo": {*_FOUNDATION, "ax", "carried", "engines", "adapter", "semantics"},
    "scheduler": {*_FOUNDATION, "sdk", "engines", "adapter", "pipeline", "runs", "backend"},
    "cli": {
        *{*_FOUNDATION, "sdk", "engines", "tracking", "pipeline", "semantics", "runs"},
        *{"channel_operations", "local", "backend", "report"},
    },
    "__main__": {*_FOUNDATION, "cli"},
}

#: The packages (with everything in them) or modules that may use each library.
MAY_USE: Mapping[str, set[str]] = {
    "fsspec": {"tracking", "carried", "local"},
    "kfp": {
        "adapter",
        "hpo.rounds",
        "scheduler",
        "sdk",
        "pipeline.load",
        "backend.client",
        "cli.pipeline_files",
        "cli.import_errors",
    },
    "torchx": {"adapter", "ax", "hpo.rounds", "scheduler", "engines.pods", "tracking.backends", "tracking.forwarding"},
    "ax": {"ax.library"},
    "yaml": {"pipeline", "semantics", "local"},
    "celpy": {"pipeline", "cli"},
    "packaging": {"local.attempt"},
    "click": {"cli"},
    "rich": {"cli"},
    "docker": {"local.engines"},
    "urllib3": {"backend.connection", "backend.transport"},
    "jinja2": {"report"},
    "markdown_it": {"report"},
    "markupsafe": {"report"},
    "mlflow": {"tracking.backends"},
    "pandas": {"tracking"},
    "typing_extensions": {"adapter", "hpo.rounds", "local.runner", "backend.api"},
}
#: Libraries that an extra installs, that are slow to load, or that only type checkers need. Modules must not import
#: them at the top.
LATE = {"celpy", "docker", "jinja2", "markdown_it", "markupsafe", "pandas", "typing_extensions"}

SOURCE = Source(REPOSITORY / PACKAGE)
PACKAGES = [package for package in sorted(SOURCE.packages) if package]


def top(name: str) -> str:
    """Return the top-level package that has the module."""
    return name.partition(".")[0]


def test_packages_import_those_below_them_only() -> None:
    assert cycle(MAY_IMPORT) is None, "the rules themselves have a direction"
    wrong = [
        str(it)
        # The package itself, "", has the names that users import.
        for it in SOURCE.imports
        if it.importer and it.imported and top(it.imported) not in {top(it.importer), *MAY_IMPORT[top(it.importer)]}
    ]
    assert not wrong, "a package imports another one that it must not know: move what both need below them"


def test_every_package_has_its_rule() -> None:
    assert set(SOURCE.arrows()) == set(MAY_IMPORT)


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


def test_what_imports_are_there_is_seen() -> None:
    """Imports inside functions and those only for types count like any other, and so does a name from a package."""
    found = {(it.importer, it.imported, it.when) for it in SOURCE.imports}
    assert ("cli", "errors", "top") in found
    assert ("__main__", "cli", "late") in found
    assert ("", "adapter", "typing") in found
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) is not None


def test_the_drawing_in_the_docs_is_up_to_date() -> None:
    assert DRAWING.read_text(encoding="utf-8") == draw(SOURCE), "run `make goldens`"


def test_the_drawing_leaves_out_arrows_that_longer_ways_replace() -> None:
    arrows = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"a", "d"}}
    assert reduced(arrows) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"a"}}
    assert reduced(arrows, without={"b"}) == {"a": {"c"}, "c": {"d"}, "d": set(), "e": {"a"}}
