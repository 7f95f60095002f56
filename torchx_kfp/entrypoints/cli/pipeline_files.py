"""Load the pipeline of a command line: a compiled file, a function in a Python file, or a TorchX component.

Errors in a user's file are shown as short tracebacks, with the lines of that file and its own modules.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import os
import re
import sys
import sysconfig
import traceback
import types
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import torchx_kfp
from torchx_kfp.common.text import did_you_mean, did_you_mean_path, joined
from torchx_kfp.entrypoints.cli.channel_watch import watch_conditions
from torchx_kfp.entrypoints.cli.display.printing import print_text, this_command
from torchx_kfp.entrypoints.cli.flags import Target
from torchx_kfp.errors import AppDefError, ArgumentError, PipelineError, TorchxKfpError, explain
from torchx_kfp.execution.pipeline.load import SUFFIXES, is_torchx_component
from torchx_kfp.execution.pipeline.walk import known_stages
from torchx_kfp.tracking import call

if TYPE_CHECKING:
    from torchx_kfp.execution.model.findings import Finding
    from torchx_kfp.local import Pipeline

_PYTHON = ".py"
#: A component as TorchX's command line names it: utils.echo.
_COMPONENT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_CHANNEL = re.compile(r"\{\{channel:task=(?P<task>.*?);name=(?P<name>.*?);type=.*?;\}\}", re.DOTALL)
#: Patterns of Python's messages about names of KFP v1.
_V1 = (
    r"module 'kfp[\w.]*' has no attribute '\w*(?:Op|_op|Volume|Conf|_conf|_func|RUN_ID_PLACEHOLDER)'"
    r"|cannot import name '(?:\w+Op|func_to_container_op|create_component_from_func|InputPath|OutputPath)' from 'kfp"
    r"|No module named 'kfp\.(?:v2|aws|gcp|azure|onprem)"
)
#: Patterns of messages of Python and KFP, with hints.
_HINTS = {
    _V1: "This is code of KFP v1, which kfp 2 does not run. Kubeflow's documentation has a guide to its migration.",
    r"\{\{channel:|Pipeline\w*Channel|Loop\w*Argument(?!.*no setter)|ConditionOperation": (
        "A parameter of the pipeline, or an output of a task, has a value only when the pipeline runs. Pass it to the "
        "application, in args or env, which converts and formats it; compare it with dsl.If, or repeat stages with "
        "dsl.ParallelFor. Otherwise, give a constant."
    ),
    "no attribute 'task_name'": "dsl.Collected takes outputs, not tasks: reads=dsl.Collected(task.outputs['run_id']).",
    "Task is missing from pipeline": "No stage is made: stages.python(train, image=...) makes one, train() does not.",
    "bad argument type for built-in operation": (
        "KFP's task.set_env_variable takes constants. Give a channel to the AppDef: Role(env={'NAME': f'{channel}'})."
    ),
    r"^KeyError: '(condition|for-loop)-|groups can be used as \.after": (
        "KFP needs a task there: give one inside the block, not the block."
    ),
    r"'str' object has no attribute 'name'|after\(\) only supports .*Got str": (
        "KFP needs a task there: give the task itself, not its name: .after(task)."
    ),
    "can only be used to fan-in": "dsl.Collected is for the tasks of a loop. Read another task itself: reads=task.",
    "When using dsl.Collected": "Read the loop inside the same dsl.If, or put dsl.If inside the loop.",
    "'NoneType' object cannot be interpreted as an integer": (
        "KFP cannot pass the artifacts of a loop (dsl.Collected) into a dsl.If. Put the loop into the same dsl.If, or "
        "collect them in a stage before it, and pass the output of that."
    ),
    "upstream task within a dsl.If": (
        "Read the task inside the same dsl.If, or return one of several branches: dsl.OneOf(one.output, other.output)."
    ),
    "no setter|can't set attribute": "KFP has an attribute of this name: rename the field of the loop's items.",
    "Value must be one of the following types": (
        "A parameter's default has None inside, which KFP does not accept: leave it out, or give another value."
    ),
    r"only use .ignore_upstream_failure\(\)": (
        "A stage that reads another one needs its execution id. Let that one fail instead: "
        "stages.task(app, may_fail=True)."
    ),
    "exit_task cannot depend": (
        "An exit task also runs after a failure, so it reads no stage and takes no output. Give it parameters, such as "
        "the tracker base, and read records with torchx_kfp.tracking.open_tracker(tracker_base)."
    ),
    r"Stages\.__new__\(\) takes 1 positional": "Name the options of Stages: Stages(tracker_base=tracker_base).",
    r"search\(\) got multiple values for argument 'trial'": "Pass the number of trials as trials=.",
    "list using dsl.Collected": "After a loop, read all: reads={'train': dsl.Collected(train.outputs['run_id'])}.",
}
#: The most calls in the user's files that are shown, the innermost last.
_MOST_FRAMES = 10
_NOT_THE_USERS = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(torchx_kfp.__file__).parent))
#: Packages are also in the user's folder (pip install --user) and in parent environments.
_PACKAGES = {"site-packages", "dist-packages"}


class LoadedTarget(NamedTuple):
    """A pipeline, and findings about the Python file that defines it."""

    pipeline: Pipeline
    findings: list[Finding]


def load_target(target: Target, *, tracked: bool = False, has_workspace: bool = False) -> LoadedTarget:
    """Load the pipeline of ``FILE`` or ``FILE:NAME``, or create one for a component.

    A Python file is imported as part of its package, so that a file in ``project/pipelines/`` finds
    ``project/components/`` from any current directory. Modules in the current directory can also be imported. Both also
    hold for Python programs that this process starts as stages.

    Args:
        target: the file, or the name of a component of TorchX, such as ``dist.ddp``.

    Raises:
        PipelineError: the file or the pipeline does not exist, or the file cannot be imported.
        ArgumentError: the arguments of the component are wrong.
        UsageError: a pipeline got arguments, which only components take.
    """
    from torchx_kfp.local import load_pipeline

    word = target.word
    may_be_component = _is_component(word) or Path(_split(word)[0]).suffix == _PYTHON
    findings: list[Finding] = []
    function: Any = _find(word, findings) if may_be_component or not target.arguments else None
    if is_torchx_component(function):
        function = _component_pipeline(function, target, tracked=tracked, has_workspace=has_workspace)
    elif target.arguments:
        raise click.UsageError(
            f"Got unexpected extra {'arguments' if len(target.arguments) > 1 else 'argument'} "
            f"({' '.join(target.arguments)}). For arguments of the pipeline: -p NAME=VALUE. To run a program, make it "
            "an AppDef in a pipeline."
        )
    return LoadedTarget(load_pipeline(function), findings)


def _find(word: str, findings: list[Finding]) -> Any:
    """Return the function of a pipeline or component, or the path of a compiled pipeline; append findings."""
    if _is_component(word):
        return _builtin_component(word)
    file, name = _split(word)
    if Path(file).suffix == _PYTHON:
        if not os.path.isfile(file):
            raise _missing(file)
        return _choose(_import(Path(file).resolve(), findings), name, file)
    if os.path.isdir(word) or not os.path.exists(word):  # a pipe is fine: <(python pipeline.py)
        raise _missing(word)
    return word


def _builtin_component(name: str) -> Any:
    """Return the function of a component of TorchX or a plugin, such as ``dist.ddp``.

    Raises:
        PipelineError: the component is unknown or invalid.
    """
    from torchx.specs import finder

    try:
        return finder.get_component(name).fn
    except finder.ComponentNotFoundException:
        known = list(finder.get_components())
        raise PipelineError(
            f"There is no file and no TorchX component {name!r}.{did_you_mean(name, known)} Give a component such as "
            "dist.ddp (`torchx builtins` lists them), or a function in a file: FILE.py:NAME."
        ) from None
    except finder.ComponentValidationException as error:
        raise PipelineError(str(error)) from None


def _component_pipeline(function: Any, target: Target, *, tracked: bool, has_workspace: bool) -> Any:
    """Return a pipeline function with one stage, which runs the component with the command line's arguments.

    The stage is tracked if there is a tracker base or a workspace.

    Raises:
        ArgumentError: an argument is missing or wrong, or the app cannot become a stage.
        click.exceptions.Exit: the component's help was requested and printed.
    """
    from torchx.specs.builders import materialize_appdef

    from torchx_kfp.authoring.stages import single_stage_pipeline

    command = this_command(str(click.get_current_context().info_name), str(target.word))
    out, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            app = materialize_appdef(function, list(target.arguments))
    except SystemExit as ended:
        # TorchX's parser prints its own name: "torchx run <run args...> NAME ".
        named = f"torchx run <run args...> {function.__name__}"
        if not ended.code:
            print_text(out.getvalue().replace(named, f"{command} --"))
            raise click.exceptions.Exit(0) from None
        said = errors.getvalue().strip().rpartition("error: ")[2]
        raise ArgumentError(f"{target.word}: {said}. To list its arguments: {command} -- --help") from None
    except Exception as error:  # the component is the user's code
        why = f"cannot be called with these arguments: {error or repr(error)}."
        parameters = inspect.signature(function).parameters.values()
        unions = [each.name for each in parameters if isinstance(each.annotation, types.UnionType)]
        if unions and str(error) == "Unknown":  # TorchX 0.7.0 says no more
            why = f"has parameters that TorchX cannot read, {joined(unions)}: write Optional[X] instead of X | None."
        raise ArgumentError(f"{target.word} {why}") from error
    try:
        return single_stage_pipeline(app, tracked=tracked or has_workspace, has_workspace=has_workspace)
    except AppDefError as error:
        raise ArgumentError(str(error)) from None


def split_words(words: tuple[str, ...]) -> dict[str, str]:
    """Parse words ``NAME=VALUE`` of a command line.

    Raises:
        ArgumentError: a word is malformed, or a name is given twice.
    """
    arguments: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ArgumentError(f"-p {word!r} is not NAME=VALUE. Write, for example, -p lr=0.1.")
        if name in arguments:
            raise ArgumentError(f"-p {name}=... is given twice. Give each parameter once.")
        arguments[name] = value
    return arguments


def _missing(file: str) -> PipelineError:
    """Return the error for a file that does not exist."""
    what = f"{file!r} is not a file" if os.path.exists(file) else f"There is no file {file!r}"
    way_out = (
        " Give a compiled pipeline (FILE.yaml), a Python file (FILE.py, or FILE.py:NAME), or a component (utils.sh)."
    )
    return PipelineError(f"{what}.{did_you_mean_path(file, (_PYTHON, *SUFFIXES)) or way_out}")


def _is_component(target: str) -> bool:
    """Return whether the target is a component of TorchX, and not a file."""
    suffixes = (_PYTHON, *SUFFIXES)
    return bool(_COMPONENT.fullmatch(target)) and Path(target).suffix not in suffixes and not os.path.exists(target)


def _split(target: str) -> tuple[str, str | None]:
    file, colon, name = target.rpartition(":")
    # A colon may be part of the file's name.
    return (file, name) if colon and not os.path.exists(target) else (target, None)


def _import(path: Path, findings: list[Finding]) -> ModuleType:
    import kfp  # noqa: F401  # first, because a file beside the pipeline may shadow one of its libraries

    from torchx_kfp.execution.pipeline.python_components import PROJECT

    if "." in path.stem:
        raise PipelineError(f"{path} cannot be imported: a module's name must not contain a dot. Rename the file.")
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    added = [folder for folder in dict.fromkeys((str(root), str(Path.cwd()))) if folder not in sys.path]
    sys.path[:0] = added
    paths = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    os.environ[PROJECT] = str(root)
    # The arguments of the command line are not the file's.
    arguments, sys.argv = sys.argv, [str(path)]
    try:
        with watch_conditions(_is_users) as watched, warnings.catch_warnings():
            # The warning is two lines long, and comes for each of many components.
            warnings.filterwarnings("ignore", "The default base_image used by", FutureWarning)
            module = importlib.import_module(".".join(parts))
    except (Exception, SystemExit) as error:
        raise PipelineError(explain_import_error(path, error)) from error
    finally:
        sys.argv = arguments
        # Move them to the end: a file beside the pipeline may shadow a library that is imported later.
        sys.path[:] = [*(folder for folder in sys.path if folder not in added), *added]
    findings += watched
    if Path(module.__file__ or "").resolve() != path:
        raise PipelineError(
            f"{path} cannot be imported: its name {'.'.join(parts)!r} is that of {module.__file__}. Rename the file."
        )
    return module


def _pipelines(module: ModuleType) -> dict[str, Any]:
    """Return the pipelines that the module defines, or else those that it imports."""
    from kfp.dsl import graph_component

    found = {name: value for name, value in vars(module).items() if isinstance(value, graph_component.GraphComponent)}
    own = {name: value for name, value in found.items() if value.pipeline_func.__module__ == module.__name__}
    return own or found


def _others(module: ModuleType) -> dict[str, Any]:
    """Return the module's KFP components and pipelines, which can be compiled by name."""
    from kfp.dsl import base_component

    return {name: value for name, value in vars(module).items() if isinstance(value, base_component.BaseComponent)}


