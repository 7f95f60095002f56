"""Call a TorchX component function to see which AppDef it builds from the inputs of a KFP component.

The function is called with stand-ins for values that are known only at run time. As text, a stand-in is KFP's
placeholder for that input; every other use is an error that names the line of the function. Then the function is called
with a few real values for each input. It must build the same AppDef, with the text of the value in place of the
placeholder.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import textwrap
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torchx import specs

from torchx_kfp.adapter.functions.probes import build, content, misplaced_inputs, values_that_matter
from torchx_kfp.adapter.functions.standins import MoreThanTextError, Text, Value
from torchx_kfp.adapter.stage.inputs import NO_DEFAULT, PYTHON_TYPES
from torchx_kfp.adapter.values.names import is_input_name
from torchx_kfp.adapter.values.references import Reference, parameter
from torchx_kfp.errors import AppDefError
from torchx_kfp.text import did_you_mean

_IR_TYPES = {python: ir for ir, python in PYTHON_TYPES.items()}


@dataclass(frozen=True)
class FunctionApp:
    """The AppDef that a function builds from its inputs, the inputs' defaults, and the function's description."""

    app: specs.AppDef
    parameters: Mapping[Reference, object]
    description: str | None


def call_function(
    fn: Callable[..., specs.AppDef],
    constants: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    known: Collection[str] = (),
) -> FunctionApp:
    """Call the function with these constants, and stand-ins for all other parameters.

    Args:
        fn: a function that returns an AppDef.
        constants: values of its parameters.
        options: the options of the stage, for the call that an error suggests.
        known: the names of all options, for errors.

    Raises:
        AppDefError: a parameter that must be a constant is not one.
    """
    signature = inspect.signature(fn)
    _check_constants(fn, signature, constants, known)
    inputs = dict(_inputs(fn, signature, constants))
    defaults = {reference: signature.parameters[name].default for name, reference in inputs.items()}
    return FunctionApp(
        app=_call(fn, signature, constants, inputs, options or {}),
        parameters={
            reference: NO_DEFAULT if default is inspect.Parameter.empty else default
            for reference, default in defaults.items()
        },
        description=inspect.getdoc(fn),
    )


def _check_constants(
    fn: Callable[..., Any], signature: inspect.Signature, constants: Mapping[str, Any], options: Collection[str]
) -> None:
    for name in constants:
        if name not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            hint = did_you_mean(name, [*signature.parameters, *options])
            also = f" The options of a stage are: {', '.join(options)}." if options else ""
            raise AppDefError(f"{_title(fn)} has no parameter {name!r}.{hint} Its parameters are: {known}.{also}")
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL and not isinstance(constants[name], list | tuple):
            raise AppDefError(f"{name}={constants[name]!r} is for *{name} of the function {_name(fn)!r}: give a list.")


def _inputs(
    fn: Callable[..., Any], signature: inspect.Signature, constants: Mapping[str, Any]
) -> Iterator[tuple[str, Reference]]:
    """Yield the parameters that become inputs."""
    try:
        hints = typing.get_type_hints(fn)
    except Exception:  # an annotation has an unknown name: the annotations themselves may be enough
        hints = dict(getattr(fn, "__annotations__", {}))
    for name, declared in signature.parameters.items():
        if name in constants or declared.kind in (declared.VAR_POSITIONAL, declared.VAR_KEYWORD):
            continue
        if declared.default is None:
            continue
        kind = hints.get(name, str if declared.default is declared.empty else type(declared.default))
        kind = _IR_TYPES.get(typing.get_origin(kind) or kind) or _IR_TYPES.get(_not_none(kind))
        if kind is None or not is_input_name(name):
            raise AppDefError(
                f"The parameter {name!r} of the function {_name(fn)!r} has the type {hints.get(name)!r}, but inputs of "
                f"KFP components are str, int, float, bool, list or dict. Give it as a constant: "
                f"component_from_function({_name(fn)}, {name}=...)."
            )
        if declared.default is not declared.empty and not _is_of_type(declared.default, kind):
            raise AppDefError(
                f"The parameter {name!r} of the function {_name(fn)!r} has the default {declared.default!r}, which KFP "
                f"cannot pass on as its type. Give it as a constant: component_from_function({_name(fn)}, {name}=...)."
            )
        yield name, parameter(name, kind)


def _is_of_type(value: object, kind: str) -> bool:
    if kind == "NUMBER_DOUBLE":
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    if kind == "NUMBER_INTEGER":
        return type(value) is int and abs(value) <= 2**53
    return isinstance(value, PYTHON_TYPES[kind])


def _not_none(kind: Any) -> Any:
    """Return the T in Optional[T]."""
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    member = members[0] if len(members) == 1 else None
    return typing.get_origin(member) or member


def _call(
    fn: Callable[..., specs.AppDef],
    signature: inspect.Signature,
    constants: Mapping[str, Any],
    inputs: Mapping[str, Reference],
    options: Mapping[str, Any],
) -> specs.AppDef:
    """Build the AppDef with stand-ins for the inputs.

    If a parameter must be a constant, the function is called again with its default, to find all such parameters.
    """
    values: dict[str, Any] = {
        name: Text(reference) if reference.type == "STRING" else Value(reference) for name, reference in inputs.items()
    }
    wrong: dict[str, str] = {}
    app = None
    while True:
        bound = signature.bind_partial()
        for name in signature.parameters:
            if name in constants:
                bound.arguments[name] = constants[name]
            elif name in values:
                bound.arguments[name] = values[name]
        bound.apply_defaults()
        try:
            app = build(fn, bound)
        except MoreThanTextError as error:
            found = {error.name: f"{error.what}, {_line_of(fn, error)}"}
        except Exception as error:
            raise AppDefError(
                f"{_title(fn)} failed with {type(error).__name__}: {error} ({_line_of(fn, error)}). It was called with "
                f"stand-ins for its inputs ({', '.join(values) or 'none'}), whose values are known only at run time. "
                f"Give parameters whose values it needs as constants: component_from_function({_name(fn)}, NAME=...)."
            ) from error
        else:
            found = {name: f"{place}, {_lines_with(fn, name)}" for name, place in misplaced_inputs(app).items()}
            if not found and isinstance(app, specs.AppDef):
                left = {name: inputs[name] for name in inputs if name not in wrong}
                found = {
                    name: f"its text is not all that the AppDef depends on, {_lines_with(fn, name)}"
                    for name in values_that_matter(fn, bound, app, left)
                }
                if not found and content(build(fn, bound)) != content(app):
                    raise AppDefError(
                        f"{_title(fn)} builds a different AppDef each time it is called, even from the same arguments "
                        "(a time, a random number, an object that it changes). A component is made only once: give "
                        f"values that change as constants, component_from_function({_name(fn)}, NAME=...)."
                    )
        wrong.update(found)
        fixed = {name for name in found if signature.parameters[name].default is not inspect.Parameter.empty}
        if fixed != set(found) or not found:
            break
        for name in fixed:
            values[name] = signature.parameters[name].default
    if wrong:
        _refuse_inputs(fn, signature, {**constants, **options}, wrong)
    if not isinstance(app, specs.AppDef):
        raise AppDefError(f"{_title(fn)} returned {app!r}, but a TorchX component returns an AppDef.")
    return app


def _refuse_inputs(
    fn: Callable[..., Any], signature: inspect.Signature, others: Mapping[str, Any], wrong: Mapping[str, str]
) -> NoReturn:
    lines = [f"- {name!r}: {why}" for name, why in wrong.items()]
    defaults = {name: signature.parameters[name].default for name in wrong}
    given = [
        *(f"{name}={'...' if value is inspect.Parameter.empty else repr(value)}" for name, value in defaults.items()),
        *(f"{name}={_code_of(value)}" for name, value in others.items()),
    ]
    raise AppDefError(
        f"{_title(fn)} uses parameters for more than text, so KFP cannot fill them in at run time:\n"
        + "\n".join(lines)
        + f"\nGive them as constants: component_from_function({_name(fn)}, {', '.join(given)})."
    ) from None


def _code_of(value: object) -> str:
    """Return code for a value: a class, such as the type of a result, has no code in its repr."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_code_of(item)}' for key, item in value.items())}}}"
    return value.__name__ if isinstance(value, type) else repr(value)


def _line_of(fn: Callable[..., Any], error: BaseException) -> str:
    """Return the line of the function that raised the error."""
    code, line = _code(fn), 0
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code is code:
            line = number
    return f"{code.co_filename}:{line}" if code else "an unknown line"


def _lines_with(fn: Callable[..., Any], name: str) -> str:
    """Describe the lines of the function that use the parameter."""
    code = _code(fn)
    if code is None:
        return "an unknown line"
    try:
        lines, start = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):  # there is no file, for example in an interactive session
        return f"{code.co_filename}:{code.co_firstlineno}"
    used = {
        node.lineno + start - 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    }
    return f"{code.co_filename}:{', '.join(map(str, sorted(used) or [start]))}"


def _code(fn: Any) -> types.CodeType | None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(inspect.unwrap(fn), "__code__", None)


def _title(fn: Callable[..., Any]) -> str:
    return f"The function {_name(fn)!r}"


def _name(fn: Any) -> str:
    return str(getattr(fn.func if isinstance(fn, functools.partial) else fn, "__name__", "fn"))
