"""Call a function of a module as a stage, and record what it returns.

    python -m torchx_kfp.tracking.call -m train fit rate=0.1 epochs=3

calls ``fit(rate=0.1, epochs=3)`` of the module ``train``. ``Stages.python`` makes AppDefs with this application, and so
can users. The words give arguments as text, as KFP fills them in. The annotations of the function are their types: str,
int, float, bool, or list and dict as JSON. A parameter without a word gets a value from the stages that this one reads:

- a parameter with a stage's alias, annotated with dict or not at all, gets everything that the stage returned, as a
  dict; for a fan-in, a list of dicts;
- any other parameter gets the result with its name, which one stage must have recorded; for a fan-in, the list of
  results. Lists and dicts are read from the metadata. The result must have the annotated type, except that ints are
  also floats, and 3.0 is also an int;
- otherwise, it gets its default.

The log and the tracker record each value's origin: a stage, or the default.

The value that the function returns is recorded: a mapping as results by name, any other value as one result with the
function's name. Lists and dicts are recorded as metadata, and None is not recorded. Outside a tracked stage, the
value is printed as JSON.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import sys
import traceback
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchx_kfp.common.text import describe_unknown, did_you_mean, shown
from torchx_kfp.errors import AppDefError, NotInStageError, NotRecordedError, RefusedError
from torchx_kfp.tracking.entries import encode_json, plain
from torchx_kfp.tracking.results import check_results
from torchx_kfp.tracking.run import FanIn, Run, current_run, record_arguments

#: The types of arguments.
KINDS = (str, int, float, bool, list, dict)
_BOOLEANS = {"true": True, "false": False, "True": True, "False": False}


def parameters_of(
    function: Callable[..., Any], *, by_name: bool = True
) -> dict[str, tuple[inspect.Parameter, type | None]]:
    """Return the parameters of a function, each with its type: one of ``KINDS``, or None if it is not known.

    The type is that of the annotation (``list[int]`` is a list, ``int | None`` an int), or else of the default.

    Args:
        function: the function.
        by_name: whether arguments are only given by name.

    Raises:
        AppDefError: an annotation cannot be evaluated, or a parameter cannot be given by name.
    """
    name = getattr(function, "__name__", repr(function))
    called: Any = function.func if isinstance(function, functools.partial) else function
    if not (inspect.isroutine(called) or isinstance(called, type) or hasattr(called, "__wrapped__")):
        called = type(called).__call__  # a callable object
    try:
        # A signature would not evaluate text inside of types, or any text if a decorator has set it.
        hints = typing.get_type_hints(called)
    except Exception as error:  # evaluating an annotation can raise anything
        raise AppDefError(
            f"The annotations of {name}() cannot be evaluated: {error}. Name a type that the module has."
        ) from None
    kinds = {}
    for each, parameter in inspect.signature(function).parameters.items():
        if by_name and parameter.kind == parameter.POSITIONAL_ONLY:
            raise AppDefError(
                f"The parameter {each!r} of {name}() is positional-only, but a stage passes arguments by name. Remove "
                "the '/' from its signature."
            )
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            default = None if parameter.default is parameter.empty else parameter.default
            kinds[each] = parameter, _kind(hints.get(each, type(default)))
    return kinds


def check_returned(function: Callable[..., Any]) -> None:
    """Reject a function whose return annotation is a type that cannot be recorded.

    Raises:
        AppDefError: no value of that type can be recorded.
    """
    hint = typing.get_type_hints(function).get("return", Any)
    if (unfit := _unfit(hint)) is None:
        return
    field = "" if unfit is hint else f", with {inspect.formatannotation(unfit)} inside"
    raise AppDefError(
        f"{function.__name__}() returns {inspect.formatannotation(hint)}{field}, which cannot be recorded. Return a "
        'number, text, a list or a dict, or several by name: return {"loss": ..., "accuracy": ...}.'
    )


def _unfit(hint: Any) -> Any:
    """Return the part of a return annotation that cannot be recorded; None if there is none."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [_unfit(member) for member in typing.get_args(hint) if member is not type(None)]
        return None if None in parts else hint
    kind = origin or hint
    if kind is Any or not isinstance(kind, type) or kind is type(None):
        return None  # a Literal, a type variable
    if typing.is_typeddict(kind) or hasattr(kind, "_fields"):
        fields = typing.get_type_hints(kind).values()
        return next((unfit for field in fields if (unfit := _unfit(field)) is not None), None)
    try:
        is_fit = issubclass(kind, (*KINDS, Mapping)) or any(issubclass(each, kind) for each in KINDS)
    except TypeError:  # a protocol
        return None
    # Scalars and arrays of NumPy, PyTorch and their like have one of these.
    return None if is_fit or hasattr(kind, "item") or hasattr(kind, "tolist") else hint


