"""Conditions of ``dsl.If`` and fields of loop items, in the Common Expression Language, as on KFP's backend.

celpy evaluates the expressions. KFP's backend uses cel-go, which compares numbers of different types by value and
treats values of different types as unequal. celpy rejects both, so this module has cel-go's operators.

A separate process (``main``) evaluates conditions: it reads and writes one JSON object per line. An expression may need
any amount of time or memory, or be nested so deeply that the interpreter crashes. Only this process is lost then. It is
started when it is needed, and ended when a condition takes too long.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import operator
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

#: Seconds that a condition may take by default.
LONGEST = 10.0
#: The characters that a condition may have. KFP compiles conditions of a few hundred.
_LONGEST_TEXT = 20_000
# Seconds between checks whether the answer is still wanted.
_LOOK_UP = 0.1
# Seconds that the process may take to start: it imports celpy.
_START = 60.0
# The memory of the process, including the evaluation of an expression, in bytes.
_MEMORY = 2 << 30

#: A lock that each thread of this program must hold while it starts a process. While a stage is started, its mark is in
#: this process's limits (``torchx_kfp.execution.local.executors.process``), and other processes must not inherit it.
starting = threading.Lock()
# The new process finds modules in the same places as this one.
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from torchx_kfp.execution.pipeline.conditions import main; main()"
# KFP's compiler quotes an operand if the other one has another type.
_QUOTED_INPUT = re.compile(r"'(?:\w+\()*inputs\.parameter_values\[")
_FIELDS = re.compile(r'parseJson\(string_value\)((?:\["(?:[^"\\]|\\.)*"\])+)')
_FIELD = re.compile(r'\["((?:[^"\\]|\\.)*)"\]')


@functools.cache
def verify_condition(expression: str, seconds: float = LONGEST) -> None:
    """Raise ValueError if the expression is not CEL, or takes longer than ``seconds`` to parse."""
    _evaluator.ask(expression, None, seconds)


def holds(
    expression: str,
    parameters: Mapping[str, Any],
    seconds: float = LONGEST,
    is_wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Tell whether the condition is true for a task's inputs.

    Args:
        expression: the condition, in CEL.
        parameters: the task's inputs.
        seconds: how long the evaluation may take.
        is_wanted: is called now and then, and returns whether the answer is still needed.

    Raises:
        ValueError: the expression is not CEL, is not a boolean, or takes too long, or the answer is no longer needed.
    """
    return bool(_evaluator.ask(expression, parameters, seconds, is_wanted))