def find_own_functions(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield findings about stages that call functions of a pipeline file."""
    from torchx_kfp.execution.model.findings import Finding, Kind

    for place in known_stages(pipeline, {}):
        words = place.decoded.application
        module = sys.modules.get(words[4]) if words[1:4] == ("-m", call.__name__, "-m") else None
        if module is not None and _pipelines(module):
            file = os.path.basename(str(module.__file__))
            text = f"calls a function of {file}, which needs kfp in its image. Move the function to a separate file"
            yield Finding(Kind.MAY_FAIL, f"task {place.path!r}", text)


def _choose(module: ModuleType, name: str | None, file: str) -> Any:
    pipelines = _pipelines(module)
    functions = {key: value for key, value in vars(module).items() if is_torchx_component(value)}
    components = [key for key, value in functions.items() if value.__module__ == module.__name__]
    if name is None and not pipelines and len(components) == 1:
        (name,) = components
    if name in functions:
        return functions[name]
    there = ", ".join(sorted([*pipelines, *components])) or "none"
    others, factory = _others(module), "" if pipelines else _factory(Path(file))
    if name is None and not (pipelines or components or factory) and len(others) == 1:
        return next(iter(others.values()))
    if name in others and name not in pipelines:
        return others[name]
    if name is not None:
        # The name may be the function's or, as in run ids, the pipeline's.
        named = [pipeline for key, pipeline in pipelines.items() if name in (key, pipeline.name)]
        if not named:
            known = [*pipelines, *components, *(pipeline.name for pipeline in pipelines.values())]
            what = "pipelines and components" if components else "pipelines"
            raise PipelineError(f"{file!r} has no pipeline {name!r}.{did_you_mean(name, known)} Its {what}: {there}.")
        return named[0]
    if not pipelines and components:
        raise PipelineError(f"{file!r} has several components: {there}. Choose one: {file}:{components[0]}.")
    if not pipelines:
        if factory:
            raise PipelineError(
                f"{file!r} has no pipeline at its top level, but {factory} creates one. Add a line such as "
                f"made = {factory}(), and name it: {file}:made."
            )
        several = f" Or name one of its components: {', '.join(others)}." if others else ""
        raise PipelineError(
            f"{file!r} does not define a pipeline. Decorate a function with @kfp.dsl.pipeline.{several}"
        )
    outer = sorted(key for key in pipelines if not _is_nested(pipelines[key], pipelines.values())) or sorted(pipelines)
    if len(outer) > 1:
        raise PipelineError(f"{file!r} has several pipelines: {', '.join(outer)}. Choose one: {file}:{outer[0]}.")
    return pipelines[outer[0]]


def _factory(path: Path) -> str:
    """Return the name of a function that defines a pipeline, or ""."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace")))
        if isinstance(node, ast.FunctionDef)
    ]
    for outer in functions:
        inside = [node for node in ast.walk(outer) if isinstance(node, ast.FunctionDef) and node is not outer]
        if any(re.search(r"\bpipeline\b", ast.unparse(word)) for node in inside for word in node.decorator_list):
            return outer.name
    return ""


