"""Name the code of each stage that starts in a workspace, so that only stages whose code has changed run again.

The URL of a workspace changes with any file in it. So the tasks of a pipeline get, in place of the parameter
``workspace``, the name of the code that they can use (``protocol.code_name``), and their containers the URL in a
variable. That is not in KFP's key of a task in its cache, which has image, command and arguments, inputs and outputs
(KFP's ``cacheutils``). The whole workspace travels anyway.

What a stage can use is found without running it. If the program searches folders, or is not Python, it is all files;
but a name that is computed at run time is not found.
"""

from __future__ import annotations

import ast
import bisect
import contextlib
import fnmatch
import functools
import hashlib
import itertools
import os
import re
import shlex
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchx_kfp.contract.carried.workspace import content, members, unpack
from torchx_kfp.contract.command import decode
from torchx_kfp.contract.inputs import parameter_placeholder
from torchx_kfp.contract.protocol import CODE_URL, STAGE_INPUTS, WORKSPACE_PARAMETER, code_name, is_code_name
from torchx_kfp.contract.scripts import workspaces_in
from torchx_kfp.execution.pipeline.code_files import CodeFiles, Modules, ProgramText, Stamp, TooManyFiles
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.surgery import with_specs
from torchx_kfp.execution.pipeline.walk import KnownStage, ScopedTask, known_stages

#: Programs whose words tell what they run: Python, and those that start it.
_PYTHON = re.compile(r"python[0-9.]*|torchrun|accelerate|deepspeed")
_SHELLS = ("sh", "bash")
#: Modules that Python's own modules import, if a workspace has files of these names.
_BY_THEMSELVES = sys.stdlib_module_names | {"sitecustomize", "usercustomize"}
#: Functions that take a module, a folder or a pattern. If that is not a constant, all files count.
_SEARCHES = frozenset(("import_module", "__import__", "run_module", "run_path", "exec", "listdir", "scandir", "walk"))
_SEARCHES |= {"iterdir", "glob", "iglob", "rglob"}
_ANYWHERE = frozenset(("", ".", "./", "..", "../"))
#: Languages other than Python, whose programs are not read.
_PROGRAMS = frozenset((".sh", ".bash", ".R", ".jl", ".js", ".pl", ".rb"))
#: The name of something in a module, such as ``models.Net`` in a configuration, or ``models:Net``.
_DOTTED = re.compile(r"[A-Za-z_]\w*[.:]\w")
#: What a value replaces in a text: in ``str.format``, and after ``%``.
_VALUE = re.compile(r"\{[^{}]*\}|%[-+ #0-9.]*[a-zA-Z]")
#: Characters of a name, at most.
_LONGEST = 1024


def name_code(pipeline: Pipeline, arguments: Mapping[str, Any], archive: bytes | None) -> Pipeline:
    """Return the pipeline with names of code where the URL that its parameter ``workspace`` has would be filled in.

    Args:
        pipeline: a compiled pipeline. That of an earlier run has names already, of that run's code.
        arguments: the values of all parameters.
        archive: the workspace with that URL. Without it, stages that have a name for other code get the URL.
    """
    url = arguments.get(WORKSPACE_PARAMETER)
    if not url or not isinstance(url, str):
        return pipeline
    #: The files of each task, and its input with the workspace, by its scope and name: a group may be used twice.
    found: dict[tuple[str, str], tuple[str, set[str]]] = {}
    executors: set[str] = set()
    with contextlib.nullcontext() if archive is None else _unpacked(archive) as workspace:
        for stage in known_stages(pipeline, arguments):
            if name := _input_to_name(stage, url, is_at_hand=workspace is not None):
                place = stage.place.scope.name, stage.place.task.name
                files = found.setdefault(place, (name, set()))[1]
                files.update(() if workspace is None else workspace.files_of(stage))
                executors.add(stage.place.component.name)
    if not found:
        return pipeline
    spec, platform = pipeline.copy_documents()
    components = {**spec["components"], "root": spec["root"]}
    for (scope, task), (name, files) in found.items():
        value = url if workspace is None else workspace.name_of(files)
        parameters = components[scope]["dag"]["tasks"][task]["inputs"]["parameters"]
        parameters[name] = {"runtimeValue": {"constant": value}}
    for component in executors:
        container = spec["deploymentSpec"]["executors"][components[component]["executorLabel"]]["container"]
        others = [one for one in container.get("env", ()) if one["name"] != CODE_URL]
        container["env"] = [*others, {"name": CODE_URL, "value": url}]
    return with_specs(spec, platform)


