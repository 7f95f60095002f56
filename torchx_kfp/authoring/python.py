"""An AppDef whose application calls a function of a Python module: see ``Stages.python``."""

from __future__ import annotations

import inspect
import json
import sys
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from torchx import specs

from torchx_kfp.authoring.channels import contains_channel, parse
from torchx_kfp.authoring.reads import results_read
from torchx_kfp.authoring.references import PYTHON_TYPES, Channel, Reference
from torchx_kfp.common.text import did_you_mean, most_similar, shown
from torchx_kfp.errors import AppDefError
from torchx_kfp.tracking import call
from torchx_kfp.tracking.entries import verify_keys

#: The end of a message about an unknown option.
OF_KFP = "KFP's options are methods of a task: task.set_retry(3)."


def function_app(
    function: Callable[..., Any],
    arguments: Mapping[str, object],
    options: Collection[str],
    *,
    image: str | Channel | None,
    env: Mapping[str, str | Channel] | None,
    resource: specs.Resource | None,
    reads: object,
) -> specs.AppDef:
    """Return the AppDef that calls the function.

    ``arguments`` are constants, channels, or text with channels inside; results of the stages that it ``reads`` can be
    further arguments. ``options`` are the names of the options of stages, for errors.
    """
    if not callable(function) or isinstance(function, BaseComponent):
        kind = type(function)
        way = "Pass the function itself, not its return value: stages.python(train, rate=0.1)."
        if kind is specs.AppDef:
            way = "Give it to stages.task(app)."
        elif callable(function):
            way = "Call the component in the pipeline, as KFP's own are: component(rate=0.1)."
        raise AppDefError(f"stages.python takes a function, but got {shown(function)}, of type {kind.__name__}. {way}")
    name = getattr(function, "__name__", repr(function))
    module = _module_of(function, name)
    _check_kind(function, name)
    parameters = call.parameters_of(function)
    call.check_returned(function)
    unnamed = [it for it in inspect.signature(function).parameters.values() if it.name not in parameters]
    if unnamed and (unknown := [each for each in arguments if each not in parameters]):
        raise AppDefError(
            f"{name}() has no parameter {unknown[0]!r}, and stages do not pass '{unnamed[0]}'. Name it in the "
            f"signature, with its type: def {name}({unknown[0]}: float)."
        )
    if both := sorted(parameters.keys() & options):
        raise AppDefError(f"{name}() has the parameter {both[0]!r}, which is also an option of a stage. Rename it.")
    check_arguments(f"{name}()", arguments, parameters, options)
    missing = [
        each for each, (it, _) in parameters.items() if each not in arguments and it.default is inspect.Parameter.empty
    ]
    if missing and reads is None:
        raise AppDefError(
            f"{name}() needs {missing[0]!r}. Pass it, stages.python({name}, {missing[0]}=...), or read a stage that "
            "records a result of this name, reads=task."
        )
    known = results_read(reads)
    for each, (it, _) in parameters.items():
        unread = [result for result in known if result not in parameters]
        if each not in (*arguments, *known, *missing) and (near := most_similar(each, unread)) is not None:
            raise AppDefError(
                f"{name}() has the parameter {each!r}, and a stage that it reads has the result {near!r}. If the "
                f"parameter gets the result, give it that name. If not, pass it: stages.python({name}, "
                f"{each}={it.default!r})."
            )
    if image is None:
        raise AppDefError(
            f"stages.python({name}) has no image. Pass it, stages.python({name}, image=...), or give all stages one: "
            "Stages(image=...)."
        )
    words = [f"{each}={_text(name, value, *parameters[each])}" for each, value in arguments.items()]
    args = ["-m", call.__name__, "-m", module, name, *words]
    variables: Any = env or {}  # if it is not a dict, the role is refused
    if isinstance(env, Mapping):
        variables = {key: _exact(value) for key, value in env.items()}
    role = specs.Role(name, image, entrypoint="python", args=[*map(_exact, args)], env=variables)
    if resource is not None:
        role.resource = resource
    return specs.AppDef(name, [role])


def _check_kind(function: Callable[..., Any], name: str) -> None:
    """Reject functions that return before they have run."""
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_async or inspect.isgeneratorfunction(function):
        what = "is async" if is_async else "is a generator"
        way = "call it with asyncio.run there, and return" if is_async else "and return a list"
        raise AppDefError(
            f"{name}() {what}, so calling it does not run it. Write a function with def, {way} the value that the "
            "stage records."
        )


