"""Call a TorchX component function to see which AppDef it builds from the inputs of a KFP component.

The function is called with placeholders for values that are known only at run time. A placeholder is text that refuses
every operation that needs its value. Then the function is called with two sample values for each input, and must build
the same AppDef, with the text of the value instead of the placeholder. This finds conversions in C code, which does
not call methods of the placeholder. Conditions in C code, such as ``re.match("gpu-", x)``, may go unnoticed.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from torchx import specs

from torchx_kfp.authoring.inline_code import find_program
from torchx_kfp.authoring.naming import is_input_name
from torchx_kfp.authoring.python import check_arguments
from torchx_kfp.authoring.references import PARAMETER, PYTHON_TYPES, Reference, parameter, parameter_text
from torchx_kfp.contract.carried.publisher import EXACT
from torchx_kfp.errors import AppDefError
from torchx_kfp.tracking.call import parameters_of

_IR_TYPES = {python: ir for ir, python in PYTHON_TYPES.items()}
#: Two values of each type, whose texts differ in length and in the need for quotes.
_SAMPLES: dict[str, tuple[object, object]] = {
    "STRING": ("a, 'b'\t${h} \"%s\" \\/ü\n", "7"),
    "NUMBER_INTEGER": (-3, 10**6),
    "NUMBER_DOUBLE": (-1.5, 1e9),
    "BOOLEAN": (True, False),
    "LIST": ([1, 2], ["a"]),
    "STRUCT": ({"k": 1}, {"a": "b"}),
}

#: The fields in which KFP fills in values, and the field that contains them.
_FILLED_IN = ("roles", "entrypoint", "image", "args", "env")


class ValueNeededError(BaseException):
    """A function needs the value of a parameter. Not an ``Exception``, which the function might catch."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, what)
        self.name = name
        self.what = what


class Placeholder(str):
    """The text of an input. It is a str, so that joins and f-strings in C code accept it."""

    input_name: str

    def __new__(cls, reference: Reference) -> Placeholder:
        text = super().__new__(cls, parameter_text(reference))
        text.input_name = reference.name
        return text

    def __format__(self, how: str) -> str:
        if how:
            raise ValueNeededError(self.input_name, f"the format {how!r}")
        return self

    def __str__(self) -> str:
        return self

    def __copy__(self) -> Placeholder:
        return self

    def __deepcopy__(self, memo: object) -> Placeholder:
        return self


#: The operations that produce text, or that Python itself needs.
_ALLOWED = {"__add__", "__class__", "__doc__", "__init__", "__new__", "__str__", "__format__", "__radd__", "__rmod__"}
_ALLOWED |= {"__getattribute__", "__setattr__", "__delattr__", "__init_subclass__", "__subclasshook__", "__dir__"}
_ALLOWED |= {"__getnewargs__", "__reduce__", "__reduce_ex__", "__getstate__", "__sizeof__", "__module__"}