def _input_to_name(stage: KnownStage, url: str, *, is_at_hand: bool) -> str:
    """Return the input of a stage that has the workspace, if it is to get another value; empty otherwise."""
    container = stage.place.component.container
    words = container.words if container is not None else ()
    name, inputs = "", stage.inputs
    for word in workspaces_in(words):
        name = next((one for one in inputs if word == parameter_placeholder(one)), "")
    text = " ".join(words)
    # The application may read it as well.
    if not name or text.count(parameter_placeholder(name)) != len(workspaces_in(words)):
        return ""
    is_other = is_code_name(inputs[name]) and dict(stage.container.env).get(CODE_URL) != url
    return name if is_other or (is_at_hand and (inputs[name] == url or is_code_name(inputs[name]))) else ""


def changed_files(
    stages: Mapping[str, tuple[KnownStage, KnownStage]], before: bytes, now: bytes
) -> Mapping[str, Sequence[str]]:
    """Return which files differ of those that stages may use.

    Args:
        stages: stages of an earlier run and of this one, by any names.
        before: the workspace of the earlier run.
        now: that of this one.
    """
    found = {}
    with _unpacked(before) as old, _unpacked(now) as new:
        for name, (one, other) in stages.items():
            files = old.files_of(one) | new.files_of(other)
            found[name] = sorted(file for file in files if old.files.get(file) != new.files.get(file))
    return found


@contextlib.contextmanager
def _unpacked(archive: bytes) -> Iterator[_Workspace]:
    with tempfile.TemporaryDirectory() as folder:
        yield _Workspace(archive, os.path.realpath(folder))


