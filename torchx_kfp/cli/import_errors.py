"""Explain an error in a user's pipeline file in one sentence: the place, the value and the way out."""

from __future__ import annotations

import inspect
import linecache
import re
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torchx_kfp
from torchx_kfp import engines
from torchx_kfp.channel_operations import name_of
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.text import counted, did_you_mean

_CHANNEL = re.compile(r"\{\{channel:task=(?P<task>.*?);name=(?P<name>.*?);type=.*?;\}\}", re.DOTALL)
#: The names of channels in Python's own messages.
_CHANNEL_TYPES = re.compile(r"Pipeline\w*Channel|Loop\w*Argument\w*|ConditionOperation")
#: What Python says of formats, of operators and functions of numbers, and of str.join -> the way out.
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
    (re.compile(r"expected str instance"), 'write it as text, f"{channel}".'),
)
_CONSTANT = (
    "give a constant. Channels work in a role's entrypoint, args, the values of env and image; resources are set on "
    "the task, task.set_cpu_limit(channel)."
)
_UNEXPECTED = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument ['\"](\w+)['\"]")
_NOT_ITEMS = re.compile(r"Expected list, tuple, or \w+, got (.+?)\.?$")
_MISSING = re.compile(r"(\w+)\(\) missing \d+ required keyword-only arguments?: '(\w+)'")
_OUTPUT_OF = re.compile(r"(\w+)\.outputs\[")
_OUTPUT_NAMED = re.compile(r"""(\w+)\.outputs\[["'](\w+)["']\]""")
_ONLY_OUTPUT_OF = re.compile(r"(\w+)\.output\b")
_NOT_THE_USERS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_NOT_THE_USERS.append(str(Path(torchx_kfp.__file__).parent))

Frames = Sequence[tuple[FrameType, int]]


def explain_import_error(path: Path, error: BaseException, with_traceback: str = "") -> str:
    """Explain an error that was raised while a file was imported.

    Args:
        path: the file.
        error: with its traceback.
        with_traceback: the command line that shows the whole traceback; empty if it is shown anyway.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    users = [index for index, (frame, _) in enumerate(frames) if _is_users(frame.f_code.co_filename)]
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
    built = any(Path(frame.f_code.co_filename).name == "graph_component.py" for frame, _ in frames)
    what = ": the pipeline cannot be built" if built else " cannot be imported"
    message = f"{where}{what}: {type(error).__name__}: {str(error).rstrip('.')}. "
    if "from __future__ import annotations" in path.read_text(encoding="utf-8", errors="replace"):
        message += "KFP reads annotations as objects: remove 'from __future__ import annotations'. "
    return f"{message}See the whole traceback: {with_traceback}" if with_traceback else message.rstrip()


def _is_users(file: str) -> bool:
    return not file.startswith("<") and not any(Path(file).is_relative_to(folder) for folder in _NOT_THE_USERS)


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
    # The functions of this package that take a TypedDict say the rest themselves.
    return f"{name}() has no argument {found[2]!r}{str(error)[found.end() :] or '.'}"


def _misused(frames: Frames, error: BaseException) -> str | None:
    """Explain errors of KFP and Python whose texts do not name the mistake."""
    text = str(error)
    if isinstance(error, TypeError) and (found := _NOT_ITEMS.search(text)):
        return f"dsl.ParallelFor takes a list, or a channel for one, but got {found[1]}: write list({found[1]})."
    if isinstance(error, TypeError) and (found := _MISSING.search(text)):
        return f"{found[1]}() needs {found[2]}: give it {found[2]}=..."
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
    if not text and not _CHANNEL_TYPES.search(str(error)):
        return None
    if not isinstance(error, TypeError | ValueError | AttributeError):
        return None
    called = frames[1][0] if len(frames) > 1 else None
    argument, value = next(_channel_arguments(called), ("", None)) if called else ("", None)
    code, named = _on_line(*frames[0]) or ("channel", None)
    channel = _name_of(value) or (name_of(text["task"], text["name"]) if text else None) or named
    if called and argument:
        shown = f"{called.f_code.co_name}() got {argument}={_show(value)}, and needs its value"
    else:
        shown = "Python needs a value"
    said = f"{type(error).__name__}: {_CHANNEL.sub(_braces, str(error))}"
    way_out = next((sentence for pattern, sentence in _WAYS_OUT if pattern.search(str(error))), _CONSTANT)
    return (
        f"{shown} while the pipeline is compiled. {channel or 'A pipeline channel'} has one only when the pipeline "
        f"runs: {way_out.replace('{channel}', f'{{{code}}}')} ({said})"
    )


def _channel_arguments(frame: FrameType) -> Iterator[tuple[str, Any]]:
    for name in frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]:
        value = frame.f_locals.get(name)
        if _name_of(value):
            yield name, value


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


def _show(value: Any) -> str:
    return _CHANNEL.sub(_braces, repr(value) if isinstance(value, str) else str(value))


def _braces(found: re.Match[str]) -> str:
    return f"{{{found['task']}{'.' if found['task'] else ''}{found['name']}}}"


def _output(frame: FrameType, line: int, error: BaseException) -> str | None:
    """Explain the name of an output that a task does not have, and ``output`` of a task that does not have just one."""
    code = linecache.getline(frame.f_code.co_filename, line)
    if isinstance(error, AttributeError) and "has multiple outputs" in str(error):
        return _only_output(frame, code)
    found = _OUTPUT_OF.search(code)
    if not isinstance(error, KeyError) or not found or not error.args:
        return None
    outputs: Iterable[str] = getattr(frame.f_locals.get(found[1]), "outputs", {})
    key = str(error.args[0])
    has = ", ".join(map(repr, outputs)) or "none"
    return f"The task {found[1]!r} has no output {key!r}.{did_you_mean(key, outputs)} Its outputs: {has}."


def _only_output(frame: FrameType, code: str) -> str | None:
    """Explain that ``output`` is for tasks with one output; None if the line does not show whose it is."""
    found = _ONLY_OUTPUT_OF.search(code)
    outputs = list(getattr(frame.f_locals.get(found[1]), "outputs", ())) if found else []
    if not found or len(outputs) < 2:
        return None
    task = found[1]
    return (
        f"The task {task!r} has {counted(len(outputs), 'output')}, so {task}.output does not exist. Name one of them: "
        f"{task}.outputs[{outputs[1]!r}]. Its outputs: {', '.join(map(repr, outputs))}. To read the results of a "
        f"stage, pass the task itself: reads={task}."
    )
