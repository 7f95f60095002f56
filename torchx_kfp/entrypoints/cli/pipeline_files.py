"""Load the pipeline that a command line names: a compiled file, or a function in a Python file.

An error in a user's file is explained in one sentence: the place, the value and the way out.
"""

from __future__ import annotations

import importlib
import inspect
import linecache
import os
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torchx_kfp
from torchx_kfp import engines
from torchx_kfp.common.sdk import import_kfp, name_of
from torchx_kfp.common.text import counted, did_you_mean, did_you_mean_path
from torchx_kfp.entrypoints.cli.component import ComponentWords, builtin_component, component_pipeline
from torchx_kfp.entrypoints.cli.display.printing import this_command
from torchx_kfp.errors import ArgumentError, PipelineFileError, TorchxKfpError
from torchx_kfp.execution.pipeline.load import SUFFIXES, is_torchx_component

if TYPE_CHECKING:
    from torchx_kfp.local import Pipeline

_PYTHON = ".py"
_TRACEBACK = "--traceback"
#: A component as TorchX's command line names it: utils.echo.
_COMPONENT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_CHANNEL = re.compile(r"\{\{channel:task=(?P<task>.*?);name=(?P<name>.*?);type=.*?;\}\}", re.DOTALL)
#: The names of channels in Python's own messages.
_CHANNEL_TYPES = re.compile(r"Pipeline\w*Channel|Loop\w*Argument\w*|ConditionOperation")
#: Python's messages about formats, of operators and functions of numbers, and of str.join -> the way out.
_WAYS_OUT = (
    (
        re.compile(r"(int|float|complex)\(\) argument"),
        'compare it with dsl.If, or pass it as it is, f"{channel}", and convert it in the application, such as '
        "float(sys.argv[1]).",
    ),
    (
        re.compile(r"format string|__format__|real number, not|(number|integer) is required, not"),
        'pass it without a format, f"{channel}", and format it in the application, such as '
        'f"{float(sys.argv[1]):.2f}".',
    ),
    (
        re.compile(r"operand type|__(round|trunc|floor|ceil)__|bad operand"),
        'pass it as it is, f"{channel}", and compute in the application, such as float(sys.argv[1]) * 2, or in a '
        "stage before it, whose output is a channel: double(x=channel).output.",
    ),
    (re.compile(r"no attribute '(left|right)_operand'"), "dsl.If needs a comparison, such as dsl.If(debug == True)."),
    (
        re.compile(r"cannot be interpreted as an integer"),
        "give a constant, or repeat stages with dsl.ParallelFor, which takes a channel for a list.",
    ),
    (re.compile(r"expected str instance"), 'write it as text, f"{channel}".'),
)
_CONSTANT = (
    "give a constant. Channels work in a role's entrypoint, args, the values of env and image; resources are set on "
    "the task, task.set_cpu_limit(channel)."
)
_UNEXPECTED = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument ['\"](\w+)['\"]")
_NOT_ITEMS = re.compile(r"Expected list, tuple, or \w+, got (.+?)\.?$")
_MISSING = re.compile(r"(\w+)\(\) missing \d+ required keyword-only arguments?: '(\w+)'")
_POSITIONAL = re.compile(r"(Stages)\.__init__\(\) takes 1 positional argument but \d+ were given")
_TASK_COMPARED = re.compile(r"not supported between instances of .*'PipelineTask'")
_OUTPUT_OF = re.compile(r"(\w+)\.outputs\[")
_OUTPUT_NAMED = re.compile(r"""(\w+)\.outputs\[["'](\w+)["']\]""")
_ONLY_OUTPUT_OF = re.compile(r"(\w+)\.output\b")
_NOT_THE_USERS = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(torchx_kfp.__file__).parent))
#: Packages are also in the folder of a user (pip install --user) and of an environment below this one.
_PACKAGES = {"site-packages", "dist-packages"}

Frames = Sequence[tuple[FrameType, int]]


