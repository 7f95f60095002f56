"""The files of this machine that a command runs, so that a stage whose code has changed runs again.

They are the files of code and configuration that the command's words name (but not data, which a stage may write), the
programs that they name (``python -m train``, ``-c 'import train'``, a Python component's source), and the modules that
these import in turn, if they are in the current directory, in the script's folder, or in PYTHONPATH. All Python files
of a package count. A module whose name is computed at run time is not found.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from torchx_kfp.common.safe_files import walk

#: A path, its size in bytes (for a folder, the number of its files), and the time of its last change in ns (for a
#: folder, a digest of its files).
Stamp: TypeAlias = tuple[str, int, int]
#: A stage whose command may run more files is not cached.
MOST_FILES = 2000
#: Larger files are only searched for the names of other files if they are Python.
_SCRIPT_SIZE = 1 << 16

# Text that may be the name of a file or a module, also in a shell program.
_TOKEN = re.compile(r"[^\s;|&<>()'\"`$={}]+")
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(.+)$", re.MULTILINE)
# The text of a program from a word that may begin an import to the end of the line, and names of modules in it.
_MENTION = re.compile(r"\b(?:from|import)\b\s*(?:.*\\\r?\n)*.*")
_NAME = re.compile(r"(?:(?<![\w.])|(?<=\bfrom))\.*(\w+)")
_SUFFIXES = {".py", ".sh", ".bash", ".R", ".jl", ".js", ".pl", ".rb", ".sql", ".yaml", ".yml", ".toml", ".ini", ".cfg"}
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages")


class TooManyFiles(Exception):
    """A command may run more files than can be checked."""


def stamp_of(path: str | os.PathLike[str]) -> Stamp:
    """Return the stamp of a file, or of all files in a folder.

    Raises:
        OSError: the file does not exist.
        ValueError: the text is not a path.
    """
    path = Path(path)
    found = path.stat()
    if not path.is_dir():
        return str(path), found.st_size, found.st_mtime_ns
    digest, count = hashlib.sha256(), 0
    for place, folders, names in walk(path):
        folders.sort()
        for name in sorted(names):
            file = os.lstat(os.path.join(place, name))
            digest.update(f"{place}/{name} {file.st_size} {file.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
            count += 1
    return str(path), count, int.from_bytes(digest.digest()[:7], "big")


@dataclass(eq=False)
class _Text:
    """A text that may be a program, and its words that may name files (or modules, after ``-m``), with those before."""

    program: str = ""
    words: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def mentions(self) -> frozenset[str]:
        """All that ``imports`` may have, found without parsing; most of it is in the standard library."""
        lines = "\n".join(_MENTION.findall(self.program))
        # Python takes some letters for others in names.
        return frozenset(_NAME.findall(lines)) if lines.isascii() else self.imports

    @functools.cached_property
    def imports(self) -> frozenset[str]:
        """The modules that the text imports."""
        return _imports(self.program)


class CodeFiles:
    """Finds the files of commands that run in one directory.

    All files are checked each time, but a file is parsed again only if its size or its time of change differs.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._parsed: dict[tuple[Stamp, int], _Text] = {}

    def of(self, words: Sequence[str], python_path: str) -> list[Stamp]:
        """Return the stamps of the command's files, sorted.

        Args:
            words: the command.
            python_path: the stage's PYTHONPATH.

        Raises:
            TooManyFiles: there are more than ``MOST_FILES``.
        """
        folders = (os.path.join(self._directory, folder) for folder in python_path.split(os.pathsep) if folder)
        modules = _Modules([self._directory, *folders])
        found: dict[str, Stamp] = {}
        pending = [self._files(_read_text(word), self._directory, modules) for word in [*words, " ".join(words)]]
        while pending:
            for path in pending.pop():
                if path in found:
                    continue
                if len(found) >= MOST_FILES:
                    raise TooManyFiles
                try:
                    found[path] = stamp = stamp_of(path)
                    text = self._parse(path, stamp)
                except (OSError, ValueError):  # gone
                    found.pop(path, None)
                    continue
                pending.append(self._files(text, os.path.dirname(path), modules))
        return sorted(found.values())

    def _files(self, text: _Text, folder: str, modules: _Modules) -> Iterator[str]:
        """Yield the files that a text names; the text is from a file in ``folder``."""
        new = [name for name in text.mentions if modules.has_new(name, folder)]
        for name in text.imports.intersection(new) if new else ():
            yield from modules.files(name, folder)
        for previous, word in text.words:
            if previous == "-m":
                yield from modules.files(word.partition(".")[0], self._directory)
            path = os.path.join(self._directory, word)
            if _is_code(path):
                yield path

    def _parse(self, path: str, stamp: Stamp) -> _Text:
        found = os.stat(path)
        key = stamp, found.st_ino
        if key not in self._parsed:
            is_python = path.endswith(".py")
            text = ""
            try:
                if is_python or found.st_size < _SCRIPT_SIZE:
                    text = Path(path).read_text(encoding="utf-8")
            except ValueError:  # not text
                pass
            self._parsed[key] = _Text(text) if is_python else _read_text(text)
        return self._parsed[key]


