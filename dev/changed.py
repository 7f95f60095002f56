"""Name the test files that a change needs, for ``make test-changed``.

Tests mirror the package: a change of ``torchx_kfp/execution/local/cache.py`` needs the files in
``tests/execution/local`` that are named after the module (``test_cache.py``, ``test_cache_*.py``) or import it,
directly or through test helpers. If there are none, it needs the files elsewhere that import it, or else all tests in
its folder. A changed test needs itself, and a changed helper the tests that import it. CI runs the whole suite.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "torchx_kfp"
#: The tests of the public seams around each package: what they promise holds however the package is built.
SEAMS = {
    "authoring": ("tests/authoring", "tests/cases", "tests/contract", "tests/pipelines"),
    "common": ("tests/common", "tests/authoring", "tests/cases"),
    "contract": ("tests/contract", "tests/cases", "tests/components"),
    "entrypoints/cli": ("tests/transcripts", "tests/entrypoints/cli", "tests/execution/host"),
    "entrypoints/doctor": ("tests/entrypoints/doctor", "tests/entrypoints/cli"),
    "entrypoints/scheduler": ("tests/entrypoints/scheduler",),
    "execution": ("tests/cases", "tests/execution", "tests/transcripts", "tests/entrypoints/cli"),
    "hpo": ("tests/hpo", "tests/pipelines"),
    "tracking": ("tests/tracking", "tests/cases", "tests/transcripts", "tests/components"),
    "": ("tests/test_end_to_end.py", "tests/test_docs.py"),
}


def needed(changed: Iterable[Path]) -> list[str]:
    """Return the sorted paths of the test files that these changes need."""
    imports = _tests()
    files: set[str] = set()
    for path in changed:
        if path.suffix == ".py" and path.parts[0] in (PACKAGE, "tests", "dev"):
            files |= _needed(path, imports)
        elif path.suffix == ".py" and path.parts[0] == "packages":
            # Not those that import it through helpers: that is half of all tests.
            files |= {file for file, names in imports.items() if _is_test(file) and _uses(names, path.parts[2])}
    return sorted(files)


def seams(path: Path) -> list[str]:
    """Return the test files of the seams around a module, those nearest to it first."""
    inside = str(Path(*path.parts[1:]))
    folders = [folder for package, folders in SEAMS.items() if inside.startswith(package) for folder in folders]
    files = [file for folder in folders for file in sorted(_tests()) if Path(file).is_relative_to(folder)]
    return list(dict.fromkeys(filter(_is_test, files)))


def _needed(path: Path, imports: Mapping[str, set[str]]) -> set[str]:
    """Return the test files that a change of one module needs."""
    found = {*filter(_is_test, ({str(path)} & imports.keys()) | _importers(path, imports))}
    if path.parts[0] != PACKAGE:
        return found
    folder = Path("tests", *path.parent.parts[1:])
    names = [path.stem]
    while not (REPOSITORY / folder).is_dir():
        # A small package is tested next to its parent's modules, by a file that is called like it.
        names.append(folder.name)
        folder = folder.parent
    inside = {file for file in imports if _is_test(file) and Path(file).is_relative_to(folder)}
    called_like = {file for file in inside if re.match(rf"test_({'|'.join(names)})(_|\.)", Path(file).name)}
    return (found & inside) | called_like or found or inside


@functools.cache
def _tests() -> Mapping[str, set[str]]:
    """Return the files of all tests and their helpers, each with the names that it imports."""
    paths = sorted((REPOSITORY / "tests").rglob("*.py"))
    return {str(path.relative_to(REPOSITORY)): set(imports_of(path.read_text(encoding="utf-8"))) for path in paths}


def _is_test(file: str) -> bool:
    return Path(file).name.startswith("test_")


def imports_of(text: str) -> Iterator[str]:
    """Yield the modules that a module's text imports, and the names from them, which may be modules as well."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _uses(names: Iterable[str], package: str) -> bool:
    return any(name.partition(".")[0] == package for name in names)


def _importers(path: Path, imports: Mapping[str, set[str]]) -> set[str]:
    """Return the files of tests that import a module, directly or through helpers of tests."""
    found: set[str] = set()
    names = [name_of(path)]
    while names:
        name = names.pop()
        new = {file for file, imported in imports.items() if name in imported} - found
        found |= new
        names += [name_of(Path(file)) for file in new if not _is_test(file)]
    return found


def name_of(path: Path) -> str:
    """Return the dotted name of a module's file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _changed(base: str) -> Iterator[Path]:
    """Yield the files that differ from a revision, and untracked files."""
    git = ["git", "-C", str(REPOSITORY)]
    for command in (["diff", "--name-only", "--diff-filter=d", base], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run([*git, *command], check=True, capture_output=True, text=True)
        yield from map(Path, done.stdout.splitlines())


def main(arguments: list[str]) -> None:
    """Print the needed files, one a line; the argument is the revision to compare with (default: HEAD)."""
    print(*needed(_changed(arguments[0] if arguments else "HEAD")), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