def _is_nested(pipeline: Any, pipelines: Iterable[Any]) -> bool:
    """Return whether another of the pipelines contains a pipeline."""
    from kfp.dsl.utils import sanitize_component_name

    name = sanitize_component_name(pipeline.name)
    return any(
        name in other.pipeline_spec.components and other.pipeline_spec.components[name].HasField("dag")
        for other in pipelines
        if other is not pipeline
    )


def explain_import_error(path: Path, error: BaseException) -> str:
    """Explain an error during the import of a file, with the user's lines that led to it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else str(path)
    if isinstance(error, TorchxKfpError):
        return f"{where}: {error}"
    if isinstance(error, SystemExit):
        return (
            f"{where} ended the program during the import ({error.code!r}). A pipeline file only defines pipelines. Is "
            "this an application?"
        )
    calls = [f"{it.filename}, line {it.lineno}, in {it.name}:\n    {it.line}" for it in frames[-_MOST_FRAMES:]]
    said = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, AttributeError) and error.name and not re.search(f"Did you mean|{_V1}", said):  # as 3.12 says
        with contextlib.suppress(Exception):  # an object's __dir__ may fail
            said += f".{did_you_mean(error.name, dir(error.obj))}"
    hints = [hint for pattern, hint in _HINTS.items() if re.search(pattern, said)]
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as unread:
        return f"The pipeline file cannot be read: {explain(unread)}."
    if "from __future__ import annotations" in text and isinstance(error, TypeError):
        hints.append("KFP reads annotations as objects: remove 'from __future__ import annotations'.")
    said = _CHANNEL.sub(lambda it: f"{{{it['task']}{'.' if it['task'] else ''}{it['name']}}}", said)
    return "\n".join([*(calls or [f"{path}:"]), said, *hints])


def _is_users(file: str) -> bool:
    """Return whether a file belongs to the user, rather than to Python, an installed package or this package."""
    path = Path(file)
    inside = any(path.is_relative_to(folder) for folder in _NOT_THE_USERS) or _PACKAGES.intersection(path.parts)
    return not file.startswith("<") and not inside
