"""The files that a program may use, found by the words in it, without parsing or running it.

A file is used if something that is used, or the program's command, names it:

- a module, if it is imported, is started (``-m NAME``), or stands there as ``NAME.py``. All modules of this name count,
  wherever they are, and all of a package;
- any other file of a workspace, if a word of its path stands there: ``open(f"data/{name}.csv")`` names all files that
  have ``data`` or ``csv`` in their paths. All files are used by a program that has a word of ``SEARCHES``: it may use a
  file whose name it does not have;
- on this machine, where stages also write data, only code and configuration whose path in the directory stands there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

#: What lists folders, starts programs, or imports modules by name.
SEARCHES = frozenset(
    (
        *("listdir", "scandir", "walk", "iterdir", "glob", "iglob", "rglob", "copytree", "chdir"),
        *("subprocess", "system", "popen", "Popen", "exec"),
        *("importlib", "import_module", "__import__", "runpy", "run_path", "run_module", "pkgutil", "hydra"),
    )
)
#: Modules that Python or its own modules import, and a file that a library looks for by itself.
_BY_THEMSELVES = sys.stdlib_module_names | {"sitecustomize", "usercustomize"}
_LOOKED_FOR = ".env"
#: What Python imports, also with suffixes such as ``.cpython-311-x86_64-linux-gnu.so``.
_IMPORTED = (".py", ".so", ".pyd", ".pyc")
_PROGRAMS = (".py", ".ipynb")
#: The bytes of a file of which words are read, at most.
_LONGEST = 1 << 20

#: Code and configuration of this machine, and how many files of it a command may use.
_SUFFIXES = ["py", "ipynb", "sh", "bash", "R", "jl", "js", "pl", "rb", "sql", "yaml", "yml", "toml", "ini", "cfg"]
_CODE = tuple(f".{suffix}" for suffix in _SUFFIXES)
_MOST_FILES = 2000
_LONGEST_SCRIPT = 1 << 16
_NO_PACKAGES = ("__pycache__", "node_modules")

_WORD = re.compile(r"\w+")
_CONTINUED = re.compile(r"\\\r?\n")
#: What follows in a line after a statement that imports modules has begun, and the first parts of names in it.
_IMPORT = re.compile(r"(?:^|[^\w\s])\s*(?:from|import)\b(.*)")
_NAME = re.compile(r"(?:(?<![\w.])|(?<=\bfrom))\.*(\w+)")
#: The first part of a module after ``-m``, also in ``-um`` and ``--module``.
_STARTED = re.compile(r"-[a-zA-Z]*m(?:odule)?\W*(\w+)")
#: The end of the path of a file of code, what a path does not have, and the characters of one that are read.
_SUFFIX = re.compile(rf"\.(?:{'|'.join(_SUFFIXES)})(?!\w)")
_BETWEEN = re.compile(r"[^\w@%+,./-]+")
_PATH_SIZE = 255


class AllFiles(Exception):
    """A program may use any file."""


class _Names(NamedTuple):
    """What a text names: modules, and paths of code."""

    modules: frozenset[str]
    paths: frozenset[str]


class UsedFiles:
    """Finds what programs use of the files of a workspace.

    Args:
        folder: the folder, whose path has no links.
        targets: the targets of links, by the names of all files; empty for a file.
    """

    def __init__(self, folder: str, targets: Mapping[str, str]) -> None:
        self._folder = folder
        self._targets = targets
        self._has_linked_folder = any(os.path.isdir(os.path.join(folder, name)) for name in targets)
        #: The files that a word names, and those that the name of a module names.
        self._files: dict[str, set[str]] = {}
        self._modules: dict[str, set[str]] = {}
        for name in targets:
            *folders, last = name.split("/")
            if name.endswith(_IMPORTED):
                for word in (*folders, last.partition(".")[0]):
                    self._modules.setdefault(word, set()).add(name)
            else:
                for word in _WORD.findall(name):
                    self._files.setdefault(word, set()).add(name)
        tops = {name.removesuffix("/__init__.py").removesuffix(".py") for name in targets if name.endswith(".py")}
        self._always = {name for top in tops & _BY_THEMSELVES for name in self._modules[top]}
        self._always |= {name for name in targets if os.path.basename(name) == _LOOKED_FOR}

    def has_module(self, name: str) -> bool:
        """Tell whether there is a module of this name."""
        return name in self._modules

    def of(self, texts: Iterable[str]) -> set[str]:
        """Return the names of the files that a program may use whose command and values are these texts.

        Raises:
            AllFiles: it may use any file.
        """
        if self._has_linked_folder:  # what is in it has more names
            raise AllFiles
        found: set[str] = set()
        pending = [(_names_in(text), True) for text in texts]
        new = {*self._always}
        while pending or new:
            for (words, modules), is_program in pending:
                if is_program and not words.isdisjoint(SEARCHES):
                    raise AllFiles
                new.update(*(self._modules.get(word, ()) for word in modules))
                new.update(*(self._files.get(word, ()) for word in words))
            new -= found
            found |= new
            pending, new = [(self._read(name), name.endswith(_PROGRAMS)) for name in new], set()
        return found

    @functools.cache  # noqa: B019 (it lives as long as the folder)
    def _read(self, name: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return what a file names; a link names the file to which it leads."""
        return _names_in(f"{_text_of(os.path.join(self._folder, name))} {self._targets[name]}")


