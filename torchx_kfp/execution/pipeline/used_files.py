"""The files that a program may use, found by its words, without parsing or running it.

A file is used if the program's command, or another used file, names it:

- a module, if it is imported, started (``-m NAME``), or named as ``NAME.py``. All modules of this name count,
  wherever they are, and all of a package;
- any other file, if a word of its path occurs there: ``open(f"data/{name}.csv")`` names all files that have ``data`` or
  ``csv`` in their paths.

A program uses all files if it is not Python, if its words do not show what it starts, or if a file that it uses has a
word of ``SEARCHES``: it may use files without naming them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import shlex
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torchx_kfp.common.text import counted, listed

#: Words of code that lists folders, starts programs, or imports modules by name.
SEARCHES = frozenset(
    (
        *("listdir", "scandir", "walk", "iterdir", "glob", "iglob", "rglob", "copytree", "chdir"),
        *("subprocess", "system", "popen", "Popen", "exec", "create_subprocess_exec", "create_subprocess_shell"),
        *(f"{name}{how}" for name in ("exec", "spawn") for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
        *("posix_spawn", "posix_spawnp", "fwalk"),
        *("importlib", "import_module", "__import__", "runpy", "run_path", "run_module", "pkgutil", "hydra"),
    )
)
#: Modules that Python or its own modules import, and a file that a library looks for by itself.
_BY_THEMSELVES = sys.stdlib_module_names | {"sitecustomize", "usercustomize"}
LOOKED_FOR = ".env"
#: Suffixes of modules, also of ``.cpython-311-x86_64-linux-gnu.so``.
_IMPORTED = (".py", ".so", ".pyd", ".pyc")
_PROGRAMS = (".py", ".ipynb")
#: This package: what it starts and opens are files that a stage names.
_OWN = "torchx_kfp/"
#: The largest file whose words are read, in bytes.
_LONGEST = 1 << 20
#: How many files a description names.
_NAMED = 8

#: Programs whose command lines name what they run: Python, and programs that start it.
_PYTHON = re.compile(r"python[0-9.]*|torchrun|accelerate|deepspeed")
#: Packages whose modules start what follows, and use nothing else of a workspace.
_STARTERS = frozenset(("torch", "accelerate", "deepspeed", "torchx_kfp"))
_MODULE = re.compile(r"-{1,2}(?:[a-zA-Z]*m|module)")
_SHELLS = ("sh", "bash")
#: This folder, or one around it, or a program elsewhere.
_ELSEWHERE = re.compile(r"(?:.*=)?\.{1,2}(?:/\.{0,2})*|/.*\.py")

_WORD = re.compile(r"\w+")
_CONTINUED = re.compile(r"\\\r?\n")
#: What follows in a line after a statement that imports modules has begun, and the first parts of names in it.
_IMPORT = re.compile(r"(?:^|[^\w\s])\s*(?:from|import)\b(.*)")
_NAME = re.compile(r"(?:(?<![\w.])|(?<=\bfrom))\.*(\w+)")
#: The first part of a module after ``-m``, also in ``-um`` and ``--module``.
_STARTED = re.compile(r"-[a-zA-Z]*m(?:odule)?\W*(\w+)")
#: The end of the path of a program, what a name does not have, and the characters of one that are read.
_SUFFIX = re.compile(r"\.(?:py|ipynb)(?!\w)")
_BETWEEN = re.compile(r"[^\w@%+,.-]+")
_LONGEST_NAME = 255


class CodeFile(NamedTuple):
    """A file that programs may use.

    Attributes:
        name: its path in its folder, with ``/``.
        path: its local path.
        fingerprint: its digest, or its size and modification time.
        target: the target of a link; empty for a file.
    """

    name: str
    path: str
    fingerprint: str
    target: str = ""


@dataclass(frozen=True)
class Code:
    """The files that a stage may use.

    Attributes:
        files: their fingerprints by their names in messages.
        whole: the folders of which all files are used, if any.
        variables: the inherited variables that they name.
        why: why all files count, as a clause.
    """

    files: Mapping[str, str]
    whole: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the files, as hexadecimal digits."""
        text = "\n".join(f"{name} {told}" for name, told in sorted(self.files.items()))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def __str__(self) -> str:
        """Return what was counted: ``train.py, data.py``, or ``all 31 files of . (train.py has the word glob)``."""
        if self.whole:
            return f"all {counted(len(self.files), 'file')} of {self.whole}{f' ({self.why})' if self.why else ''}"
        names = [*self.files]
        if len(names) > _NAMED:
            folders = Counter(_folder_of(name) for name in names)
            names = [name for name in names if folders[_folder_of(name)] == 1]
            names += [f"{folder} ({count:,} files)" for folder, count in folders.items() if count > 1]
        return listed(names, _NAMED) or "none"


