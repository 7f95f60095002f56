"""Name the test files that a change needs, for ``make test-changed``.

A test file is needed if it has changed itself, or if it imports a module that has changed, or is called like one
(``tests/local/test_cache.py`` for ``torchx_kfp/local/cache``). Helpers of tests count: a file that imports one that
imports a changed module is needed. A module that no test imports or is called like needs the tests of its package. The
tests of the architecture take a second and are always there. The whole suite is what CI runs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.imports import PACKAGE, REPOSITORY

ALWAYS = "tests/test_architecture.py"


def needed(changed: Iterable[Path]) -> list[str]:
    """Return the test files that these changes need, as paths inside the repository, in order."""
    imports = {file: set(_imports(REPOSITORY / file)) for file in _tests()}
    files = {ALWAYS}
    for path in changed:
        if path.suffix != ".py" or path.parts[0] not in (PACKAGE, "tests", "tools"):
            continue
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        found = {str(path)} & imports.keys() | set(_importers(name, imports)) | set(_called_like(path, imports))
        files |= set(filter(_is_test, found)) or set(filter(_is_test, _of_package(path, imports)))
    return sorted(files)


def _tests() -> Iterator[str]:
    return (str(path.relative_to(REPOSITORY)) for path in sorted((REPOSITORY / "tests").rglob("*.py")))


def _is_test(file: str) -> bool:
    return Path(file).name.startswith("test_")


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _importers(name: str, imports: dict[str, set[str]]) -> Iterator[str]:
    """Yield the files of tests that import a module, directly or through helpers of tests."""
    for file in (file for file, names in imports.items() if name in names):
        yield file
        if not _is_test(file):
            helper = ".".join(Path(file).with_suffix("").parts)
            yield from (other for other, names in imports.items() if helper in names)


def _called_like(path: Path, imports: dict[str, set[str]]) -> Iterator[str]:
    """Yield the test files whose names are those of the module or its package."""
    names = {path.stem, path.parent.name} - {"__init__", PACKAGE}
    return (file for file in imports if Path(file).stem.removeprefix("test_") in names)


def _of_package(path: Path, imports: dict[str, set[str]]) -> list[str]:
    package = path.parts[1] if len(path.parts) > 2 else ""
    return [file for file in imports if package and file.startswith(f"tests/{package}/")]


def _changed(base: str) -> Iterator[Path]:
    """Yield the files that differ from a revision, and those that git does not know yet."""
    git = ["git", "-C", str(REPOSITORY)]
    for command in (["diff", "--name-only", "--diff-filter=d", base], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run([*git, *command], check=True, capture_output=True, text=True)
        yield from map(Path, done.stdout.splitlines())


def main(arguments: list[str]) -> None:
    """Print the needed files, a line each; the argument is a revision to compare with (default: HEAD)."""
    print(*needed(_changed(arguments[0] if arguments else "HEAD")), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