@dataclass
class _Modules:
    """Finds each module in the first of several places that has it. Lists each folder and yields each module once."""

    roots: Sequence[str]
    _listed: dict[str, frozenset[str]] = field(default_factory=dict)
    _paths: dict[tuple[str, str], str] = field(default_factory=dict)
    _yielded: set[str] = field(default_factory=set)

    def has_new(self, name: str, folder: str) -> bool:
        """Tell whether ``files`` yields any."""
        path = self._path(name, folder)
        return bool(path) and path not in self._yielded

    def files(self, name: str, folder: str) -> Iterator[str]:
        """Yield the files of a module or package for a program in ``folder``, the first time it is asked."""
        path = self._path(name, folder)
        if path and path not in self._yielded:
            for each in _python_files(path) if path.endswith(os.sep) else [path]:
                self._yielded.add(each)
                if not each.endswith(os.sep):
                    yield each

    def _path(self, name: str, folder: str) -> str:
        """Return the module's file, or the package's folder, which ends with a slash; empty if no place has it."""
        if (name, folder) not in self._paths:
            self._paths[name, folder] = self._find(name, folder) if name.isidentifier() else ""
        return self._paths[name, folder]

    def _find(self, name: str, folder: str) -> str:
        for place in (folder, *self.roots):
            there = self._names(place)
            path = os.path.join(place, name)
            if name in there and os.path.isdir(path):
                return os.path.join(path, "")
            if f"{name}.py" in there and os.path.isfile(f"{path}.py"):
                return f"{path}.py"
        return ""

    def _names(self, folder: str) -> frozenset[str]:
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._listed[folder] = frozenset()
        return self._listed[folder]


def _read_text(text: str) -> _Text:
    """Return the modules and files that a word, or a program in it, may name."""
    words = _TOKEN.findall(text) if len(text) < _SCRIPT_SIZE else []
    return _Text(text, tuple(dict.fromkeys(zip(["", *words], words, strict=False))))


def _imports(text: str) -> frozenset[str]:
    """Return the top-level names that a Python program imports; none if the text is not a program."""
    if "import" not in text:
        return frozenset()
    try:
        statements: list[ast.AST] = list(ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The text may have Python inside something else, such as a shell's here-document.
        lines = (line.replace(",", " ").split() for line in _IMPORT.findall(text))
        names = [word for words in lines for word in words if word.partition(".")[0].isidentifier()]
        return frozenset(name.partition(".")[0] for name in names)
    names = []
    for node in statements:  # the list grows; expressions, which make up most of a program, are not walked
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module] if node.module else []
        else:
            for block in ("body", "handlers", "orelse", "finalbody", "cases"):
                statements += getattr(node, block, ())
    return frozenset(name.partition(".")[0] for name in names)


def _python_files(folder: str) -> Iterator[str]:
    """Yield the Python files below a folder, and all folders, which end with a slash.

    Virtual environments are passed over.
    """
    for place, folders, names in walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        yield os.path.join(place, "")
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _PASSED_OVER)
        yield from (os.path.join(place, name) for name in sorted(names) if name.endswith(".py"))


def _is_code(path: str) -> bool:
    try:
        if not os.path.isfile(path):
            return False
    except ValueError:  # not a path
        return False
    return os.path.splitext(path)[1] in _SUFFIXES or os.access(path, os.X_OK)