def _exact(value: Any) -> Any:
    """Escape text in which TorchX's macros will be replaced."""
    return value.replace("$", "$$") if isinstance(value, str) else value


def check_arguments(
    owner: str, given: Mapping[str, object], parameters: Collection[str], options: Collection[str]
) -> None:
    """Reject a name that is neither one of a function's parameters nor an option of stages."""
    for name in given:
        if name not in parameters:
            raise AppDefError(
                f"{owner} has no parameter {name!r}.{did_you_mean(name, [*parameters, *options])} Its parameters are: "
                f"{', '.join(parameters) or 'none'}. The options of a stage are: {', '.join(options)}. {OF_KFP}"
            )


def returned_results(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the results that a function's return annotation declares: {name: type}.

    They are the fields of a ``TypedDict``, or one result with the function's name.
    """
    returned: Any = typing.get_type_hints(function).get("return")
    if typing.is_typeddict(returned):
        fields = {name: typing.get_origin(kind) or kind for name, kind in typing.get_type_hints(returned).items()}
        return {
            name: kind for name, kind in fields.items() if kind in call.KINDS and name in returned.__required_keys__
        }
    kind = typing.get_origin(returned) or returned
    return {function.__name__: kind} if kind in call.KINDS and kind is not dict else {}


def _module_of(function: Any, name: str) -> str:
    """Return the name with which a stage imports the function's module."""
    module = getattr(function, "__module__", None)
    imported = sys.modules.get(module or "")
    file = getattr(imported, "__file__", None)
    if getattr(imported, name, None) is not function or (module == "__main__" and not file):
        named = name if name.isidentifier() else "fit"
        way = " If a decorator made it, use functools.wraps there." if f"<locals>.{named} " in repr(function) else ""
        raise AppDefError(
            f"stages.python got {function!r}, which a stage cannot import by name. Define it with def at the top "
            f"level of a file, not of a notebook, such as train.py, and import it: from train import {named}.{way}"
        )
    if module != "__main__":
        return str(module)
    # With ``python -m``, the spec has the whole name; with ``python FILE``, there is only the file.
    spec = getattr(imported, "__spec__", None)
    return Path(str(file)).stem if spec is None else str(spec.name)


def _text(function: str, value: object, parameter: inspect.Parameter, kind: type | None) -> str:
    """Return an argument as text, as KFP fills in a channel."""
    where = f"{parameter.name} of {function}()"
    if kind is None:
        said = "has no type that a stage can pass on"
        if parameter.annotation is not parameter.empty:
            said = f"is annotated with {inspect.formatannotation(parameter.annotation)}, which a stage cannot pass on"
        raise AppDefError(f"{where} {said}. Annotate it with str, int, float, bool, list or dict.")
    has_channel = contains_channel(value)
    # For a task, ``parse`` raises the error.
    if not (has_channel or isinstance(value, (*call.KINDS, dsl.PipelineTask))):
        way = "Pass a value of this type, or a channel: a parameter, task.outputs['...'] or a loop's item."
        if value is parameter.default:
            way = "Leave it out: that is its default."
        raise AppDefError(f"{where} is {kind.__name__}, but gets {shown(value)}. {way}")
    if has_channel and isinstance(value, (list, dict)):
        raise AppDefError(f"{where} is {value!r}, with a pipeline channel inside, which cannot be filled in there.")
    if isinstance(value, call.KINDS) and not has_channel:
        try:
            text = value if isinstance(value, str) else str(value) if kind is str else json.dumps(value)
            call.parse(text, kind)
            if kind is not str:
                verify_keys(value)
        except (TypeError, ValueError) as error:
            raise AppDefError(f"{where} is {kind.__name__}, but gets {value!r}: {error}.") from None
        return text
    parts = parse(value, where)
    given = PYTHON_TYPES[parts[0].type] if len(parts) == 1 and isinstance(parts[0], Reference) else str
    # A channel for text can have any value, such as an item of a list, and a parameter for text takes any channel.
    if str not in (kind, given) and given is not kind and (kind, given) != (float, int):
        raise AppDefError(
            f"{where} is {kind.__name__}, but gets a channel for {given.__name__}: {value}. Change one of them."
        )
    return str(value)