def load_pipeline_function(target: str, words: ComponentWords | None = None) -> Any:
    """Import the pipeline function that ``FILE`` or ``FILE:NAME`` names, or make one of a component.

    The file is imported as part of its package, so that a file in ``project/pipelines/`` finds
    ``project/components/`` from any current directory. Modules in the current directory can also be imported. The same
    is true for the Python programs that this process starts as stages.

    Args:
        target: the file, or the name of a component of TorchX, such as ``dist.ddp``.
        words: what the command line says about a component.

    Raises:
        PipelineFileError: the file or the pipeline does not exist, or the file cannot be imported.
        ArgumentError: the arguments of the component are wrong, or a pipeline is given what only components have.
    """
    words = words or ComponentWords()
    file, name = _split(target)
    path = Path(file)
    if _is_component(target):
        return component_pipeline(builtin_component(target), target, words)
    if not os.path.isfile(path):
        raise _missing(file, "Give a Python file: FILE.py, or FILE.py:NAME.", (_PYTHON,))
    if path.suffix != _PYTHON:
        raise PipelineFileError(f"{file!r} is not a Python file (*.py), so it does not define a pipeline function.")
    module = _import(path.resolve())
    pipelines = _pipelines(module)
    components = {key: value for key, value in vars(module).items() if is_torchx_component(value)}
    own = [key for key, value in components.items() if value.__module__ == module.__name__]
    if name is None and not pipelines and len(own) == 1:
        (name,) = own
    if name in components:
        return component_pipeline(components[name], target, words)
    pipeline = _choose(pipelines, own, name, file)
    words.refuse()
    return pipeline


def load_target(target: str, words: ComponentWords | None = None) -> Pipeline:
    """Load the pipeline in a compiled file, or the one that ``load_pipeline_function`` returns.

    Raises:
        PipelineFileError: the file or the pipeline does not exist, or the file does not contain a pipeline.
        ArgumentError: the arguments of the component are wrong, or a pipeline is given what only components have.
    """
    from torchx_kfp.local import load_pipeline

    file, _ = _split(target)
    path = Path(file)
    if _is_component(target):
        return load_pipeline(load_pipeline_function(target, words))
    if os.path.isdir(path) or not os.path.exists(path):
        way_out = (
            "Give a compiled pipeline (FILE.yaml), a Python file (FILE.py, or FILE.py:NAME), or a component (utils.sh)."
        )
        if words and not path.suffix:
            words.refuse()
        raise _missing(file if path.suffix == _PYTHON else target, way_out, (_PYTHON, *SUFFIXES))
    if path.suffix == _PYTHON:
        return load_pipeline(load_pipeline_function(target, words))
    (words or ComponentWords()).refuse()
    return load_pipeline(target)