def code_here(words: Sequence[str], directory: str, python_path: str) -> list[tuple[str, int, int]]:
    """Return the code on this machine that a command may use which runs in a directory.

    Modules are found in the directory, in PYTHONPATH, and next to what is used; one whose name is computed at run time
    is not found.

    Returns:
        Each file's path, its size, and the time of its last change in ns, sorted.

    Raises:
        AllFiles: they are more than can be checked.
    """
    text = "\n".join(words)
    found: dict[str, tuple[str, int, int]] = {}
    modules = {*names_of_modules(text)}
    paths = {os.path.join(directory, name) for name in (*words, *_BETWEEN.split(text))}
    #: Where modules are looked for, and packages, of which all is used.
    places = {directory, *(os.path.join(directory, folder) for folder in python_path.split(os.pathsep) if folder)}
    packages: set[str] = set()
    tried: set[str] = set()
    listing = functools.cache(_list)
    before = -1
    while before < (before := len(tried) + len(places) + len(packages)):
        for place in [*places]:
            there, whole = listing(place), place in packages
            paths.update(there.files[name] for name in (there.files if whole else there.files.keys() & modules))
            packages.update(there.folders[name] for name in there.folders.keys() & modules)
            packages.update(path for name, path in there.folders.items() if whole and _is_importable(name))
        new = paths - tried
        tried |= new
        for path in new:
            with contextlib.suppress(OSError, ValueError):  # gone, or not a path
                status = os.stat(path)
                if stat.S_ISREG(status.st_mode) and (path.endswith(_CODE) or os.access(path, os.X_OK)):
                    found[path] = path, status.st_size, status.st_mtime_ns
                    places.add(os.path.dirname(path))
                    own = _names_here(*found[path], status.st_ino)
                    modules |= own.modules
                    paths.update(os.path.join(directory, name) for name in own.paths)
        places |= packages
        if len(found) > _MOST_FILES:
            raise AllFiles
    return sorted(found.values())


class _Folder(NamedTuple):
    """Python files and folders by the names under which they are imported."""

    files: Mapping[str, str]
    folders: Mapping[str, str]


def _is_importable(name: str) -> bool:
    """Tell whether a folder may be a package: it needs no file of its own."""
    return name.isidentifier() and name not in _NO_PACKAGES


def _list(folder: str) -> _Folder:
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                folders[entry.name] = entry.path
            elif entry.name.endswith(".py"):
                files[entry.name.removesuffix(".py")] = entry.path
    return _Folder(files, folders)


@functools.lru_cache(4096)
def _names_here(path: str, size: int, changed: int, inode: int) -> _Names:
    """Return what a file names, which is as these facts say. Each word of a script may be an executable."""
    names = _names_of(text := _text_of(path))
    is_script = size <= _LONGEST_SCRIPT and not path.endswith(_PROGRAMS)
    return names._replace(paths=names.paths.union(_BETWEEN.split(text))) if is_script else names


def _text_of(path: str) -> str:
    with contextlib.suppress(OSError):  # a link may lead nowhere
        if os.path.getsize(path) <= _LONGEST:
            return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def names_of_modules(text: str) -> frozenset[str]:
    """Return the first parts of the names of modules and programs that a text may import or start."""
    return _names_of(text).modules


def _names_of(text: str) -> _Names:
    if not text.isascii():  # Python takes some letters for others in names
        text = unicodedata.normalize("NFKC", text)
    ends = (match.end() for match in _SUFFIX.finditer(text))
    paths = frozenset(_BETWEEN.split(text[max(0, end - _PATH_SIZE) : end])[-1] for end in ends)
    lines = [line for line in _CONTINUED.sub(" ", text).splitlines() if "import" in line]
    imported = (name for line in lines for names in _IMPORT.findall(line) for name in _NAME.findall(names))
    programs = (os.path.splitext(os.path.basename(path))[0] for path in paths if path.endswith(_PROGRAMS))
    return _Names(frozenset((*imported, *programs, *_STARTED.findall(text))), paths)


@functools.lru_cache(4096)
def _names_in(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words of a text, and the modules that it names."""
    return frozenset(_WORD.findall(text)), names_of_modules(text)