def select_field(value: Any, selector: str) -> Any:
    """Return a field of a loop item. KFP compiles one form: ``parseJson(string_value)["a"]``.

    Raises:
        ValueError: the item does not have the field, or the selector has another form.
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
    """Tell whether KFP compiled the condition from values of different types, which yields a wrong expression."""
    return _QUOTED_INPUT.search(expression) is not None


def is_field_selector(selector: str) -> bool:
    """Tell whether ``select_field`` accepts the selector."""
    return _FIELDS.fullmatch(selector) is not None


class _Evaluator:
    """The process, which is started when it is needed, and started again after it was ended."""

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
        """Return the value of a condition, or True if there are no parameters and it should only be parsed."""
        if len(expression) > _LONGEST_TEXT:
            raise ValueError(f"is longer than {_LONGEST_TEXT:,} characters")
        request = {"expression": expression, "parameters": None if parameters is None else dict(parameters)}
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            try:
                process = self._started(is_wanted)
                assert process.stdin is not None
                rest = memoryview(line)
                while rest:
                    rest = rest[os.write(process.stdin.fileno(), rest) :]
                answer = json.loads(self._read(process, seconds, is_wanted))
            except BrokenPipeError:
                self.close()
                raise ValueError("cannot be evaluated: it is too large or nested too deeply") from None
            except BaseException:
                # A late answer would be taken for the answer to the next question.
                self.close()
                raise
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.__exit__(None, None, None)

    def _started(self, is_wanted: Callable[[], bool]) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner != os.getpid():
            self._process = None  # it belongs to the process that this one was forked from
        if self._process is None:
            self._owner = os.getpid()
            # It has its own session, so that Ctrl-C does not end it while this process still needs it.
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
                raise ValueError(f"takes longer than {seconds:g} s (allow more with --condition-time)")
            if select.select([process.stdout], [], [], min(left, _LOOK_UP))[0]:
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    raise BrokenPipeError
                line += data
        return line


_evaluator = _Evaluator()
atexit.register(_evaluator.close)

# The process


@functools.cache
def number_operators() -> dict[str, Callable[..., Any]]:
    """Return comparisons of celpy's values that behave like cel-go's; ``torchx-kfp results --where`` also uses them."""
    import celpy
    from celpy import celtypes

    numbers = (celtypes.IntType, celtypes.UintType, celtypes.DoubleType)

    def function(compare: Callable[[Any, Any], Any], unlike: bool | None = None) -> Callable[[Any, Any], Any]:
        """Return an operator; ``unlike`` is its value for operands of different types, None if they have no order."""

        def apply(a: Any, b: Any) -> Any:
            for operand in (a, b):
                if isinstance(operand, celpy.CELEvalError):
                    return operand
            if isinstance(a, numbers) and isinstance(b, numbers):
                # Python compares numbers of different types exactly.
                return celtypes.BoolType(compare(_plain(a), _plain(b)))
            if type(a) is type(b):
                return celtypes.BoolType(bool(compare(a, b)))
            if unlike is None:
                raise TypeError(f"{type(a).__name__} and {type(b).__name__} have no order")
            return celtypes.BoolType(unlike)

        return apply

    return {
        "_==_": function(operator.eq, unlike=False),
        # The opposite of equality: celpy's values need not have it.
        "_!=_": function(lambda a, b: not a == b, unlike=True),  # noqa: SIM201
        "_<_": function(operator.lt),
        "_<=_": function(operator.le),
        "_>_": function(operator.gt),
        "_>=_": function(operator.ge),
    }


def _plain(number: Any) -> float:
    return float(number) if isinstance(number, float) else int(number)


@functools.cache
def compile_condition(expression: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that tells whether the condition is true for a task's inputs.

    Raises:
        ValueError: the expression is not CEL. The returned function raises it if the expression is not a boolean.
    """
    import celpy
    from celpy.celparser import CELParseError

    environment = celpy.Environment()
    try:
        program = environment.program(environment.compile(expression), functions=number_operators())
    except CELParseError:
        # The error's own message is a drawing of several lines.
        raise ValueError("is not an expression of the Common Expression Language") from None

    def evaluate(parameters: Mapping[str, Any]) -> bool:
        # The backend stores numbers as doubles, and the compiler writes int(...) where that matters.
        values = {name: float(v) if type(v) is int else v for name, v in parameters.items() if v is not None}
        activation = {"inputs": celpy.json_to_cel({"parameter_values": values})}
        try:
            result = program.evaluate(activation)
        except celpy.CELEvalError as error:
            raise ValueError(f"cannot be evaluated: {_reason(error)}") from None
        if not isinstance(result, celpy.celtypes.BoolType):
            raise ValueError(f"is not true or false but {result!r}")
        return bool(result)

    return evaluate


def _reason(error: Exception) -> str:
    args = error.args
    if len(args) > 1 and args[1] is KeyError:
        return f"the task has no input {', '.join(str(name) for name in args[2])}"
    return str(args[0]) if args else str(error)


def _answer(request: Any) -> dict[str, Any]:
    try:
        evaluate = compile_condition(request["expression"])
        return {"value": evaluate(request["parameters"]) if request["parameters"] is not None else True}
    except ValueError as error:
        return {"error": str(error)}
    except RecursionError:
        return {"error": "is nested too deeply"}
    except MemoryError:
        return {"error": f"takes more than {_MEMORY >> 30} GiB of memory"}
    except Exception as error:  # celpy may raise anything
        return {"error": f"cannot be evaluated: {type(error).__name__}: {error}"}


def main() -> None:
    """Answer until there are no more requests, or the answers are not read any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    import celpy  # noqa: F401 (takes long, so it is loaded before the first request)

    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)
