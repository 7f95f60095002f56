"""The files of a workspace that a program may use, found by the words in it, without parsing or running it.

A file is used if something that is used, or the program's command, names it:

- a module, if it is imported, is started (``-m NAME``), or stands there as ``NAME.py``. All modules of this name count,
  wherever they are, and all of a package;
- any other file, if a word of its path stands there: ``open(f"data/{name}.csv")`` names all files that have ``data`` or
  ``csv`` in their paths.

All files are used by a program that has a word of ``SEARCHES``: it may use a file whose name it does not have.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping
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

_WORD = re.compile(r"\w+")
#: What follows in a line that may import modules, which a backslash continues.
_IMPORT = re.compile(r"\b(?:from|import)\b((?:.*\\\r?\n)*.*)")
#: The first part of a module after ``-m``, also in ``-um`` and ``--module``; and the name of a program.
_STARTED = re.compile(r"-[a-zA-Z]*m(?:odule)?\W*(\w+)")
_PROGRAM = re.compile(r"(\w+)\.(?:py|ipynb)\b")


class AllFiles(Exception):
    """A program may use any file."""


class _Names(NamedTuple):
    """The words of a text, those that may name modules, and whether it searches."""

    words: frozenset[str]
    modules: frozenset[str]
    searches: bool


class UsedFiles:
    """Finds what programs use of the files in a folder.

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
        pending = [_names_in(text) for text in texts]
        new = {*self._always}
        while pending or new:
            if any(names.searches for names in pending):
                raise AllFiles
            for names in pending:
                new.update(*(self._modules.get(word, ()) for word in names.modules))
                new.update(*(self._files.get(word, ()) for word in names.words))
            new -= found
            found |= new
            pending, new = [self._read(name) for name in new], set()
        return found

    @functools.cache  # noqa: B019 (it lives as long as the folder)
    def _read(self, name: str) -> _Names:
        """Return what a file names. Only a program searches; a link names the file to which it leads."""
        path = os.path.join(self._folder, name)
        text = ""
        with contextlib.suppress(OSError):  # a link may lead nowhere
            if os.path.getsize(path) <= _LONGEST:
                text = Path(path).read_text(encoding="utf-8", errors="replace")
        names = _names_in(f"{text} {self._targets[name]}")
        return names if name.endswith(_PROGRAMS) else names._replace(searches=False)


def names_of_modules(text: str) -> frozenset[str]:
    """Return the first parts of the names of modules and programs that a text may import or start."""
    return _names_in(text).modules


@functools.lru_cache(4096)
def _names_in(text: str) -> _Names:
    words = frozenset(_WORD.findall(text))
    modules = {word for line in _IMPORT.findall(text) for word in _WORD.findall(line)}
    modules.update(_STARTED.findall(text), _PROGRAM.findall(text))
    return _Names(words, frozenset(modules), not words.isdisjoint(SEARCHES))
