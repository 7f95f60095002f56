"""Compare the AppDef that a component function builds from real values with the one it must build from their text."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchx import specs

from torchx_kfp.adapter.functions.standins import MoreThanTextError, Value
from torchx_kfp.adapter.values.references import Reference, fill_parameters, parameters_in
from torchx_kfp.adapter.values.shell import find_program

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
    for name, reference in inputs.items():
        default = inspect.signature(fn).parameters[name].default
        probes = _PROBES[reference.type] + (() if default is inspect.Parameter.empty else (default,))
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
