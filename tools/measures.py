"""Measure the size and the form of the package: lines, modules, doors, names, functions, and who knows the contract.

    make measures                      # this working tree
    make measures ARGS="REVISION ..."  # and others, in columns

The figures are a compass for changes that should make the code smaller, not limits; ``.importlinter`` has
the rules. Each line of the output is one measure. Everything is counted from the source, so that any revision can be
measured with today's rules.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tools.changed import PACKAGE, REPOSITORY

#: What authors of stages and their applications need. The rest runs, follows and reports pipelines.
MISSION = (
    *("contract", "authoring", "tracking", "hpo", "common", "errors"),
    # Their names before they were one wing.
    *("carried", "engines", "ax", "adapter", "protocol", "sdk", "text", "files", "extras", "named"),
)
#: Fragments of a stage's script and of its command. A module that has one knows how commands are made.
#: KFP's own commands have ``-ec``, too, and options and messages name the tracker base.
COMMAND = re.compile(r"_v=\$2|_j=|_m=\$1|printf %b[x ]|\"-ec\"(?!\):)|(?<!-p )\{(?:protocol\.)?TRACKER_BASE\}=(?!/)")
#: Keys of the launcher's specification that are not everyday words.
SPECIFICATION = re.compile(r"spec\[[\"'](?:object|roles|stage|logs|failure)[\"']\]|[\"'](?:companions|plural)[\"']")


def measures(root: Path) -> dict[str, int | str]:
    """Measure the package in the repository at ``root``."""
    files = {path.relative_to(root / PACKAGE): path for path in sorted((root / PACKAGE).rglob("*.py"))}
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: text.count("\n") for name, text in texts.items()}
    functions = {(name, node.name): _length(node) for name, tree in trees.items() for node in _functions(tree)}
    private = [count for tree in trees.values() for count in _callers(tree)]
    longest_module = max(lines, key=lines.__getitem__)
    longest_function = max(functions, key=functions.__getitem__)
    return {
        "lines": sum(lines.values()),
        "modules": len(files),
        "lines of the mission's wing": sum(count for name, count in lines.items() if _door(name) in MISSION),
        "doors (packages and modules at the top)": len({_door(name) for name in files} - {"__init__", "__main__"}),
        "modules that know how a command is made": _knowing(texts, COMMAND),
        "modules that know the launcher's specification": _knowing(texts, SPECIFICATION),
        "class names with several meanings": _repeated(node.name for tree in trees.values() for node in _classes(tree)),
        "file names with several meanings": _repeated(name.stem for name in files if name.stem != "__init__"),
        "longest module": f"{lines[longest_module]:,} ({longest_module})",
        "longest function": f"{functions[longest_function]} ({longest_function[0]}: {longest_function[1]})",
        "functions of more than 40 lines": sum(length > 40 for length in functions.values()),
        "private module functions": len(private),
        "private module functions with one caller": private.count(1),
        "lines of the shell's subset": sum(count for name, count in lines.items() if "shell" in name.parts),
        "lines of tests": sum(path.read_text(encoding="utf-8").count("\n") for path in (root / "tests").rglob("*.py")),
        "words of docs": sum(len(path.read_text(encoding="utf-8").split()) for path in (root / "docs").rglob("*.md")),
    }


def _door(name: Path) -> str:
    return name.parts[0].removesuffix(".py")


def _knowing(texts: Mapping[Path, str], fragment: re.Pattern[str]) -> int:
    """Return how many modules contain a fragment. Carried programs are text for stages, not readers."""
    return sum(bool(fragment.search(text)) for name, text in texts.items() if name.name != "programs.py")


def _repeated(names: Iterable[str]) -> int:
    return sum(count > 1 for count in Counter(names).values())


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _length(node: ast.FunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _callers(tree: ast.Module) -> Iterator[int]:
    """Yield for each private function of a module how many times the module names it."""
    uses: Counter[str] = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return (uses[node.name] for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("_"))


def _of_revision(revision: str) -> dict[str, int | str]:
    archive = subprocess.run(["git", "archive", revision], cwd=REPOSITORY, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        return measures(Path(folder))


def main(revisions: list[str]) -> None:
    """Print a table with a column for each revision and one for the working tree."""
    columns = {revision: _of_revision(revision) for revision in revisions} | {"now": measures(REPOSITORY)}
    print("| measure |", *(f"{name} |" for name in columns))
    print("|---|" + "--:|" * len(columns))
    for measure in columns["now"]:
        values = (column[measure] for column in columns.values())
        print(f"| {measure} |", *(f"{value:,} |" if isinstance(value, int) else f"{value} |" for value in values))


if __name__ == "__main__":
    main(sys.argv[1:])
