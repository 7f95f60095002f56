"""Stand-ins for values that are known only at run time: they can become text, and reject every other operation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from torchx_kfp.authoring.references import Reference, parameter_text

#: Operations that turn a stand-in into text, or that Python itself needs: these are allowed.
_TEXT = {"__add__", "__class__", "__doc__", "__init__", "__new__", "__str__", "__format__", "__radd__", "__rmod__"}
_TEXT |= {"__getattribute__", "__setattr__", "__delattr__", "__init_subclass__", "__subclasshook__", "__dir__"}
_TEXT |= {"__getnewargs__", "__reduce__", "__reduce_ex__", "__getstate__", "__sizeof__", "__module__"}
#: Operations of numbers, lists and dicts.
_OPERATIONS = """
abs add and bool call ceil complex contains delitem divmod enter eq float floor floordiv ge getitem gt hash index int
invert iter le len lshift lt matmul mod mul ne neg next or pos pow radd rand repr reversed rdivmod rfloordiv rlshift
rmatmul rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor setitem sub truediv trunc xor
""".split()  # noqa: SIM905 - a list of them is sixty lines
#: Operations that str does not define, but that Python looks for.
_OF_TEXT = {"__bool__", "__complex__", "__float__", "__index__", "__int__"}


class MoreThanTextError(BaseException):
    """A function needs the value of a parameter. Not an ``Exception``: the function might catch that."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, what)
        self.name = name
        self.what = what


class Value:
    """A stand-in for a number, a boolean, a list or a dict."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    @property
    def input_name(self) -> str:
        return self._reference.name

    def __str__(self) -> str:
        return Text(self._reference)

    def __format__(self, how: str) -> str:
        if how:
            _refuse(self._reference.name, f"the format {how!r}")
        return Text(self._reference)

    def __deepcopy__(self, memo: object) -> Value:
        return self

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # Python and its libraries look for these, whatever the function does
        _refuse(self._reference.name, f"its .{name}")


class Text(str):
    """A stand-in for a string. It is a str, so that joins and f-strings in C code accept it."""

    _reference: Reference

    def __new__(cls, reference: Reference) -> Text:
        text = super().__new__(cls, parameter_text(reference))
        text._reference = reference
        return text

    def __format__(self, how: str) -> str:
        if how:
            _refuse(self._reference.name, f"the format {how!r}")
        return self

    def __str__(self) -> str:
        return self

    def __copy__(self) -> Text:
        return self

    def __deepcopy__(self, memo: object) -> Text:
        return self


def _refuse(name: str, what: str) -> NoReturn:
    raise MoreThanTextError(name, what)


def _refusal(name: str) -> Callable[..., Any]:
    what = f"the operation {name.strip('_')}" if name.startswith("__") else f"its .{name}()"

    def refuse(self: Any, *args: Any, **options: Any) -> Any:
        if isinstance(self, Text) and sys._getframe(1).f_globals.get("__name__") == "shlex":
            # Functions build shell programs with shlex.quote and shlex.join, which test the text to decide whether it
            # needs quotes. Only the calling frame tells their tests from the function's own, which are rejected. shlex
            # sees the placeholder, and `shell` looks for the quotes that it adds in programs.
            return getattr("".join([self]), name)(*args, **options) if name != "__bool__" else True
        _refuse(self._reference.name, what)

    return refuse


for _operation in _OPERATIONS:
    setattr(Value, f"__{_operation}__", _refusal(f"__{_operation}__"))
for _operation in ({*dir(str)} | _OF_TEXT) - _TEXT:
    setattr(Text, _operation, _refusal(_operation))
