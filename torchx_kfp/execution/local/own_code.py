"""The local code that the processes of a run can use.

``UsedFiles`` searches a stage's workspace or, without one, its start directory; and folders with source code that its
interpreter imports: those of ``PYTHONPATH``, of editable installs (PEP 610), and those that its files add to
``sys.path``. It also searches the folders of its scripts, and those that its command enters.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import shlex
import shutil
import string
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from torchx_kfp.contract.command import DecodedCommand, decode_command
from torchx_kfp.contract.scripts import workspaces_in
from torchx_kfp.execution.local.packages import installed_folders
from torchx_kfp.execution.pipeline.artifacts import parameters_of
from torchx_kfp.execution.pipeline.placeholders import PlaceholderValues, resolve_command
from torchx_kfp.execution.pipeline.used_files import LOOKED_FOR, Code, CodeFile, UsedFiles, is_python, text_of
from torchx_kfp.execution.pipeline.values import to_text
from torchx_kfp.execution.runs.stage_code import programs_of, unpack_files
from torchx_kfp.tracking.record_tracker import list_code

if TYPE_CHECKING:
    from torchx_kfp.execution.local.executors.executor import AttemptPlan

#: Files outside the directory that count if a command names them; others are data.
_PROGRAMS = ("py", "ipynb", "sh", "bash", "R", "jl", "js", "pl", "rb", "sql")
_CONFIGURATIONS = (
    "yaml",
    "yml",
    "toml",
    "ini",
    "cfg",
    "json",
    "jsonl",
    "conf",
    "properties",
    "env",
    "xml",
    "args",
    "j2",
)
_CODE = tuple(f".{suffix}" for suffix in (*_PROGRAMS, *_CONFIGURATIONS))
_SCRIPTS = tuple(f".{suffix}" for suffix in _PROGRAMS)
#: Files that may name a variable of the environment; so may a file without a suffix, such as a Makefile.
_READS_VARIABLES = (*_SCRIPTS, *(f".{suffix}" for suffix in _CONFIGURATIONS if not suffix.startswith("json")))
#: Variables that a shell sets by itself: they differ between terminals, and ``_`` is a word of many programs.
_OF_SHELLS = ("_", "PWD", "OLDPWD", "SHLVL")
#: Words before a folder that the command enters.
_GOES = ("cd", "pushd", "-C", "--chdir")
_INSTALLED = ("site-packages", "dist-packages")
#: This package, whose own folder is not the code of stages even if it is an editable install.
_OWN = Path(__file__).resolve().parents[3]
_PLACEHOLDER = re.compile(r"\{\{\$.*?\}\}")
#: A folder with the id of a local run.
_OF_RUN = re.compile(r"(?:^|/)[\w.-]+-\d{8}-\d{6}-[0-9a-f]{6}/")
_SETS_PATH = "PYTHONPATH="
#: A change of ``sys.path``; and paths in a Python file that lead out of its folder, or go up from it.
_CHANGES_PATH = re.compile(r"sys\.path\b|\baddsitedir\b")
_LEADS_OUT = re.compile(r"""["'](/?\.\.(?:/[^"'\n]*)?|/[^"'\n]*)["']""")
_GOES_UP = re.compile(r"\bparent\b|\bdirname\b")
_GOES_UP_BY = re.compile(r"\bparents\[(\d)\]")
#: Ends the words of a shell program.
_BETWEEN = re.compile(r"[\s;|&<>()'\"`]+")
#: How many characters of a text are searched for names of files.
_LONGEST = 1 << 20


