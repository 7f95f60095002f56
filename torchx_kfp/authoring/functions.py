"""Call a TorchX component function to see which AppDef it builds from the inputs of a KFP component.

The function is called with stand-ins for values that are known only at run time. As text, a stand-in is KFP's
placeholder for that input; every other use is an error that names the line of the function. Then the function is called
with a few real values for each input, also such as the function itself has. It must build the same AppDef, with the
text of the value in place of the placeholder.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import inspect
import math
import re
import shlex
import textwrap
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NoReturn

from torchx import specs

from torchx_kfp.authoring.component_inputs import NO_DEFAULT, PYTHON_TYPES
from torchx_kfp.authoring.inline_code import find_program
from torchx_kfp.authoring.naming import is_input_name
from torchx_kfp.authoring.references import Reference, fill_parameters, parameter, parameters_in
from torchx_kfp.authoring.standins import MoreThanTextError, Text, Value
from torchx_kfp.common.text import did_you_mean
from torchx_kfp.errors import AppDefError

_IR_TYPES = {python: ir for ir, python in PYTHON_TYPES.items()}


def call_function(
    fn: Callable[..., specs.AppDef],
    constants: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    known: Collection[str] = (),
) -> tuple[specs.AppDef, dict[Reference, object]]:
    """Call the function with these constants, and stand-ins for all other parameters.

    Args:
        fn: a function that returns an AppDef.
        constants: values of its parameters.
        options: the options of the stage, for the call that an error suggests.
        known: the names of all options, for errors.

    Returns:
        The AppDef, and the function's inputs with their defaults.
    """
    signature = inspect.signature(fn)
    _check_constants(fn, signature, constants, known)
    inputs = dict(_inputs(fn, signature, constants))
    defaults = {reference: signature.parameters[name].default for name, reference in inputs.items()}
    app = _call(fn, signature, constants, inputs, options or {})
    return app, {ref: NO_DEFAULT if value is inspect.Parameter.empty else value for ref, value in defaults.items()}


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
        hint = hints.get(name, str if declared.default is declared.empty else type(declared.default))
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        member: Any = members[0] if len(members) == 1 else None  # the T in Optional[T]
        optional: Any = typing.get_origin(member) or member
        kind = _IR_TYPES.get(typing.get_origin(hint) or hint) or _IR_TYPES.get(optional)
        if kind is None or not is_input_name(name):
            raise AppDefError(
                f"The parameter {name!r} of the function {_name(fn)!r} has the type {_code_of(hint)}, but inputs of "
                f"KFP components are str, int, float, bool, list or dict. Give it as a constant: "
                f"component_from_function({_name(fn)}, {name}=...)."
            )
        default = declared.default
        can_pass = isinstance(default, PYTHON_TYPES[kind])
        if kind == "NUMBER_DOUBLE":
            can_pass = type(default) in (int, float) and math.isfinite(default)
        elif kind == "NUMBER_INTEGER":
            can_pass = type(default) is int and abs(default) <= 2**53
        if default is not declared.empty and not can_pass:
            raise AppDefError(
                f"The parameter {name!r} of the function {_name(fn)!r} has the default {default!r}, which KFP "
                f"cannot pass on as its type. Give it as a constant: component_from_function({_name(fn)}, {name}=...)."
            )
        yield name, parameter(name, kind)


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


#: Values of each type. A function must build the same AppDef from them as from their text.
_PROBES: dict[str, tuple[object, ...]] = {
    "STRING": (
        "Probe-A,b c:1/x.Y_",
        'it\'s "2" ${h} %s',
        "7",
        "",
        " pad\t",
        "/abs//b/",
        "../x",
        "-1",
        "s3://b/ü\n1",
        "long" * 80,
    ),
    "NUMBER_INTEGER": (7, 12, 0, -3, 10**6),
    "NUMBER_DOUBLE": (0.25, 3.5, -1.5, 1e9),
    "BOOLEAN": (True, False),
    "LIST": ([1, 2], ["a"]),
    "STRUCT": ({"k": 1}, {"a": "b"}),
}


#: Texts of a function that are tried as values: how many, and how long they may be.
_MOST_TEXTS, _LONGEST_TEXT = 300, 200


def _texts_of(fn: Any) -> list[str]:
    """Return texts with which the function may compare its inputs: constants in its code, and matches of patterns.

    A stand-in cannot refuse every comparison: regular expressions read text in C, and an f-string makes plain text.
    """
    code = _code(fn)
    names = getattr(inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn), "__globals__", {})
    waiting: list[object] = [code]
    read: set[types.CodeType] = set()
    texts: list[str] = []
    for value in waiting:  # grows
        if isinstance(value, types.FunctionType) and value.__globals__ is names:
            value = value.__code__
        if isinstance(value, types.CodeType) and value not in read:
            read.add(value)
            waiting += [*value.co_consts, *(names.get(name) for name in value.co_names)]
        values = (
            value if isinstance(value, list | tuple | set | frozenset | dict) else [getattr(value, "pattern", value)]
        )
        texts += [text for one in values if isinstance(one, str) for text in (one, *_matches(one))]
    return [text for text in dict.fromkeys(texts) if len(text) <= _LONGEST_TEXT][:_MOST_TEXTS]


def _matches(pattern: str) -> list[str]:
    """Return texts that a pattern probably matches, if it is one."""
    text = re.sub(r"\\d|\[0-9\]", "7", pattern)
    text = re.sub(r"\\w|(?<![\\[])\.|\[[^]]{2,}\]", "a", text)
    return re.sub(r"\\[AbBZ]|\(\?:|[][()^$+*?\\]|\{[\d,]*\}", "", text).split("|")


def build(fn: Callable[..., Any], bound: inspect.BoundArguments, **values: object) -> Any:
    """Call the function, with copies so that it cannot change the arguments. Text of an AppDef becomes plain str."""
    call = copy.copy(bound)
    call.arguments = {**copy.deepcopy(bound.arguments), **values}
    app = fn(*call.args, **call.kwargs)
    return _plain(app) if isinstance(app, specs.AppDef) else app


def values_that_matter(
    fn: Callable[..., Any], bound: inspect.BoundArguments, app: specs.AppDef, inputs: Mapping[str, Reference]
) -> Iterator[str]:
    """Yield the inputs for which the function uses more than the text, judging by a few values."""
    texts = _texts_of(fn)
    more: dict[str, list[Any]] = {
        "STRING": [*texts],
        "NUMBER_INTEGER": [int(text) for text in texts if text.isdecimal()],
    }
    for name, reference in inputs.items():
        default = inspect.signature(fn).parameters[name].default
        given = () if default is inspect.Parameter.empty else (default,)
        probes = (*_PROBES[reference.type], *given, *more.get(reference.type, ()))
        for value in probes:
            try:
                built = build(fn, bound, **{name: value})
            except MoreThanTextError:  # for another input, in a branch that this value leads to
                yield name
                break
            except Exception:  # the function does not accept this value
                continue
            if not isinstance(built, specs.AppDef) or not _is_same(built, app, {name: str(value)}):
                yield name
                break


def _is_same(built: specs.AppDef, app: specs.AppDef, texts: Mapping[str, str]) -> bool:
    """Tell whether the AppDefs are equal, with these texts for inputs. Shell programs are compared word by word."""
    built = _plain(built)  # a copy, which is changed below
    for role, other in zip(built.roles, app.roles, strict=False):
        words = [(str(arg),) for arg in other.args]
        index = find_program((str(other.entrypoint),), words)
        if index is not None and index < len(role.args):
            program = content(other.args[index], texts)
            if role.args[index] != program and _words(role.args[index]) == content(_words(other.args[index]), texts):
                role.args[index] = program
    return content(built) == content(app, texts)


def _words(program: str) -> list[str]:
    try:
        return shlex.split(program)
    except ValueError:  # unclosed quotes
        return [program]


def content(value: object, texts: Mapping[str, str] | None = None) -> object:
    """Return the AppDef as plain data, with these texts for inputs."""
    if isinstance(value, str):
        return fill_parameters(value, texts or {})
    if dataclasses.is_dataclass(value):
        return {item.name: content(getattr(value, item.name), texts) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_plain_text(key): content(item, texts) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [content(item, texts) for item in value]
    return value


def misplaced_inputs(app: object) -> dict[str, str]:
    """Return the inputs that the AppDef contains other than as text, and where they are."""
    if not isinstance(app, specs.AppDef):
        return {}
    found = dict.fromkeys(_stand_ins([app.name, app.metadata]), "in the name or the metadata of the AppDef")
    for role in app.roles:
        texts = [role.entrypoint, role.image, *role.args, *role.env.values()]
        found.update(dict.fromkeys(_stand_ins([text for text in texts if not isinstance(text, str)]), "not as text"))
        for item in dataclasses.fields(role):
            value = getattr(role, item.name)
            if item.name == "env":
                found.update(dict.fromkeys(_stand_ins(list(value)), "a name in env"))
            elif item.name not in ("entrypoint", "image", "args"):
                found.update(dict.fromkeys(_stand_ins(value), f"the field {item.name} of a role"))
    return found


def _stand_ins(value: object) -> list[str]:
    """Return the inputs whose stand-ins are anywhere in the value."""
    if isinstance(value, Value):
        return [value.input_name]
    if isinstance(value, str):
        return parameters_in(value)
    if dataclasses.is_dataclass(value):
        value = [getattr(value, item.name) for item in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    return [name for item in value for name in _stand_ins(item)] if isinstance(value, list | tuple | set) else []


def _plain(app: specs.AppDef) -> specs.AppDef:
    """Copy the AppDef; its text becomes plain str."""
    plain = copy.deepcopy(app)
    for role in plain.roles:
        role.entrypoint, role.image = _plain_text(role.entrypoint), _plain_text(role.image)
        role.args = [_plain_text(arg) for arg in role.args]
        role.env = {_plain_text(name): _plain_text(value) for name, value in role.env.items()}
    return plain


def _plain_text(value: Any) -> Any:
    return "".join([value]) if isinstance(value, str) else value