def _folder_of(name: str) -> str:
    """Return the folder that counts for a file: the first of its path; for an absolute path, the whole folder."""
    if name.startswith("/"):
        return os.path.dirname(name)
    return f"{name.split('/')[0]}/" if "/" in name else name


class _AllFilesError(Exception):
    """A program may use any file. The message says why, as a clause."""


class UsedFiles:
    """Finds the files that programs use.

    Args:
        files: the files, by their names in messages.
        whole: the folders of which these are all files.
    """

    def __init__(self, files: Mapping[str, CodeFile], whole: str) -> None:
        self.files = files
        self._whole = whole
        links = (title for title, file in files.items() if file.target and os.path.isdir(file.path))
        self._linked_folder = next(links, "")
        #: The files that a word names, and those that the name of a module names.
        self._others: dict[str, set[str]] = {}
        self._modules: dict[str, set[str]] = {}
        tops: dict[str, str] = {}
        for title, (name, *_) in files.items():
            *folders, last = name.split("/")
            if name.endswith(_IMPORTED):
                for word in (*folders, last.partition(".")[0]):
                    self._modules.setdefault(word, set()).add(title)
            else:
                for word in _WORD.findall(name):
                    self._others.setdefault(word, set()).add(title)
            if name.endswith(".py"):
                tops[name.removesuffix("/__init__.py").removesuffix(".py")] = title
        self._always = {title for top in tops.keys() & _BY_THEMSELVES for title in self._modules[top]}
        self._always |= {title for title, file in files.items() if os.path.basename(file.name) == LOOKED_FOR}
        self._found: dict[tuple[str, ...], Code] = {}

    def of(self, programs: Iterable[Sequence[str]], texts: Iterable[str]) -> Code:
        """Return the files that a stage may use.

        Args:
            programs: the command lines of its programs.
            texts: other texts that may name files, such as the values of their variables.
        """
        programs = [*programs]
        # The folder of an interpreter names no file.
        key = (*(shlex.join(_name_of_python(word) for word in program) for program in programs), *texts)
        if key not in self._found:
            try:
                for program in programs:
                    self._verify_known(program)
                titles = self._follow(key)
                self._found[key] = Code({title: self.files[title].fingerprint for title in sorted(titles)})
            except _AllFilesError as error:
                everything = {title: file.fingerprint for title, file in sorted(self.files.items())}
                self._found[key] = Code(everything, self._whole, why=str(error))
        return self._found[key]

    def _verify_known(self, program: Sequence[str]) -> None:
        """Raise _AllFilesError unless a program is Python and starts one of the files."""
        words = _python_words(program)
        if not words:
            command = os.path.basename(program[0]) if program else "the command of the image"
            raise _AllFilesError(f"{command} is not followed")
        if place := next(filter(_ELSEWHERE.fullmatch, words), None):
            raise _AllFilesError(f"the command names {place}")
        modules = [after.partition(".")[0] for word, after in itertools.pairwise(words) if _MODULE.fullmatch(word)]
        for module in modules:
            if module not in self._modules and module not in _STARTERS:
                raise _AllFilesError(f"the command starts the module {module}, which is not one of them")
        if not any(module in self._modules for module in _names_of_modules(shlex.join(words))):
            raise _AllFilesError("the command names none of them")

    def _follow(self, texts: Iterable[str]) -> set[str]:
        if self._linked_folder:  # its files have several names
            raise _AllFilesError(f"the link {self._linked_folder} leads to a folder")
        found: set[str] = set()
        pending = [(_names_in(text), True, "the command") for text in texts]
        new = {*self._always}
        while pending or new:
            for (words, modules), is_program, title in pending:
                if is_program and (searches := sorted(words & SEARCHES)):
                    raise _AllFilesError(f"{title} has the word {searches[0]}")
                new.update(*(self._modules.get(word, ()) for word in modules))
                new.update(*(self._others.get(word, ()) for word in words))
                # A name may begin with such a word: open(f"part_{number}").
                for begin in (word for word in words if word.endswith("_") and word.strip("_")):
                    new.update(*(titles for word, titles in self._others.items() if word.startswith(begin)))
            new -= found
            found |= new
            read = sorted(title for title in new if not self.files[title].name.startswith(_OWN))
            pending = [(self._read(title), self.files[title].name.endswith(_PROGRAMS), title) for title in read]
            new = set()
        return found

    @functools.cache  # noqa: B019 (it lives as long as the files)
    def _read(self, title: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return the words and modules in a file, including the target of a link."""
        file = self.files[title]
        with contextlib.suppress(OSError):  # it is gone meanwhile
            if file.name.endswith(_PROGRAMS) and os.path.getsize(file.path) > _LONGEST:
                raise _AllFilesError(f"{title} is too large to read")
        return _names_in(f"{text_of(file.path)} {file.target}")


def _python_words(program: Sequence[str]) -> Sequence[str]:
    """Return the command line of a Python program; none if it may run something else."""
    words = list(program)
    if len(words) > 2 and os.path.basename(words[0]) in _SHELLS and words[1] in ("-c", "-ec"):
        if re.search(r"[;|&<>`()\n]|PWD|~", words[2]):
            return []
        try:
            words = [*shlex.split(words[2]), *words[3:]]
        except ValueError:
            return []
    while words and (os.path.basename(words[0]) == "env" or "=" in words[0]):
        del words[0]
    return words if words and is_python(words[0]) else []


def _name_of_python(word: str) -> str:
    """Return the name of an interpreter instead of its path; other words as they are."""
    return os.path.basename(word) if os.path.isabs(word) and is_python(word) else word


def is_python(word: str) -> bool:
    """Return whether a word is the name or path of an interpreter, or of a program that starts it."""
    return _PYTHON.fullmatch(os.path.basename(word)) is not None


def text_of(path: str) -> str:
    """Return the text of a file, or "" if it is large or a broken link."""
    with contextlib.suppress(OSError):
        if os.path.getsize(path) <= _LONGEST:
            return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def _names_of_modules(text: str) -> frozenset[str]:
    """Return the first parts of the names of modules and programs that a text may import or start."""
    if not text.isascii():  # Python normalizes letters in names
        text = unicodedata.normalize("NFKC", text)
    lines = [line for line in _CONTINUED.sub(" ", text).splitlines() if "import" in line]
    imported = (name for line in lines for names in _IMPORT.findall(line) for name in _NAME.findall(names))
    ends = [match.start() for match in _SUFFIX.finditer(text)]
    programs = (_BETWEEN.split(text[max(0, end - _LONGEST_NAME) : end])[-1].partition(".")[0] for end in ends)
    return frozenset((*imported, *programs, *_STARTED.findall(text)))


@functools.lru_cache(4096)
def _names_in(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words of a text, and the modules that it names."""
    return frozenset(_WORD.findall(text)), _names_of_modules(text)