class _Workspace:
    """The files of a workspace, unpacked; ``files`` has what identifies each, by its name."""

    def __init__(self, archive: bytes, folder: str) -> None:
        """Unpack the archive into an empty folder, whose path has no links."""
        unpack(archive, folder)
        self._folder = folder
        self.files = {member.name: _fingerprint(archive, member) for member in members(archive)}
        self._found: dict[tuple[Any, ...], set[str]] = {}
        self._code = _UsedFiles(folder, list(self.files))

    def files_of(self, stage: KnownStage) -> set[str]:
        """Return the names of the files that a stage may use."""
        facts = stage.facts
        roles = [(role.command, role.env) for role in facts.replica_roles]
        programs = [decode(words).application for words, _ in roles] or [facts.application]
        variables = dict(stage.variables)
        for _, env in roles:
            variables |= env
        python_path = variables.get("PYTHONPATH", "")
        items = [around.task.loop.raw or "" for around in _around(stage.place) if around.task.loop is not None]
        items += variables.get(STAGE_INPUTS, "").split(":")
        key = (*programs, python_path, *items)
        if key not in self._found:
            self._found[key] = self._find(programs, python_path, items)
        return self._found[key]

    def _find(self, programs: Sequence[Sequence[str]], python_path: str, items: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for program in programs:
            words = _python_words(program)
            if words is None:
                return {*self.files}
            try:
                stamps = self._code.of([*words, *items], python_path)
            except (TooManyFiles, _AllFiles):
                return {*self.files}
            found.update(os.path.relpath(os.path.realpath(path), self._folder) for path, _, _ in stamps)
        return found & self.files.keys()

    def name_of(self, files: Iterable[str]) -> str:
        """Return the name of the code in these files. All links count: a path may lead through them."""
        links = (name for name, text in self.files.items() if text.startswith("link "))
        text = "\n".join(f"{name} {self.files[name]}" for name in sorted({*files, *links}))
        return code_name(hashlib.sha256(text.encode()).hexdigest())


def _around(place: ScopedTask | None) -> Iterator[ScopedTask]:
    while place is not None:
        yield place
        place = place.inside


def _fingerprint(archive: bytes, member: tarfile.TarInfo) -> str:
    if member.issym():
        return f"link {member.linkname}"
    return f"{member.mode:o} {hashlib.sha256(content(archive, member)).hexdigest()}"


def _python_words(program: Sequence[str]) -> Sequence[str] | None:
    """Return the command line of a program that runs Python; None if it may run something else."""
    words = list(program)
    if len(words) > 2 and os.path.basename(words[0]) in _SHELLS and words[1] in ("-c", "-ec"):
        if re.search(r"[;|&<>`()\n]", words[2]):
            return None
        try:
            words = shlex.split(words[2])
        except ValueError:
            return None
    while words and (os.path.basename(words[0]) == "env" or "=" in words[0]):
        del words[0]
    return words if words and _PYTHON.fullmatch(os.path.basename(words[0])) else None


class _AllFiles(Exception):
    """A program may use any file."""


class _UsedFiles(CodeFiles):
    """Finds the files of a workspace that a Python program may use: modules, and files and folders that it names."""

    def __init__(self, folder: str, names: Iterable[str]) -> None:
        super().__init__(Path(folder))
        self._names = sorted(names)
        self._folders = {folder for name in self._names for folder in _parents(name)}
        own = (name for name in self._names if name.rpartition("/")[2].removesuffix(".py") in _BY_THEMSELVES)
        self._always = [os.path.join(folder, name) for name in own]

    def _files(self, text: ProgramText, folder: str, modules: Modules) -> Iterator[str]:
        yield from self._always
        top = os.path.join(self._directory, "")
        yield from (path for path in super()._files(text, folder, modules) if path.startswith(top))
        inside = os.path.relpath(folder, self._directory)
        for name in _names_in(text):
            for place in ("", inside, *_parents(inside)):
                for found in self._matching(os.path.normpath(os.path.join(place, name)), name):
                    yield os.path.join(self._directory, found)
            if _DOTTED.match(name):
                yield from modules.files(re.split(r"[.:]", name)[0], folder)

    def _parse(self, path: str, stamp: Stamp) -> ProgramText:
        is_python = path.endswith(".py")
        if not is_python and (os.path.splitext(path)[1] in _PROGRAMS or os.access(path, os.X_OK)):
            raise _AllFiles
        return super()._parse(path, stamp)

    def _matching(self, path: str, name: str) -> Sequence[str]:
        """Return the files that a path from the top may be, or that are in it, or begin with it."""
        if path.startswith(("/", "../")):
            return ()
        if set(path) & set("*?["):
            return [*fnmatch.filter(self._names, path), *fnmatch.filter(self._names, f"{path}/*")]
        if path in self._folders:
            path += "/"
        elif "/" not in name:
            return [path] if path in self._names else ()
        first = bisect.bisect_left(self._names, path)
        return [*itertools.takewhile(lambda found: found.startswith(path), self._names[first:])]


def _parents(name: str) -> list[str]:
    return [os.path.join(*parts) for parts in itertools.accumulate([part] for part in name.split("/")[:-1])]


@functools.lru_cache(4096)
def _names_in(text: ProgramText) -> Sequence[str]:
    """Return the names of files and folders, and patterns of names, that a program may have.

    Raises:
        _AllFiles: it searches folders, or loads modules, whose names it does not have.
    """
    names = [word for _, word in text.words]
    if not _ANYWHERE.isdisjoint(names):
        raise _AllFiles
    try:
        nodes = [*ast.walk(ast.parse(text.program))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        nodes = []
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            names.append("".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _SEARCHES:
            what = node.args[0] if node.args else None
            if not isinstance(what, ast.Constant) or what.value in _ANYWHERE:
                raise _AllFiles
    return [*dict.fromkeys(map(_pattern, filter(_is_name, names)))]


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST and text.isprintable() and any(map(str.isalnum, _VALUE.sub("", text)))


def _pattern(name: str) -> str:
    """Return the pattern of a text in which values are filled in, or of a suffix."""
    pattern = _VALUE.sub("*", name)
    return f"*{pattern}" if pattern.startswith(".") and "/" not in pattern else pattern
