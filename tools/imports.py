"""Read a package's source to find which module imports which.

``tests/test_architecture.py`` checks the imports against its rules; ``tools.drawing`` draws them.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "torchx_kfp"


class Import(NamedTuple):
    """An import of a module: at the importer's top, inside a function (``late``), or only for types (``typing``)."""

    importer: str
    imported: str
    when: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.imported} ({self.when})"


class Source:
    """The modules of a package and their imports. Names are relative to the package: ``execution.local.attempt``."""

    def __init__(self, root: Path) -> None:
        files = {_name(file.relative_to(root)): file for file in sorted(root.rglob("*.py"))}
        self.modules = [name for name in files if name]
        self.packages = {name for name, file in files.items() if file.name == "__init__.py"}
        self._files = files

    @functools.cached_property
    def _trees(self) -> dict[str, ast.Module]:
        return {name: ast.parse(file.read_text(encoding="utf-8"), str(file)) for name, file in self._files.items()}

    @property
    def docstrings(self) -> dict[str, str]:
        return {name: ast.get_docstring(tree) or "" for name, tree in self._trees.items()}

    @functools.cached_property
    def _all(self) -> list[Import]:
        return [Import(name, *found) for name, tree in self._trees.items() for found in _imports(tree)]

    @functools.cached_property
    def imports(self) -> list[Import]:
        """Those of the package's own modules."""
        found = []
        for it in self._all:
            first, _, rest = it.imported.partition(".")
            if first == PACKAGE:
                # `from package import name` names a module or an attribute of the package.
                while rest not in self._files:
                    rest = rest.rpartition(".")[0]
                found.append(it._replace(imported=rest))
        return found

    @functools.cached_property
    def libraries(self) -> list[Import]:
        """Those of modules that are neither the package's nor Python's."""
        first = [it._replace(imported=it.imported.partition(".")[0]) for it in self._all]
        return [it for it in first if it.imported != PACKAGE and it.imported not in sys.stdlib_module_names]

    def arrows(self, package: str = "") -> dict[str, set[str]]:
        """Return the modules and packages directly inside this package, each with the others there that it imports."""
        prefix = f"{package}." if package else ""
        inside = {name for name in self.modules if name.startswith(prefix) and "." not in name[len(prefix) :]}
        arrows: dict[str, set[str]] = {name: set() for name in inside}
        for it in self.imports:
            pair = [_ancestor(name, inside) for name in (it.importer, it.imported)]
            if None not in pair and pair[0] != pair[1]:
                arrows[str(pair[0])].add(str(pair[1]))
        return arrows


def _name(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yield the name in each import statement, the time at which it is imported, and the line."""
    within: list[tuple[ast.AST, str]] = [(tree, "top")]
    while within:
        parent, when = within.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Import):
                yield from ((alias.name, when, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"line {node.lineno}: imports name modules in full"
                yield from ((f"{node.module}.{alias.name}", when, node.lineno) for alias in node.names)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                within.append((node, "late"))
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                within.append((node, "typing"))
            else:
                within.append((node, when))


def _ancestor(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is the module, or a package around it; None if there is none."""
    return next((each for each in names if f"{name}.".startswith(f"{each}.")), None)


def cycle(arrows: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Return the names of one cycle, in which each imports the next; None if there is no cycle."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return None