def _kind(hint: Any) -> type | None:
    origin = typing.get_origin(hint)
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    if origin in (typing.Union, types.UnionType) and len(members) == 1:
        return _kind(members[0])
    kind = origin or hint
    return kind if kind in KINDS else None


def parse(text: str, kind: type) -> Any:
    """Parse a value of this type from text as written by KFP.

    Raises:
        ValueError: the text is not such a value.
    """
    if kind is str:
        return text
    if kind is bool:
        if text not in _BOOLEANS:
            raise ValueError(f"{shown(text)} is neither true nor false")
        return _BOOLEANS[text]
    if kind in (int, float):
        return kind(text)
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError(f"{shown(text)} is not a {kind.__name__}")
    return value


def arguments(
    function: Callable[..., Any], words: Sequence[str], run: Run | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments of a call, and for each parameter its value and origin as text.

    Args:
        function: the function.
        words: ``NAME=VALUE``.
        run: the run of this process; None outside a stage.

    Raises:
        AppDefError: a word does not match a parameter, or a parameter has no value.
    """
    parameters = parameters_of(function)
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in parameters:
            about = describe_unknown(f"{function.__name__}()", "parameter", name, [*parameters])
            raise AppDefError(f"{shown(word)} is not NAME=VALUE of a parameter. {about}")
        kind = parameters[name][1] or str
        try:
            values[name] = parse(text, kind)
        except ValueError as error:
            raise AppDefError(
                f"{name} of {function.__name__}() is {kind.__name__}, but got {shown(text)}: {error}"
            ) from None
    given = {name: f"{shown(value)}, passed" for name, value in values.items()}
    read = _read(function.__name__, {name: it for name, it in parameters.items() if name not in values}, run)
    for name, (value, stage) in read.items():
        values[name] = _fit(function.__name__, name, value, parameters[name][1])
        given[name] = f"{shown(values[name])}, from {stage}"
    defaults = {name: it.default for name, (it, _) in parameters.items() if name not in values}
    return values, given | {name: f"{shown(value)}, the default" for name, value in defaults.items()}


def _fit(function: str, name: str, value: Any, kind: type | None) -> Any:
    """Convert a value that was read to the type of its parameter.

    Raises:
        AppDefError: it has another type.
    """
    if kind is None or type(value) is kind or (kind in (list, dict) and isinstance(value, kind)):
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if isinstance(value, list):
        raise AppDefError(
            f"{name} of {function}() is {kind.__name__}, but it is read from a fan-in: a list of {len(value)}. "
            "Annotate it with list, or read one stage, such as a stage that chooses."
        )
    raise AppDefError(
        f"{name} of {function}() is {kind.__name__}, but the stage that it is read from recorded {shown(value)}, of "
        f"type {type(value).__name__}. Record {kind.__name__} there, or change the annotation."
    )


def _read(
    function: str, parameters: Mapping[str, tuple[inspect.Parameter, type | None]], run: Run | None
) -> dict[str, tuple[Any, str]]:
    """Return the values of these parameters that parents recorded, each with the alias of its stage."""
    sources = run.parents if run and parameters else {}
    values: dict[str, tuple[Any, str]] = {
        name: (_returned(sources[name]), name)
        for name, (_, kind) in parameters.items()
        if name in sources and kind in (None, list if isinstance(sources[name], FanIn) else dict)
    }
    left = {name: it for name, it in parameters.items() if name not in values}
    results = {alias: _results_if_any(source) for alias, source in sources.items()} if left else {}
    if any(kind in (list, dict, None) and not _having(name, results) for name, (_, kind) in left.items()):
        results = {alias: _with_metadata(source, results[alias]) for alias, source in sources.items()}
    for name, (parameter, kind) in left.items():
        having = _having(name, results)
        if len(having) == 1:
            found = results[having[0]]
            value = [each[name] for each in found] if isinstance(found, list) else found[name]
            values[name] = value, having[0]
        elif having:
            raise AppDefError(
                f"{function}() needs {name!r}, which several stages recorded: {', '.join(having)}. Give the parameter "
                "the name of one, and take its result from the dict, or pass a value or an output."
            )
        elif lacking := _lacking(name, sources, results):
            raise AppDefError(f"{function}() needs {name!r}, but in the fan-in, {lacking}.")
        elif parameter.default is parameter.empty:
            there = [
                f"{alias} has recorded {', '.join(_names(found)) or 'nothing'}" for alias, found in results.items()
            ]
            hint = did_you_mean(name, [*results, *(each for found in results.values() for each in _names(found))])
            for alias, source in sources.items():
                if isinstance(source, Run) and isinstance(kept := source.metadata().get(name), (list, dict)):
                    raise AppDefError(
                        f"{name} of {function}() is {(kind or str).__name__}, but {alias} returned {shown(kept)}. "
                        f"Return one value there, or annotate the parameter with {type(kept).__name__}."
                    )
            raise AppDefError(
                f"{function}() needs {name!r}: pass {name}=VALUE, or read a stage that records it.{hint} Of the stages "
                f"that this one reads, {'; '.join(there) or 'there is none'}."
            )
    return values


def _returned(source: Run | FanIn) -> Any:
    """Return everything that a stage returned; for a fan-in, a list."""
    if isinstance(source, FanIn):
        return [_returned(run) for run in source]
    return _with_metadata(source, _results_if_any(source)) or source.results()


def _results_if_any(source: Run | FanIn) -> dict[str, Any] | list[dict[str, Any]]:
    if isinstance(source, FanIn):
        return [typing.cast("dict[str, Any]", _results_if_any(run)) for run in source]
    try:
        return source.results()
    except NotRecordedError:  # the stage may be read only for its artifacts
        return {}


def _lacking(name: str, sources: Mapping[str, Run | FanIn], results: Mapping[str, Any]) -> str:
    """Describe the runs of a fan-in that lack a result of others; empty if there are none."""
    for alias, source in sources.items():
        if isinstance(source, FanIn):
            without = [run.id for run, found in zip(source, results[alias], strict=True) if name not in found]
            if len(without) < len(source):
                return f"{len(without)} of {len(source)} runs of {alias} have not recorded it: {', '.join(without[:5])}"
    return ""


def _with_metadata(source: Run | FanIn, results: Any) -> Any:
    """Add the lists and dicts that a function returned to its results."""
    if isinstance(source, FanIn):
        return [_with_metadata(run, found) for run, found in zip(source, results, strict=True)]
    returned = {name: value for name, value in source.metadata().items() if isinstance(value, (list, dict))}
    return {**returned, **results}


def _having(name: str, results: Mapping[str, Any]) -> list[str]:
    return [alias for alias, found in results.items() if name in _names(found)]


def _names(found: Mapping[str, Any] | list[dict[str, Any]]) -> list[str]:
    """Return the names of a stage's results; for a fan-in, those that all its runs recorded."""
    if not isinstance(found, list):
        return [*found]
    return [name for name in (found[0] if found else ()) if all(name in each for each in found)]


def record(function: str, returned: object, run: Run | None) -> None:
    """Record the value that a function returned, or print it as JSON outside a stage.

    Raises:
        RefusedError: an item cannot be recorded. The others were recorded.
    """
    if returned is None:
        return
    if isinstance(returned, tuple) and hasattr(returned, "_asdict"):
        returned = returned._asdict()
    named: dict[str, Any] = dict(returned) if isinstance(returned, Mapping) else {function: returned}
    if run is None:
        print(json.dumps(named, default=_plain_or_text))
        return
    results: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    problems: list[RefusedError] = []
    for name, value in named.items():
        with contextlib.suppress(TypeError):
            value = plain(value)  # an array becomes a list
        try:
            if isinstance(value, (list, dict)):
                encode_json({name: value}, f"metadata {name!r} of the execution {run.id!r}")
                metadata[name] = value
            else:
                results |= check_results(run.id, {name: value})
        except RefusedError as error:
            problems.append(error)
    # Results first, because other stages read them.
    if results:
        run.put(results)
    if metadata:
        run.add_metadata(metadata)
    for problem in problems:
        raise problem


def _plain_or_text(value: object) -> object:
    try:
        return plain(value)
    except TypeError:
        return str(value)


def load(module: str, function: str) -> Callable[..., Any]:
    """Import a function.

    Raises:
        AppDefError: there is no such module or function.
    """
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # about another module, which it imports
        raise AppDefError(
            f"There is no module {error.name!r}. It must be in the image or in the workspace (--workspace DIR); in a "
            "local run, it may also be in the folder of the pipeline's file or the current folder."
        ) from None
    value = getattr(imported, function, None)
    if not callable(value):
        functions = [name for name, each in vars(imported).items() if inspect.isfunction(each)]
        raise AppDefError(describe_unknown(f"The module {module!r}", "function", function, functions))
    if not hasattr(value, "__name__"):
        raise AppDefError(
            f"{function!r} of the module {module!r} is {shown(value)}, and a stage calls functions only. Write one "
            f"that calls it: def {function}(...)."
        )
    return value  # type: ignore[no-any-return]  # of any module


def _print_traceback(error: Exception) -> None:
    """Print an error of the application without the frames of this module and of the import system."""
    trace = error.__traceback__
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename.startswith((__file__, importlib.__file__, "<")):
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))


