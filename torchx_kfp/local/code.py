"""Which files of this machine a command runs, as far as its words tell: so that changed code is not taken for the same.

Code and configuration that the words name (but not data: a stage may be what writes it), programs that they name
(``python -m train``, ``-c 'import train'``, a Python component's source), and what these import in turn, where it is
found in the current directory, beside the script, or in PYTHONPATH. Of a package, all its Python files count. What is
imported by a name that a program makes up is not seen.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchx_kfp.local.stamps import Stamp, stamp_of

#: Of more files than that, nothing is said.
MOST_FILES = 2000
#: Larger files that are no Python are not read for the names of others.
_SCRIPT_SIZE = 1 << 16

# What may be the name of a file or a module, inside of a shell program as well.
_TOKEN = re.compile(r"[^\s;|&<>()'\"`$={}]+")
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(.+)$", re.MULTILINE)
_SUFFIXES = {".py", ".sh", ".bash", ".R", ".jl", ".js", ".pl", ".rb", ".sql", ".yaml", ".yml", ".toml", ".ini", ".cfg"}
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages")


class TooManyFiles(Exception):
    """A command may run more files than can be looked at."""


class CodeFiles:
    """Finds the files of commands that run in one directory. What was read once is not read again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[Path, tuple[set[str], Stamp | None]] = {}

    def of(self, words: Sequence[str], python_path: str) -> list[Stamp]:
        """The files' stamps, sorted.

        Args:
            words: the command.
            python_path: the stage's PYTHONPATH.

        Raises:
            TooManyFiles: there are more than ``MOST_FILES``.
        """
        roots = [self._directory, *(self._directory / folder for folder in python_path.split(os.pathsep) if folder)]
        found: dict[Path, Stamp] = {}
        pending = [self._of_text(word, roots) for word in [*words, " ".join(words)]]
        while pending:
            for path in pending.pop():
                if path in found:
                    continue
                if len(found) >= MOST_FILES:
                    raise TooManyFiles
                imports, stamp = self._read(path)
                if stamp is None:
                    continue
                found[path] = stamp
                places = [path.parent, *roots]
                pending.append(file for name in imports for file in _module(name, places))
                if path.suffix != ".py":
                    pending.append(self._of_script(path, roots))
        return sorted(found.values())

    def _of_text(self, text: str, roots: Sequence[Path]) -> Iterator[Path]:
        """The files that a word, or a program in it, names."""
        for name in _imports(text):
            yield from _module(name, roots)
        previous = ""
        for token in dict.fromkeys(_TOKEN.findall(text)) if len(text) < _SCRIPT_SIZE else ():
            if previous == "-m":
                yield from _module(token.partition(".")[0], roots)
            path = self._directory / token
            if _is_code(path):
                yield path
            previous = token

    def _of_script(self, path: Path, roots: Sequence[Path]) -> Iterator[Path]:
        try:
            if path.stat().st_size < _SCRIPT_SIZE:
                yield from self._of_text(path.read_text(encoding="utf-8"), roots)
        except (OSError, ValueError):  # no text
            return

    def _read(self, path: Path) -> tuple[set[str], Stamp | None]:
        """What the file imports, and its stamp; None where it is gone."""
        if path not in self._known:
            imports: set[str] = set()
            try:
                stamp: Stamp | None = stamp_of(path)
                if path.suffix == ".py":
                    imports = _imports(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                stamp = None
            self._known[path] = imports, stamp
        return self._known[path]


def _imports(text: str) -> set[str]:
    """The first parts of the names that a Python program imports; none where the text is no program."""
    if "import" not in text:
        return set()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Python inside of something else, such as a shell's here-document.
        lines = (line.replace(",", " ").split() for line in _IMPORT.findall(text))
        return {word.partition(".")[0] for words in lines for word in words if word.partition(".")[0].isidentifier()}
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names}


def _module(name: str, places: Sequence[Path]) -> Iterator[Path]:
    """The files of a module, or of a whole package, at the first place that has it."""
    for place in places:
        if name.isidentifier() and (place / name).is_dir():
            yield from _python_files(place / name)
            return
        if name.isidentifier() and (place / f"{name}.py").is_file():
            yield place / f"{name}.py"
            return


def _python_files(folder: Path) -> Iterator[Path]:
    """The Python files below a folder, without those of environments."""
    for place, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _PASSED_OVER)
        yield from (Path(place, name) for name in sorted(names) if name.endswith(".py"))


def _is_code(path: Path) -> bool:
    try:
        return path.is_file() and (path.suffix in _SUFFIXES or os.access(path, os.X_OK))
    except (OSError, ValueError):  # no path
        return False
