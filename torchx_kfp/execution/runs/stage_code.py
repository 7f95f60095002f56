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
import importlib.util
import itertools
import json
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
from torchx_kfp.execution.pipeline.spec import Constant, Pipeline
from torchx_kfp.execution.pipeline.surgery import with_specs
from torchx_kfp.execution.pipeline.walk import KnownStage, ScopedTask, known_stages

#: Programs whose words tell what they run: Python, and those that start it.
_PYTHON = re.compile(r"python[0-9.]*|torchrun|accelerate|deepspeed")
#: Modules outside of the workspace that start what follows, and nothing else of it.
_STARTERS = re.compile(r"torch\.distributed\.(run|launch)|accelerate\.commands\.\w+|deepspeed(\..*)?|torchx_kfp\..*")
#: Options of Python before a module or a program, which may be in the same word.
_MODULE = re.compile(r"-[bBdEiIOPqRsSuvx]*m(.*)|--module=?(.*)", re.DOTALL)
_PROGRAM = re.compile(r"-[bBdEiIOPqRsSuvx]*c")
_SHELLS = ("sh", "bash")
#: Modules that Python's own modules import, if a workspace has files of these names.
_BY_THEMSELVES = sys.stdlib_module_names | {"sitecustomize", "usercustomize"}
#: Files that libraries look for, by names that the program does not have.
_LOOKED_FOR = frozenset((".env", "matplotlibrc"))
#: Functions that take a module, a folder or a pattern. If that is not a constant, all files count.
_IMPORTS = frozenset(("import_module", "__import__", "run_module"))
_LISTS = frozenset(("run_path", "listdir", "scandir", "iterdir", "iglob", "rglob"))
_SEARCHES = _IMPORTS | _LISTS | {"exec", "walk", "glob"}
#: Functions that start a program.
_STARTS = frozenset(("system", "popen", "Popen", "check_call", "check_output", "getoutput", "run", "call"))
#: Programs that read nothing of a workspace but what their words name.
_READ_NOTHING = re.compile(rf"{_PYTHON.pattern}|nvidia-smi|hostname|uname|lscpu|date|echo|rm|mkdir|touch|sleep|pip3?")
#: What takes a text that is not a path, and may be a dot.
_TEXT = frozenset(("split", "rsplit", "partition", "rpartition", "join", "replace", "startswith", "endswith"))
_TEXT |= {"strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "count", "find", "rfind", "index", "rindex"}
_TEXT |= {"print", "write"}
_SEPARATORS = ("sep", "end", "delimiter", "separator", "decimal")
#: The name of this folder, or of one around it.
_ANYWHERE = re.compile(r"\.{1,2}(/\.{0,2})*")
#: Languages other than Python, whose programs are not read.
_PROGRAMS = frozenset((".sh", ".bash", ".R", ".jl", ".js", ".pl", ".rb", ".ipynb"))
#: What Python imports, with suffixes such as ``.cpython-311-x86_64-linux-gnu.so``.
_IMPORTED = (".py", ".so", ".pyd", ".pyc")
#: The name of something in a module, such as ``models.Net`` in a configuration, or ``models:Net``.
_DOTTED = re.compile(r"[A-Za-z_]\w*[.:]\w")
#: What a value replaces in a text: in ``str.format``, after ``%``, and in ``string.Template``.
_VALUE = re.compile(r"\$?\{[^{}]*\}|\$\w+|%(?:\(\w+\))?[-+ #0-9.]*[a-zA-Z]")
#: A word or a path without anything that may be a pattern or a program.
_PLAIN = re.compile(r"[\w.\-/=:,+]*")
#: A word in a text that may be a command or a document.
_WORD = re.compile(r"[^\s;|&<>()'\"`,]+")
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
                files.update(() if workspace is None else workspace.files_of(stage, arguments))
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

    def files_of(self, stage: KnownStage, arguments: Mapping[str, Any] | None = None) -> set[str]:
        """Return the names of the files that a stage may use.

        Args:
            stage: the stage.
            arguments: the values of the pipeline's parameters, which may be items of loops.
        """
        facts = stage.facts
        roles = [(role.command, role.env) for role in facts.replica_roles]
        programs = [decode(words).application for words, _ in roles] or [facts.application]
        variables = dict(stage.variables)
        for _, env in roles:
            variables |= env
        python_path = variables.get("PYTHONPATH", "")
        items = [*_items(stage.place, arguments or {})]
        items += variables.get(STAGE_INPUTS, "").split(":")
        items += [value for name, value in variables.items() if name != CODE_URL]
        key = (*map(tuple, programs), python_path, *items)
        if key not in self._found:
            self._found[key] = self._find(programs, python_path, items)
        return self._found[key]

    def _find(self, programs: Sequence[Sequence[str]], python_path: str, items: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for program in programs:
            words, given = _python_words(program)
            path = given.get("PYTHONPATH", python_path)
            if not self._code.knows(words, path):
                return {*self.files}
            try:
                stamps = self._code.of([*words, *items, *given.values()], path)
            except _AllFiles:
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


def _items(place: ScopedTask, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield texts that have all items of the loops around a task, as far as these are known."""
    loops = [around.task.loop for around in _around(place) if around.task.loop is not None]
    for loop in loops:
        with contextlib.suppress(ValueError):
            yield json.dumps(json.loads(loop.raw or '""'), ensure_ascii=False)
    if any(loop.raw is None for loop in loops):
        sources = [source for around in _around(place) for source in around.task.inputs.values()]
        constants = [source.value for source in sources if isinstance(source, Constant)]
        values = [*constants, *(value for name, value in arguments.items() if name != WORKSPACE_PARAMETER)]
        yield from (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)


def _fingerprint(archive: bytes, member: tarfile.TarInfo) -> str:
    if member.issym():
        return f"link {member.linkname}"
    return f"{member.mode:o} {hashlib.sha256(content(archive, member)).hexdigest()}"


def _python_words(program: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the command line of a program that runs Python, and its variables; none if it may run something else."""
    words = list(program)
    if len(words) > 2 and os.path.basename(words[0]) in _SHELLS and words[1] in ("-c", "-ec"):
        if re.search(r"[;|&<>`()\n]|PWD|~", words[2]):
            return [], {}
        try:
            words = [*shlex.split(words[2]), *words[3:]]
        except ValueError:
            return [], {}
    given = {}
    while words and (os.path.basename(words[0]) == "env" or "=" in words[0]):
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    return (words if words and _PYTHON.fullmatch(os.path.basename(words[0])) else []), given


class _AllFiles(Exception):
    """A program may use any file."""


class _PythonFile(ProgramText):
    """The text of a file of Python."""


class _UsedFiles(CodeFiles):
    """Finds the files of a workspace that a Python program may use: modules, and files and folders that it names.

    A name may begin in each folder in which a program is that is found: a module may have ``Path(__file__).parent`` for
    others, and Python looks for modules beside the program with which it starts.
    """

    def __init__(self, folder: str, names: Iterable[str]) -> None:
        super().__init__(Path(folder))
        self._names = sorted(names)
        self._known = {*self._names}
        self._folders = {folder for name in self._names for folder in _parents(name)}
        self._parts = {part for name in self._names for part in name.split("/")}
        #: The files of each module, by its path without suffixes.
        self._modules: dict[str, list[str]] = {}
        for name in filter(_is_imported, self._names):
            place, _, last = name.rpartition("/")
            self._modules.setdefault(os.path.join(place, last.partition(".")[0]), []).append(name)
        stems = [(name, name.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2]) for name in self._names]
        self._always = [name for name, stem in stems if stem in _BY_THEMSELVES and name.endswith(".py")]
        self._always += [name for name in self._names if name.rpartition("/")[2] in _LOOKED_FOR]
        # What is in them has more names than these.
        self._has_linked_folders = any(os.path.isdir(os.path.join(folder, name)) for name in self._names)
        self._places: set[str] = set()
        self._heads = self._parts | {part.partition(".")[0] for part in self._parts}
        self._has_odd_names = not all(map(_PLAIN.fullmatch, self._names))
        #: The stamps of what is found for words; None if these are all files.
        self._found: dict[tuple[tuple[str, ...], str], list[Stamp] | None] = {}
        self._matched: dict[str, list[str]] = {}

    def knows(self, words: Sequence[str], python_path: str) -> bool:
        """Tell whether the command of a program says what it starts, and that is in the workspace."""
        self._places = _places(python_path)
        for number, word in enumerate(words[1:], 2):
            if found := _MODULE.fullmatch(word):
                module = found[1] or found[2] or "".join(words[number : number + 1])
                if _STARTERS.fullmatch(module):
                    continue
                return any(True for _ in self._module(module.partition(".")[0], ""))
            path = os.path.normpath(word)
            is_program = path.endswith(".py") or not os.path.splitext(path)[1]
            if _PROGRAM.match(word) or (path in self._known and is_program) or f"{path}/__main__.py" in self._known:
                return True
        return False

    def of(self, words: Sequence[str], python_path: str) -> list[Stamp]:
        """Return the stamps of the command's files: see ``CodeFiles.of``. Raises _AllFiles as well."""
        if self._has_linked_folders:
            raise _AllFiles
        # Most stages differ in words that name nothing.
        key = tuple(dict.fromkeys(filter(self._may_name, words))), python_path
        places = _places(python_path)
        while key not in self._found:
            self._places = places
            try:
                stamps = super().of(key[0], "")
            except (TooManyFiles, _AllFiles):
                self._found[key] = None
                break
            paths = [os.path.relpath(path, self._directory) for path, _, _ in stamps]
            places = places.union(*(_parents(path) for path in paths if _is_imported(path)))
            if places == self._places:
                self._found[key] = stamps
        found = self._found[key]
        if found is None:
            raise _AllFiles
        return found

    def _may_name(self, word: str) -> bool:
        if self._has_odd_names or not _PLAIN.fullmatch(word):
            return True
        parts = [*re.split("[/=:,+]", word), *word.split("/")]
        return any(
            one in self._heads or one.partition(".")[0] in self._heads or one in (".", "..") or _MODULE.fullmatch(one)
            for one in parts
        )

    def _files(self, text: ProgramText, folder: str, modules: Modules) -> Iterator[str]:
        inside = os.path.relpath(folder, self._directory)
        names, named = _names_in(text)
        found: set[str] = {*self._always}
        for name in {*named, *text.imports, *(re.split(r"[.:]", name)[0] for name in names if _DOTTED.match(name))}:
            found.update(self._module(name, inside))
        for name in names:
            found.update(self._matching(name))
            if _DOTTED.match(name):
                found.update(self._matching(re.sub("[.:]", "/", name)))
        yield from (os.path.join(self._directory, name) for name in sorted(found))

    def _parse(self, path: str, stamp: Stamp) -> ProgramText:
        if not path.endswith(".py"):
            if os.path.splitext(path)[1] in _PROGRAMS or (os.access(path, os.X_OK) and not _is_imported(path)):
                raise _AllFiles
            return super()._parse(path, stamp)
        if (stamp, 0) not in self._parsed:
            try:
                text = importlib.util.decode_source(Path(path).read_bytes())
            except (SyntaxError, ValueError):
                raise _AllFiles from None
            self._parsed[stamp, 0] = _PythonFile(text)
        return self._parsed[stamp, 0]

    def _module(self, name: str, inside: str) -> Iterator[str]:
        """Yield the files of a module or package, of all that have this name."""
        for place in {*self._places, *_parents(f"{inside}/x")}:
            path = os.path.normpath(os.path.join(place, name))
            yield from self._modules.get(path, ())
            if path in self._folders:
                yield from filter(_is_imported, self._below(f"{path}/"))

    def _below(self, start: str) -> Iterator[str]:
        first = bisect.bisect_left(self._names, start)
        return itertools.takewhile(lambda found: found.startswith(start), itertools.islice(self._names, first, None))

    def _matching(self, name: str) -> Iterator[str]:
        """Yield the files that a name may be of, or that are in a folder of this name, or begin with it."""
        if name.startswith("/"):
            return
        plain = os.path.normpath(name).lstrip("./") or name
        if set(name) & set("*?["):
            if plain not in self._matched:
                both = "|".join(fnmatch.translate(f"*/{one}") for one in (plain, f"{plain}/*"))  # also what is below it
                self._matched[plain] = [found for found in self._names if re.match(both, f"/{found}")]
            yield from self._matched[plain]
        if plain.partition("/")[0] not in self._parts and name.partition("/")[0] not in self._parts:
            return
        for place in self._places:
            path = os.path.normpath(os.path.join(place, name))
            if path in self._known:
                yield path
            if path in self._folders:
                yield from self._below(f"{path}/")
            elif "/" in name:
                yield from self._below(path)


def _is_imported(name: str) -> bool:
    return name.endswith(_IMPORTED)


def _places(python_path: str) -> set[str]:
    return {"", *(os.path.normpath(folder) for folder in python_path.split(os.pathsep) if folder)}


def _parents(name: str) -> list[str]:
    return [os.path.join(*parts) for parts in itertools.accumulate([part] for part in name.split("/")[:-1])]


@functools.lru_cache(4096)
def _names_in(text: ProgramText) -> tuple[Sequence[str], frozenset[str]]:
    """Return the names of files and folders, and patterns of names, that a program may have; and modules that it names.

    Raises:
        _AllFiles: it searches folders, or loads modules, whose names it does not have.
    """
    names = [word for _, word in text.words]
    modules = {word.partition(".")[0] for before, word in text.words if _MODULE.fullmatch(before)}
    modules.update(
        found[1].partition(".")[0] for _, word in text.words if (found := _MODULE.fullmatch(word)) and found[1]
    )
    if any(map(_ANYWHERE.fullmatch, names)):
        raise _AllFiles
    if text.words:
        names += [text.program, *text.program.split("=", 1)]  # a word of a command, with blanks
    try:
        nodes = [*ast.walk(ast.parse(text.program))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if isinstance(text, _PythonFile):  # it may be for another version of Python
            raise _AllFiles from None
        nodes = []
    apart = _no_paths(nodes)
    documentation = {
        id(node.value) for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    before = ""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            value = node.value if isinstance(node.value, str) else os.fsdecode(node.value)
            if _ANYWHERE.fullmatch(value) and id(node) not in apart:
                raise _AllFiles
            words = _WORD.findall(value)
            names += [value, *(word for word in words if id(node) not in documentation or set("./") & set(word))]
            for previous, word in zip([before, *words], words, strict=False):
                names += word.split("=")[1:]
                if _MODULE.fullmatch(previous):
                    modules.add(word.partition(".")[0])
            before = value
        elif isinstance(node, (ast.JoinedStr, ast.BinOp)):
            names.append(_joined(node))
        elif isinstance(node, ast.Call) and _name_of(node.func) in _STARTS and _starts_other(node):
            raise _AllFiles
        elif isinstance(node, ast.Call) and _name_of(node.func) in _SEARCHES:
            what = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if not isinstance(what, str) or not _is_name(what):
                raise _AllFiles
            modules.add(what.partition(".")[0])
        elif isinstance(node, (ast.List, ast.Tuple)):
            for one, following in itertools.pairwise(node.elts):
                if isinstance(one, ast.Constant) and one.value == "-m" and not isinstance(following, ast.Constant):
                    raise _AllFiles
        elif isinstance(node, ast.ImportFrom):
            if any(alias.name in _SEARCHES and alias.asname for alias in node.names):
                raise _AllFiles
        elif _name_of(node) in _IMPORTS | _LISTS and id(node) not in called:
            raise _AllFiles
    return [*dict.fromkeys(map(_pattern, filter(_is_name, names)))], frozenset(filter(str.isidentifier, modules))


def _starts_other(call: ast.Call) -> bool:
    """Tell whether a call starts a program that may use files of the workspace that its words do not name."""
    what = call.args[0] if call.args else None
    if isinstance(what, (ast.List, ast.Tuple)):
        what = what.elts[0] if what.elts else None
    elif _name_of(call.func) in ("run", "call") and _name_of(getattr(call.func, "value", call)) != "subprocess":
        return False
    text = what.value if isinstance(what, ast.Constant) else None
    if not isinstance(text, str) or not text.split():
        return False
    first, *others = text.split()
    return any(map(_ANYWHERE.fullmatch, others)) or not _READ_NOTHING.fullmatch(os.path.basename(first))


def _name_of(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _no_paths(nodes: Iterable[ast.AST]) -> set[int]:
    """Return the ids of constants that are no paths where they are, such as a dot between words."""
    found: list[ast.AST] = []
    for node in nodes:
        if isinstance(node, ast.Call):
            if _name_of(node.func) in _TEXT:
                found += [*node.args, getattr(node.func, "value", node)]
            elif _name_of(getattr(node.func, "value", node)) == "path":  # sys.path, whose folders are found anyway
                found += node.args if _name_of(node.func) in ("append", "insert") else []
            found += [keyword.value for keyword in node.keywords if keyword.arg in _SEPARATORS]
        elif isinstance(node, ast.Compare):
            found += [one for side in (node.left, *node.comparators) for one in (side, *getattr(side, "elts", ()))]
        elif isinstance(node, ast.BinOp):
            found += [node.left, node.right]
        elif isinstance(node, ast.JoinedStr):
            found += node.values
    return {*map(id, found)}


def _joined(node: ast.AST) -> str:
    """Return the pattern of a text that is put together."""
    texts: list[str] = []
    pending = [node]
    while pending:
        one = pending.pop()
        if isinstance(one, ast.Constant):
            texts.append(str(one.value))
        elif isinstance(one, ast.JoinedStr):
            pending += reversed(one.values)
        elif isinstance(one, ast.BinOp) and isinstance(one.op, ast.Add):
            pending += [one.right, one.left]
        else:
            texts.append("*")
    return "".join(texts)


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST and text.isprintable() and any(map(str.isalnum, _VALUE.sub("", text)))


def _pattern(name: str) -> str:
    """Return the pattern of a text in which values are filled in, or of a suffix."""
    pattern = _VALUE.sub("*", name)
    return f"*{pattern}" if pattern.startswith(".") and "/" not in pattern else pattern