def main(words: Sequence[str]) -> None:
    """Call a function: ``-m MODULE FUNCTION NAME=VALUE...``."""
    if len(words) < 3 or words[0] != "-m":
        sys.exit("usage: python -m torchx_kfp.tracking.call -m MODULE FUNCTION [NAME=VALUE ...]")
    try:
        run: Run | None = current_run()
    except NotInStageError:
        run = None
    try:
        function = load(words[1], words[2])
        check_returned(function)
        values, given = arguments(function, words[3:], run)
        if run is not None and given:
            unsaid = [f"{name}={how}" for name, how in given.items() if not how.endswith(", passed")]
            if unsaid:
                print(f"torchx-kfp: {words[2]}() gets {'; '.join(unsaid)}", file=sys.stderr, flush=True)
            record_arguments(run, given)
        returned = function(**values)
    except Exception as error:
        sys.last_value = error  # as Python does: MLflow looks for it at exit
        if isinstance(error, AppDefError):
            sys.exit(f"torchx-kfp: {error}")
        _print_traceback(error)
        sys.exit(1)
    try:
        record(words[2], returned, run)
    except RefusedError as error:
        sys.last_value = error
        is_one = isinstance(returned, (Mapping, *KINDS))
        way = "" if is_one else ' Return several by name: return {"loss": ..., "accuracy": ...}.'
        sys.exit(f"torchx-kfp: the value from {words[2]}() cannot be recorded. {error}{way}")


if __name__ == "__main__":
    main(sys.argv[1:])
