"""Conditions of ``dsl.If`` and fields of loop items: expressions of the Common Expression Language.

celpy evaluates them, in a process of their own (``evaluate``), which is ended when it takes too long. KFP's backend
uses cel-go, in which numbers of different types compare by their value and values of different types are unequal,
while celpy refuses both; the operators below are cel-go's.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import operator
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

#: Seconds that a condition may take unless told otherwise.
LONGEST = 10.0
#: Characters of a condition. Those that KFP compiles have some hundred.
_LONGEST_TEXT = 20_000
# Seconds after which somebody who waits for an answer looks whether it is still wanted.
_LOOK_UP = 0.1
# Seconds for the process to start: it imports celpy.
_START = 60.0

#: Held while a process is started, of a stage or to evaluate: while a stage is being started, its mark is in the
#: limits of this process (``torchx_kfp.local.engines.process``).
starting = threading.Lock()
# Its modules are found where this process finds them.
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from torchx_kfp.pipeline.evaluate import main; main()"

# KFP's compiler puts an operand into quotes where the other one has another type.
_QUOTED_INPUT = re.compile(r"'(?:\w+\()*inputs\.parameter_values\[")
_FIELDS = re.compile(r'parseJson\(string_value\)((?:\["(?:[^"\\]|\\.)*"\])+)')
_FIELD = re.compile(r'\["((?:[^"\\]|\\.)*)"\]')


def verify_condition(expression: str, seconds: float = LONGEST) -> None:
    """Raises ValueError if the expression is not CEL, or takes longer than that to read."""
    _verified(expression, seconds)


@functools.cache
def _verified(expression: str, seconds: float) -> None:
    _evaluator.ask(expression, None, seconds)


def holds(
    expression: str,
    parameters: Mapping[str, Any],
    seconds: float = LONGEST,
    is_wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Whether the condition holds for a task's inputs.

    Args:
        expression: CEL.
        parameters: the task's inputs.
        seconds: for which it may be evaluated.
        is_wanted: is asked now and then whether the answer is still of use.

    Raises:
        ValueError: the expression is not CEL, has no boolean value, or takes too long; or nobody wants the answer.
    """
    return bool(_evaluator.ask(expression, parameters, seconds, is_wanted))


class _Evaluator:
    """The process that evaluates; started when it is needed, and again when it was ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(
        self,
        expression: str,
        parameters: Mapping[str, Any] | None,
        seconds: float,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Any:
        if len(expression) > _LONGEST_TEXT:
            raise ValueError(f"is longer than {_LONGEST_TEXT:,} characters")
        request = {"expression": expression, "parameters": None if parameters is None else dict(parameters)}
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            try:
                process = self._started(is_wanted)
                assert process.stdin is not None
                _write(process.stdin.fileno(), line)
                answer = json.loads(self._read(process, seconds, is_wanted))
            except BrokenPipeError:
                self.close()
                raise ValueError("cannot be evaluated: it is too deep or too large") from None
            except BaseException:
                # Its answer would be taken for that of the next question.
                self.close()
                raise
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.__exit__(None, None, None)

    def _started(self, is_wanted: Callable[[], bool]) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner != os.getpid():
            self._process = None  # that of the process which this one was forked from
        if self._process is None:
            self._owner = os.getpid()
            # A session of its own: what ends this process lets it finish what it has to do.
            with starting:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _PROGRAM, *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    start_new_session=True,
                )
            self._read(self._process, _START, is_wanted)
        return self._process

    def _read(self, process: subprocess.Popen[bytes], seconds: float, is_wanted: Callable[[], bool]) -> bytes:
        assert process.stdout is not None
        deadline = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if not is_wanted():
                raise ValueError("was not evaluated: the run was ended")
            if left <= 0:
                raise ValueError(f"takes longer than {seconds:g} s (give it more with --condition-time)")
            if select.select([process.stdout], [], [], min(left, _LOOK_UP))[0]:
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    raise BrokenPipeError
                line += data
        return line


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


_evaluator = _Evaluator()
atexit.register(_evaluator.close)


def select_field(value: Any, selector: str) -> Any:
    """A field of a loop item: ``parseJson(string_value)["a"]``, the one form that KFP compiles.

    Raises:
        ValueError: the item has no such field, or the selector has another form.
    """
    match = _FIELDS.fullmatch(selector)
    if match is None:
        raise ValueError(f"the expression {selector!r} is not a field of a loop item")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"the loop item {value!r} is not JSON, so it has no fields") from None
    for text in _FIELD.findall(match.group(1)):
        name = json.loads(f'"{text}"')
        if not isinstance(value, dict):
            raise ValueError(f"the loop item {value!r} is not a dict, so it has no field {name!r}")
        if name not in value:
            raise ValueError(f"the loop item {value!r} has no field {name!r}")
        value = value[name]
    return value


def compares_types(expression: str) -> bool:
    """Whether KFP compiled the condition from values of different types, which gives no expression."""
    return _QUOTED_INPUT.search(expression) is not None


def is_field_selector(selector: str) -> bool:
    """Whether ``select_field`` takes it."""
    return _FIELDS.fullmatch(selector) is not None


@functools.cache
def number_operators() -> dict[str, Callable[..., Any]]:
    """Comparisons of celpy's values as cel-go has them; ``torchx-kfp results --where`` uses them, too."""
    import celpy
    from celpy import celtypes

    numbers = (celtypes.IntType, celtypes.UintType, celtypes.DoubleType)

    def equal(a: Any, b: Any) -> Any:
        for operand in (a, b):
            if isinstance(operand, celpy.CELEvalError):
                return operand
        if isinstance(a, numbers) and isinstance(b, numbers):
            # Python's own comparison of its numbers, which is exact.
            return celtypes.BoolType(_plain(a) == _plain(b))
        return celtypes.BoolType(type(a) is type(b) and bool(a == b))

    def unequal(a: Any, b: Any) -> Any:
        result = equal(a, b)
        return result if isinstance(result, celpy.CELEvalError) else celtypes.BoolType(not result)

    def ordered(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def function(a: Any, b: Any) -> Any:
            for operand in (a, b):
                if isinstance(operand, celpy.CELEvalError):
                    return operand
            if isinstance(a, numbers) and isinstance(b, numbers):
                return celtypes.BoolType(compare(_plain(a), _plain(b)))
            if type(a) is not type(b):
                raise TypeError(f"{type(a).__name__} and {type(b).__name__} have no order")
            return celtypes.BoolType(compare(a, b))

        return function

    return {
        "_==_": equal,
        "_!=_": unequal,
        "_<_": ordered(operator.lt),
        "_<=_": ordered(operator.le),
        "_>_": ordered(operator.gt),
        "_>=_": ordered(operator.ge),
    }


def _plain(number: Any) -> float:
    return float(number) if isinstance(number, float) else int(number)