def _refusal(name: str) -> Callable[..., Any]:
    what = f"the operation {name.strip('_')}" if name.startswith("__") else f"its .{name}()"

    def refuse(self: Placeholder, *args: Any, **options: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") == "shlex":
            # shlex.quote and shlex.join check whether the text needs quotes. Only the calling frame distinguishes this
            # from a check of the function.
            return getattr("".join([self]), name)(*args, **options) if name != "__bool__" else True
        raise ValueNeededError(self.input_name, what)

    return refuse


for _operation in {*dir(str), "__bool__", "__complex__", "__float__", "__index__", "__int__"} - _ALLOWED:
    setattr(Placeholder, _operation, _refusal(_operation))


def call_function(
    fn: Callable[..., specs.AppDef],
    constants: Mapping[str, Any],
    options: Collection[str],
) -> tuple[specs.AppDef, list[Reference]]:
    """Call the function with these constants, and placeholders for its inputs; return the AppDef and the inputs.

    ``options`` are the names of the options of stages, for errors.
    """
    call = _Call(fn, constants)
    check_arguments(call.title, constants, call.signature.parameters, options)
    for name, value in constants.items():
        is_several = call.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        if is_several and not isinstance(value, list | tuple):
            raise AppDefError(f"{name}={value!r} is for *{name} of the function {call.name!r}: give a list.")
    references = list(call.references())
    app = call.build({reference.name: Placeholder(reference) for reference in references})
    if not isinstance(app, specs.AppDef):
        raise AppDefError(f"{call.title} returned {app!r}, but a TorchX component returns an AppDef.")
    app = _plain(app)
    call.check_samples(app, references)
    return app, references


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of a component function with constants."""

    fn: Callable[..., Any]
    constants: Mapping[str, Any]

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.fn)

    @property
    def name(self) -> str:
        fn: Any = self.fn
        return str(getattr(fn.func if isinstance(fn, functools.partial) else fn, "__name__", "fn"))

    @property
    def title(self) -> str:
        return f"The function {self.name!r}"

    def references(self) -> Iterator[Reference]:
        """Yield the parameters that become inputs."""
        for name, (declared, type_) in parameters_of(self.fn, by_name=False).items():
            if name in self.constants or declared.default is None:
                continue
            is_untyped = declared.annotation is declared.empty and declared.default is declared.empty
            kind = "STRING" if is_untyped else _IR_TYPES.get(type_ or object)
            if not is_input_name(name) or not kind or not _can_pass(declared.default, kind):
                raise AppDefError(
                    f"The parameter {name!r} of the function {self.name!r} is '{declared}'. A component's inputs are "
                    "str, int, float, bool, list or dict, and so are their defaults, with numbers that JSON has. Give "
                    f"it as a constant: component_from_function({self.name}, {name}=...)."
                )
            yield parameter(name, kind, declared.default)

    def build(self, values: Mapping[str, object]) -> Any:
        """Call the function with these values, and name the line of an error."""
        try:
            return self._run(values)
        except ValueNeededError as error:
            self.refuse(self._needed(values, error))
        except Exception as error:
            parameters = self.signature.parameters.items()
            left = [name for name, it in parameters if it.default is None and name not in {**self.constants, **values}]
            nothing = f" and with None, their default, for {', '.join(left)}" if left else ""
            raise AppDefError(
                f"{self.title} failed with {type(error).__name__}: {error} ({self._line_of(error)}). It was called "
                f"with placeholders for its inputs ({', '.join(values) or 'none'}), whose values are known only at run "
                f"time{nothing}. Give parameters whose values it needs as constants: "
                f"component_from_function({self.name}, NAME=...)."
            ) from error

    def _needed(self, values: Mapping[str, object], error: ValueNeededError) -> dict[str, str]:
        """Return all parameters whose values the function needs, by calling it again with defaults for those found."""
        needed = {error.name: f"{error.what}, {self._line_of(error)}"}
        default = self.signature.parameters[error.name].default
        if default is not inspect.Parameter.empty and values[error.name] is not default:
            given = {**values, error.name: default}
            try:
                self._run(given)
            except ValueNeededError as another:
                needed |= self._needed(given, another)
            except Exception:  # the function does not accept the default
                return needed
        return needed

    def _run(self, values: Mapping[str, object]) -> Any:
        """Call the function with copies, so that it cannot change the arguments."""
        bound = self.signature.bind_partial()
        given = {**self.constants, **values}
        bound.arguments.update({name: given[name] for name in self.signature.parameters if name in given})
        bound.apply_defaults()
        bound.arguments.update(copy.deepcopy(bound.arguments))
        return self.fn(*bound.args, **bound.kwargs)

    def check_samples(self, app: specs.AppDef, references: Sequence[Reference]) -> None:
        """Reject inputs whose value the function needs, by calling it with two values."""
        placeholders = {reference.name: Placeholder(reference) for reference in references}
        if _content(self.build(placeholders)) != _content(app):
            raise AppDefError(
                f"{self.title} builds a different AppDef each time it is called, even from the same arguments (a time, "
                "a random number, an object that it changes). A component is made only once: give values that change "
                f"as constants, component_from_function({self.name}, NAME=...)."
            )
        wrong: dict[str, str] = {}
        for name, reference in zip(placeholders, references, strict=True):
            for value in _SAMPLES[reference.type]:
                try:
                    is_same = _content(self._run({**placeholders, name: value})) == _content(app, {name: str(value)})
                except ValueNeededError:  # for another input, in a branch for this value
                    is_same = False
                except Exception:  # the function does not accept this value
                    continue
                if not is_same:
                    wrong[name] = f"the AppDef uses more than its text, or puts it where no channel can be: {value!r}"
        if wrong:
            self.refuse(wrong)

    def refuse(self, wrong: Mapping[str, str]) -> NoReturn:
        defaults = {name: self.signature.parameters[name].default for name in wrong}
        given = {name: "..." if value is inspect.Parameter.empty else repr(value) for name, value in defaults.items()}
        for name, value in self.constants.items():  # the repr of a class is not code
            given[name] = value.__name__ if isinstance(value, type) else repr(value)
        call = ", ".join([self.name, *map("=".join, given.items())])
        raise AppDefError(
            f"{self.title} uses parameters for more than text, so KFP cannot fill them in at run time:\n"
            + "\n".join(f"- {name!r}: {why}" for name, why in wrong.items())
            + f"\nGive them as constants: component_from_function({call})."
        ) from None

    def _line_of(self, error: BaseException) -> str:
        """Return the line of the function that raised the error."""
        fn: Any = self.fn
        while isinstance(fn, functools.partial):
            fn = fn.func
        code = getattr(inspect.unwrap(fn), "__code__", None)
        lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code is code]
        return f"{code.co_filename}:{lines[-1]}" if code and lines else "an unknown line"


def _can_pass(default: object, kind: str) -> bool:
    """Return whether KFP can pass on a default, if there is one."""
    if default is inspect.Parameter.empty:
        return True
    if kind == "NUMBER_DOUBLE":
        return type(default) in (int, float) and math.isfinite(default)  # type: ignore[arg-type]  # its type is checked
    if kind == "NUMBER_INTEGER":
        return type(default) is int and abs(default) <= EXACT
    return isinstance(default, PYTHON_TYPES[kind])


def _content(value: object, texts: Mapping[str, str] | None = None) -> object:
    """Return an AppDef as plain data, with these texts for its inputs. Shell programs become lists of words."""
    if isinstance(value, str):
        return PARAMETER.sub(lambda found: (texts or {}).get(found["input"], found[0]), _plain(value))
    if isinstance(value, specs.Role) and all(isinstance(word, str) for word in (value.entrypoint, *value.args)):
        index = find_program((value.entrypoint,), [(arg,) for arg in value.args])
        if index is not None:
            args = [*value.args[:index], _words(_plain(value.args[index])), *value.args[index + 1 :]]
            value = dataclasses.replace(value, args=args)
    if dataclasses.is_dataclass(value):
        names = [item.name for item in dataclasses.fields(value)]
        return {name: _content(getattr(value, name), texts if name in _FILLED_IN else None) for name in names}
    if isinstance(value, Mapping):
        return {_plain(key): _content(item, texts) for key, item in value.items()}
    return [_content(item, texts) for item in value] if isinstance(value, list | tuple) else value


def _words(program: str) -> list[str]:
    try:
        return shlex.split(program)
    except ValueError:  # unclosed quotes
        return [program]


def _plain(value: Any) -> Any:
    """Return text as plain str, and an AppDef as a copy with such text."""
    if isinstance(value, str):
        return "".join([value])
    if isinstance(value, specs.AppDef):
        value = copy.deepcopy(value)
        for role in value.roles:
            role.entrypoint, role.image = _plain(role.entrypoint), _plain(role.image)
            role.args = [_plain(arg) for arg in role.args]
            role.env = {_plain(name): _plain(text) for name, text in role.env.items()}
    return value