def split_words(words: tuple[str, ...]) -> dict[str, str]:
    """Parse the words ``NAME=VALUE`` of a command line.

    Raises:
        ArgumentError: a word has another form, or a name is given twice.
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


def _missing(file: str, way_out: str, suffixes: Collection[str]) -> PipelineFileError:
    """Return the error for a file that does not exist; the suffixes are those of files to suggest."""
    what = f"{file!r} is not a file" if os.path.exists(file) else f"There is no file {file!r}"
    return PipelineFileError(f"{what}.{did_you_mean_path(file, suffixes) or f' {way_out}'}")


def _is_component(target: str) -> bool:
    """Tell whether the target names a component of TorchX, and not a file."""
    suffixes = (_PYTHON, *SUFFIXES)
    return bool(_COMPONENT.fullmatch(target)) and Path(target).suffix not in suffixes and not os.path.exists(target)


def _split(target: str) -> tuple[str, str | None]:
    file, colon, name = target.rpartition(":")
    # A colon may be part of the file's name.
    return (file, name) if colon and not os.path.exists(target) else (target, None)


def _import(path: Path) -> ModuleType:
    from torchx_kfp.execution.local.run_options import PROJECT

    if "." in path.stem:
        raise PipelineFileError(f"{path} cannot be imported: a module's name must not contain a dot. Rename the file.")
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    import_kfp()
    added = [folder for folder in dict.fromkeys((str(root), str(Path.cwd()))) if folder not in sys.path]
    sys.path[:0] = added
    paths = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    os.environ[PROJECT] = str(root)
    with_traceback = "" if _TRACEBACK in sys.argv[1:2] else this_command(_TRACEBACK, *sys.argv[1:])
    # The arguments of the command line are not the file's.
    arguments, sys.argv = sys.argv, [str(path)]
    try:
        with warnings.catch_warnings():
            # The warning is two lines long, and comes for each of many components.
            warnings.filterwarnings("ignore", "The default base_image used by", FutureWarning)
            module = importlib.import_module(".".join(parts))
    except (Exception, SystemExit) as error:
        raise PipelineFileError(explain_import_error(path, error, with_traceback)) from error
    finally:
        sys.argv = arguments
        # Move them to the end: a file next to the pipeline may have the name of a library that is imported later.
        sys.path[:] = [*(folder for folder in sys.path if folder not in added), *added]
    if Path(module.__file__ or "").resolve() != path:
        raise PipelineFileError(
            f"{path} cannot be imported: its name {'.'.join(parts)!r} is that of {module.__file__}. Rename the file."
        )
    return module


def _pipelines(module: ModuleType) -> dict[str, Any]:
    """Return the pipelines that the module defines; if it defines none, those that it imports."""
    from kfp.dsl import graph_component

    found = {name: value for name, value in vars(module).items() if isinstance(value, graph_component.GraphComponent)}
    own = {name: value for name, value in found.items() if value.pipeline_func.__module__ == module.__name__}
    return own or found


def _choose(pipelines: dict[str, Any], components: list[str], name: str | None, file: str) -> Any:
    there = ", ".join(sorted([*pipelines, *components])) or "none"
    if name is not None:
        # The name may be the function's or, as in run ids, the pipeline's.
        named = [pipeline for key, pipeline in pipelines.items() if name in (key, pipeline.name)]
        if not named:
            known = [*pipelines, *components, *(pipeline.name for pipeline in pipelines.values())]
            what = "pipelines and components" if components else "pipelines"
            raise PipelineFileError(
                f"{file!r} has no pipeline {name!r}.{did_you_mean(name, known)} Its {what}: {there}."
            )
        return named[0]
    if not pipelines and components:
        raise PipelineFileError(f"{file!r} has several components: {there}. Choose one: {file}:{components[0]}.")
    if not pipelines:
        raise PipelineFileError(f"{file!r} does not define a pipeline. Decorate a function with @kfp.dsl.pipeline.")
    outer = sorted(key for key in pipelines if not _is_nested(pipelines[key], pipelines.values())) or sorted(pipelines)
    if len(outer) > 1:
        raise PipelineFileError(f"{file!r} has several pipelines: {', '.join(outer)}. Choose one: {file}:{outer[0]}.")
    return pipelines[outer[0]]


def _is_nested(pipeline: Any, pipelines: Iterable[Any]) -> bool:
    """Tell whether another one of the pipelines uses a pipeline."""
    from kfp.dsl.utils import sanitize_component_name

    name = sanitize_component_name(pipeline.name)
    return any(
        name in other.pipeline_spec.components and other.pipeline_spec.components[name].HasField("dag")
        for other in pipelines
        if other is not pipeline
    )


def explain_import_error(path: Path, error: BaseException, with_traceback: str = "") -> str:
    """Explain an error that was raised while a file was imported.

    Args:
        path: the file.
        error: with its traceback.
        with_traceback: the command line that shows the whole traceback; empty if it is shown anyway.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    files = [frame.f_code.co_filename for frame, _ in frames]
    users = [index for index, file in enumerate(files) if _is_users(file)]
    frame, line = frames[users[-1]] if users else (None, 0)
    where = f"{frame.f_code.co_filename}, line {line}" if frame else str(path)
    if isinstance(error, TorchxKfpError):
        return f"{where}: {error}"
    if isinstance(error, SystemExit):
        return (
            f"{where} ended the program while it was imported ({error.code!r}). A pipeline file only defines "
            "pipelines. Is this an application?"
        )
    sentence = frame and (
        _unexpected(frame, error)
        or _misused(frames, error)
        or _channel(frames[users[-1] :], error)
        or _output(frame, line, error)
    )
    if sentence:
        return f"{where}: {sentence}"
    # KFP calls a pipeline's function when it is defined.
    built = any(Path(file).name == "graph_component.py" for file in files)
    what = ": the pipeline cannot be built" if built else " cannot be imported"
    message = f"{where}{what}: {type(error).__name__}: {str(error).rstrip('.')}. "
    if "from __future__ import annotations" in path.read_text(encoding="utf-8", errors="replace"):
        message += "KFP reads annotations as objects: remove 'from __future__ import annotations'. "
    return f"{message}See the whole traceback: {with_traceback}" if with_traceback else message.rstrip()


