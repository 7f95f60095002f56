"""The Common Expression Language as KFP's backend evaluates it, and the process that evaluates conditions.

celpy evaluates the expressions. KFP's backend uses cel-go, which compares numbers of different types by value and
treats values of different types as unequal. celpy rejects both, so this module has cel-go's operators.

The process (``main``) reads and writes one JSON object per line; ``conditions`` starts it. An expression may need any
amount of time or memory, or be nested so deeply that the interpreter crashes. Only this process is lost then.
"""

from __future__ import annotations

import functools
import json
import operator
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

#: The memory of this process, including the evaluation of an expression, in bytes.
_MEMORY = 2 << 30


@functools.cache
def number_operators() -> dict[str, Callable[..., Any]]:
    """Return comparisons of celpy's values that behave like cel-go's; ``torchx-kfp results --where`` also uses them."""
    import celpy
    from celpy import celtypes

    numbers = (celtypes.IntType, celtypes.UintType, celtypes.DoubleType)

    def equal(a: Any, b: Any) -> Any:
        for operand in (a, b):
            if isinstance(operand, celpy.CELEvalError):
                return operand
        if isinstance(a, numbers) and isinstance(b, numbers):
            # Python compares numbers of different types exactly.
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