class LocalCode:
    """Find the code of a run's stages.

    Args:
        directory: the folder in which stages start.
        without: folders in it without code, in which runs write.
        workspaces: the archives of the workspaces that travel with the run, by their URLs.

    Attributes:
        written: the fingerprints of files that stages wrote and registered as artifacts, by path. They are not code,
            unless they have changed since.
    """

    def __init__(
        self,
        directory: str,
        without: Collection[str] = (),
        workspaces: Mapping[str, bytes] | None = None,
    ) -> None:
        self._directory = os.path.realpath(directory)
        self._without = without
        self._workspaces = workspaces or {}
        self.written: Mapping[str, str] = {}
        self._listed = functools.cache(self._list)
        self._packed = functools.cache(self._files_of)
        #: The finders, by workspace (empty for the directory) and further folders.
        self._finders: dict[tuple[str, ...], UsedFiles] = {}
        self._added = functools.cache(_added_folders)

    def of(self, plan: AttemptPlan) -> Code:
        """Return the code of a stage's process.

        Raises:
            ArgumentError: it is in a folder with too many files.
        """
        found, programs, texts = _programs_of(plan)
        words = _shell_words(found.words, {**plan.environ, **found.variables, "PWD": self._directory})
        python_path = [plan.environ.get("PYTHONPATH", ""), found.variables.get("PYTHONPATH", "")]
        python_path += [word.removeprefix(_SETS_PATH) for word in words if word.startswith(_SETS_PATH)]
        named = [*texts, *(word for program in programs for word in program), *words]
        workspace = next(filter(None, workspaces_in(found.words)), "")
        search_path = plan.environ.get("PATH", "")
        folders = [
            *self._script_folders(named, search_path),
            *(os.path.expanduser(one) for path in python_path for one in path.split(os.pathsep) if one),
            *(folder for before, folder in itertools.pairwise(words) if before in _GOES or is_python(before)),
            *self._editable_installs(programs, search_path),
        ]
        texts = [text[:_LONGEST] for text in texts]
        finder = self._finder(workspace, folders)
        code = finder.of(programs, texts)
        if not workspace:
            reached = [_reached(text, self._directory) for text in named]
            reached += [_reached_by(*finder.files[name][1:3]) for name in code.files if name.endswith(".py")]
            named += {path for files, _ in reached for path in files}
            if added := sorted({path for _, places in reached for path in places if _has_modules(path)}):
                finder = self._finder(workspace, [*folders, *added])
                code = finder.of(programs, texts)
        others = [*self._named(named, is_local=not workspace)]
        files = (*others, *(finder.files[name] for name in code.files))
        inherited = {name: text for name, text in os.environ.items() if plan.environ.get(name) == text}
        names = [name for text in {*named, *found.words} for name in re.findall(r"\w+", text)]
        return Code(
            {**{file.path: file.fingerprint for file in others}, **code.files},
            code.whole,
            _variables_named({*names, *_words_of(files)}, inherited),
            code.why,
        )

    def workspaces_of(self, plan: AttemptPlan) -> list[str]:
        """Return the URLs of a stage's workspaces with known files, unless its application also reads them."""
        found, programs, texts = _programs_of(plan)
        own = [*texts, *(word for program in programs for word in program)]
        urls = {url for url in workspaces_in(found.words) if url in self._workspaces}
        return [url for url in urls if not any(url in text for text in own)]

    def look_again(self) -> None:
        """List the folders again for the next stage: a finished one may have written code."""
        self._listed.cache_clear()

    def _finder(self, workspace: str, places: Iterable[str]) -> UsedFiles:
        files = dict(self._packed(workspace) if workspace else self._listed(self._directory))
        whole = ["the workspace" if workspace else self._shown(self._directory)]
        known, top = {file.path for file in files.values()}, os.path.join(self._directory, "")
        folders: list[str] = []
        for folder in dict.fromkeys(os.path.realpath(os.path.join(self._directory, place)) for place in places):
            inside = os.path.join(folder, "")
            if inside.startswith(top) and (workspace or any(path.startswith(inside) for path in known)):
                continue
            if found := {file.path: file for file in self._listed(folder).values() if file.path not in known}:
                files |= found
                folders.append(folder)
                whole.append(self._shown(folder))
        key = (workspace, *folders)
        before = self._finders.get(key)
        if before is not None and before.files == files:
            return before
        finder = self._finders[key] = UsedFiles(files, " and ".join(dict.fromkeys(whole)))
        return finder

    def _files_of(self, workspace: str) -> dict[str, CodeFile]:
        """Return the files of a workspace; if they are unknown, the digest in its URL stands for all of them."""
        if workspace not in self._workspaces:
            return {workspace: CodeFile(workspace, "", workspace)}
        # The files of the archive, as stages get them: the folder may have been edited since.
        folder = os.path.realpath(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return unpack_files(self._workspaces[workspace], folder)

    def _list(self, folder: str) -> dict[str, CodeFile]:
        """Return the files of a folder by name, including those of linked folders elsewhere."""
        files: dict[str, CodeFile] = {}
        pending = [("", folder)] if _is_source(folder) else []
        seen = set()
        while pending:
            prefix, path = pending.pop()
            seen.add(path)
            for entry in list_code(path, self._without):
                name = prefix + entry.name
                to = os.path.realpath(entry.path) if entry.target is not None else ""
                is_elsewhere = bool(to) and not f"{to}/".startswith(f"{folder}/")
                if _OF_RUN.search(name) or self._is_written(entry.path):
                    continue
                if is_elsewhere and os.path.isdir(to) and to not in seen:
                    pending.append((f"{name}/", to))
                elif is_elsewhere and os.path.isfile(to):
                    files[name] = CodeFile(name, to, fingerprint(to))
                elif os.path.isfile(to):  # it may be ignored
                    files[name] = CodeFile(name, entry.path, f"{fingerprint(to)} {entry.target}", entry.target or "")
                else:
                    told = f"{entry.size} {entry.modified} {entry.executable:d} {entry.target or ''}"
                    files[name] = CodeFile(name, entry.path, told, entry.target or "")
        return files

    def _is_written(self, path: str) -> bool:
        return path in self.written and self.written[path] == fingerprint(path)

    def _named(self, words: Iterable[str], *, is_local: bool) -> Iterator[CodeFile]:
        """Yield code files named in words that are outside the directory, or ignored."""
        listed = self._listed(self._directory) if is_local else {}
        for path in {LOOKED_FOR, *_paths_in(words)} if is_local else filter(os.path.isabs, _paths_in(words)):
            path = os.path.normpath(os.path.join(self._directory, path))
            if path.removeprefix(os.path.join(self._directory, "")) not in listed and _is_code(path):
                yield CodeFile(path, path, fingerprint(path))

    def _script_folders(self, words: Iterable[str], search_path: str) -> Iterator[str]:
        """Yield the folders of scripts, from which they import modules, even if elsewhere or ignored."""
        installed = search_path.split(os.pathsep)
        for path in _paths_in(words):
            path = os.path.join(self._directory, path)
            if path.endswith(_SCRIPTS) and os.path.isfile(path):
                folder = os.path.dirname(os.path.realpath(path))
                if folder not in installed:
                    yield folder

    def _editable_installs(self, programs: Iterable[Sequence[str]], search_path: str) -> list[str]:
        """Return the folders of editable installs of the running interpreter, and of those of programs."""
        found = installed_folders()
        found += (folder for program in programs for folder in _packages_of(program, search_path))
        return [folder for place in dict.fromkeys(map(os.path.realpath, found)) for folder in self._added(place)]

    def _shown(self, folder: str) -> str:
        return "." if folder == os.path.realpath(os.curdir) else folder


def _programs_of(plan: AttemptPlan) -> tuple[DecodedCommand, Sequence[Sequence[str]], list[str]]:
    """Return a stage's command, its programs, and all other texts that may name files."""
    container = plan.component.container
    assert container is not None
    values = PlaceholderValues(parameters=parameters_of(plan.inputs), unset=plan.placeholders.unset)
    # Paths of outputs differ in each run, and are not code.
    command = decode_command([_PLACEHOLDER.sub("", word) for word in resolve_command(container.words, values)])
    programs, texts = programs_of(command, [*plan.variables.items(), *command.variables.items()])
    if plan.python is None:
        return command, programs, texts
    return command, [], [*texts, plan.python.source, *map(to_text, parameters_of(plan.inputs).values())]


def _shell_words(words: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """Return the words, with shell programs split into words and variables filled in."""
    folders: list[str] = []
    for word in words:
        split = [word]
        if len(word) < 4096:
            with contextlib.suppress(ValueError):
                lexer = shlex.shlex(word, posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                split = [*lexer]
        folders += split
    return [os.path.expanduser(string.Template(word).safe_substitute(variables)) for word in folders]


def _reached(text: str, folder: str) -> tuple[set[str], set[str]]:
    """Return the files outside a folder that a program in it may name, and the folders to import modules from."""
    files = {path.lstrip("/") if path.startswith("/..") else path for path in _LEADS_OUT.findall(text)}
    places: set[str] = set()
    if _CHANGES_PATH.search(text):
        ups = [len(_GOES_UP.findall(line)) - 1 for line in text.splitlines() if "__file__" in line]
        ups += map(int, _GOES_UP_BY.findall(text))
        places = files | {"../" * count for count in ups if count > 0}
    return _below(files, folder), _below(places, folder)


def _below(paths: Iterable[str], folder: str) -> set[str]:
    return {os.path.normpath(os.path.join(folder, path)) for path in paths}


def _variables_named(words: Collection[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that words name: whole, or by a prefix that ends with ``_``, as in ``f"APP_{name}"``."""
    begins = tuple(word for word in words if word.endswith("_") and word.strip("_"))
    named = (name for name in environ if name in words or (begins and name.startswith(begins)))
    return {name: environ[name] for name in named if name not in _OF_SHELLS}


@functools.lru_cache(64)
def _words_of(files: tuple[CodeFile, ...]) -> frozenset[str]:
    """Return the words in the files that may name a variable."""
    found: set[bytes] = set()
    for file in files:
        if file.name.endswith(_READS_VARIABLES) or "." not in os.path.basename(file.name):
            with contextlib.suppress(OSError), open(file.path, "rb") as opened:  # it may be gone meanwhile
                found.update(re.findall(rb"\w+", opened.read(_LONGEST)))
    return frozenset(word.decode("latin-1") for word in found)


def _has_modules(folder: str) -> bool:
    return os.path.isdir(folder) and any(next(Path(folder).glob(one), None) for one in ("*.py", "*/__init__.py"))


@functools.lru_cache(1 << 15)
def _reached_by(path: str, _fingerprint: str) -> tuple[set[str], set[str]]:
    return _reached(text_of(path), os.path.dirname(path))


def _paths_in(words: Iterable[str]) -> set[str]:
    """Return the possible paths of files in these words."""
    parts = {part for word in words for part in ([word] if len(word) < 4096 else []) + _BETWEEN.split(word[:_LONGEST])}
    parts |= {part.rpartition("=")[2] for part in parts}
    return {part.lstrip("@") for part in parts if part and len(part) < 4096 and "\0" not in part}


def _is_code(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.isfile(path) and (
            path.endswith(_CODE) or os.path.basename(path) == LOOKED_FOR or os.access(path, os.X_OK)
        )
    return False


def fingerprint(path: str) -> str:
    """Return a file's size and modification time, which change with its content; empty if it is missing."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return f"{status.st_size} {status.st_mtime_ns}"
    return ""


def _is_source(folder: str) -> bool:
    """Return whether a folder of ``sys.path`` has code, rather than installed packages."""
    is_installed = any(part in _INSTALLED for part in folder.split("/")) or f"{folder}/".startswith(
        f"{os.path.dirname(os.__file__)}/"
    )
    return os.path.isdir(folder) and not is_installed


def _packages_of(program: Sequence[str], search_path: str) -> list[str]:
    """Return the folders with the installed packages of the interpreter to which a program may belong."""
    path = shutil.which(program[0], path=search_path) if program else None
    if not path or not os.path.isabs(path):
        return []
    return [*map(str, sorted(Path(path).parent.parent.glob("lib*/python3*/*-packages")))]


def _added_folders(packages: str) -> list[str]:
    """Return the folders of source code to which a folder with installed packages refers."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(packages):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                if entry.name.endswith(".pth"):
                    lines = Path(entry.path).read_text(errors="replace").splitlines()
                    found += [line.strip() for line in lines if line.strip() and not line.startswith(("#", "import"))]
                elif entry.name.endswith(".dist-info"):
                    about = json.loads(Path(entry.path, "direct_url.json").read_text())
                    found += [unquote(urlsplit(about["url"]).path)] if about["dir_info"]["editable"] else []
    folders = dict.fromkeys(os.path.realpath(os.path.join(packages, folder)) for folder in found)
    return [folder for folder in folders if folder != str(_OWN) and _is_source(folder)]