def _is_users(file: str) -> bool:
    """Return whether code is of neither Python, an installed package, nor this package."""
    path = Path(file)
    inside = any(path.is_relative_to(folder) for folder in _NOT_THE_USERS) or _PACKAGES.intersection(path.parts)
    return not file.startswith("<") and not inside


def _unexpected(frame: FrameType, error: BaseException) -> str | None:
    """Explain an argument that a function does not have."""
    found = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if not found:
        return None
    name = found[1].removesuffix(".__init__").rpartition(".")[2]
    for function in _functions(frame, name):
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            continue
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
        if found[2] not in parameters:
            takes = ", ".join(parameters) or "none"
            hint = _engine_hint(function, parameters, found[2]) or did_you_mean(found[2], parameters)
            return f"{name}() has no argument {found[2]!r}.{hint} Its arguments: {takes}."
    # Methods of this package that take options say the rest themselves.
    return f"{name}() has no argument {found[2]!r}{str(error)[found.end() :] or '.'}"


def _misused(frames: Frames, error: BaseException) -> str | None:
    """Explain errors of KFP and Python whose texts do not name the mistake."""
    text = str(error)
    if isinstance(error, TypeError) and (found := _NOT_ITEMS.search(text)):
        return f"dsl.ParallelFor takes a list, or a channel for one, but got {found[1]}: write list({found[1]})."
    if isinstance(error, TypeError) and (found := _MISSING.search(text)):
        return f"{found[1]}() needs {found[2]}: give it {found[2]}=..."
    if isinstance(error, TypeError) and _POSITIONAL.search(text):
        return "Stages() takes only named arguments: Stages(tracker_base=...)."
    if isinstance(error, TypeError) and _TASK_COMPARED.search(text):
        return (
            "A task has no value. Compare one of its outputs, such as task.outputs['loss'] < 0.1; a result is one if "
            "it is declared: results={'loss': float}."
        )
    if isinstance(error, ValueError) and "list.remove(x)" in text:
        pipelines = (getattr(value, "tasks", None) for frame, _ in frames for value in frame.f_locals.values())
        for name, task in next((tasks for tasks in pipelines if isinstance(tasks, dict)), {}).items():
            if name in task.dependent_tasks:
                return f"The task {name!r} waits for itself. Remove its .after() of itself."
    return None


def _engine_hint(function: Callable[..., Any], parameters: Collection[str], name: str) -> str:
    """Say which engine has an option that was given to another one, or to a stage; empty if none has it."""
    if isinstance(function, type) and issubclass(function, engines.Engine):
        have = " and ".join(f"engines.{kind}" for kind in engines.engines_with(name))
        return f" {have} {'have' if ' and ' in have else 'has'} it." if have else ""
    return engines.option_hint(name) if "engine" in parameters else ""


def _functions(frame: FrameType, name: str) -> Iterator[Callable[..., Any]]:
    """Yield the functions that code may have called by this name: its own, and those of modules and classes in it."""
    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
        # KFP's components know their functions' names with hyphens.
        called = str(getattr(value, "__name__", None) or getattr(value, "name", "")).replace("-", "_")
        if callable(value) and name.replace("-", "_") in (
            called,
            getattr(getattr(value, "func", None), "__name__", ""),
        ):
            yield getattr(value, "python_func", getattr(value, "pipeline_func", value))
        elif inspect.ismodule(value) and callable(inside := vars(value).get(name)):
            yield inside


def _channel(frames: Frames, error: BaseException) -> str | None:
    """Explain a channel where Python needs a value."""
    text = _CHANNEL.search(str(error))
    nameless = str(error) == "expected string or bytes-like object"  # from functions of re, in Python 3.10
    if not text and not nameless and not _CHANNEL_TYPES.search(str(error)):
        return None
    if not isinstance(error, TypeError | ValueError | AttributeError):
        return None
    shown, value = "Python needs a value", None
    if len(frames) > 1:
        function, values = frames[1][0].f_code, frames[1][0].f_locals
        arguments = function.co_varnames[: function.co_argcount + function.co_kwonlyargcount]
        if argument := next((name for name in arguments if _name_of(values.get(name))), ""):
            value = values[argument]
            got = _CHANNEL.sub(_braces, repr(value) if isinstance(value, str) else str(value))
            shown = f"{function.co_name}() got {argument}={got}, and needs its value"
    if nameless and value is None:
        return None
    code, named = _on_line(*frames[0]) or ("channel", None)
    channel = _name_of(value) or (name_of(text["task"], text["name"]) if text else None) or named
    said = f"{type(error).__name__}: {_CHANNEL.sub(_braces, str(error))}"
    way_out = next((sentence for pattern, sentence in _WAYS_OUT if pattern.search(str(error))), _CONSTANT)
    return (
        f"{shown} while the pipeline is compiled. {channel or 'A pipeline channel'} has one only when the pipeline "
        f"runs: {way_out.replace('{channel}', f'{{{code}}}')} ({said})"
    )


def _name_of(value: Any) -> str | None:
    """Return the name of the pipeline parameter or output that a value is, or contains as text."""
    from kfp.dsl import pipeline_channel

    if isinstance(value, pipeline_channel.PipelineChannel):
        return name_of(value.task_name, value.name)
    found = _CHANNEL.search(value) if isinstance(value, str) else None
    return name_of(found["task"], found["name"]) if found else None


def _on_line(frame: FrameType, line: int) -> tuple[str, str] | None:
    """Return the code of the one channel on the line, and its name, if there is exactly one."""
    code = linecache.getline(frame.f_code.co_filename, line)
    values = {word: frame.f_locals.get(word) for word in re.findall(r"\w+", code)}
    for found in _OUTPUT_NAMED.finditer(code):
        values[found[0]] = getattr(frame.f_locals.get(found[1]), "outputs", {}).get(found[2])
    names = {code: name for code, value in values.items() if (name := _name_of(value))}
    return next(iter(names.items())) if len(names) == 1 else None


def _braces(found: re.Match[str]) -> str:
    return f"{{{found['task']}{'.' if found['task'] else ''}{found['name']}}}"


def _output(frame: FrameType, line: int, error: BaseException) -> str | None:
    """Explain the name of an output that a task does not have, and ``output`` of a task that does not have just one."""
    code = linecache.getline(frame.f_code.co_filename, line)
    is_several = isinstance(error, AttributeError) and "has multiple outputs" in str(error)
    found = (_ONLY_OUTPUT_OF if is_several else _OUTPUT_OF).search(code)
    if not found or not (is_several or (isinstance(error, KeyError) and error.args)):
        return None
    task = found[1]
    outputs = list(getattr(frame.f_locals.get(task), "outputs", ()))
    names = ", ".join(map(repr, outputs)) or "none"
    if not is_several:
        key = str(error.args[0])
        return f"The task {task!r} has no output {key!r}.{did_you_mean(key, outputs)} Its outputs: {names}."
    if len(outputs) < 2:  # the line does not show which task it is
        return None
    return (
        f"The task {task!r} has {counted(len(outputs), 'output')}, so {task}.output does not exist. Name one of them: "
        f"{task}.outputs[{outputs[1]!r}]. Its outputs: {names}. To read the results of a stage, pass the task itself: "
        f"reads={task}."
    )
