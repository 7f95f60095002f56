"""Components that several families use."""

import functools
from typing import List

from kfp import dsl

#: kfp is already installed; by default, a component would install it each time.
component = functools.partial(dsl.component, base_image="python:3.11", install_kfp_package=False)


@component
def add(a: int, b: int) -> int:
    return a + b


@component
def double(x: int) -> int:
    return 2 * x


@component
def join(words: List[str]) -> str:
    return "+".join(words)


@component
def total(numbers: List[int]) -> int:
    # kfp.local hands on integers in lists as floats.
    return int(sum(numbers))


@component
def echo(text: str) -> str:
    return text


@component
def fail(message: str) -> str:
    raise RuntimeError(message)


@component
def make(text: str, out: dsl.Output[dsl.Dataset]):
    with open(out.path, "w") as file:
        file.write(text)
    out.metadata["length"] = len(text)


@component
def read(data: dsl.Input[dsl.Dataset]) -> str:
    with open(data.path) as file:
        return file.read()


@component
def read_all(data: dsl.Input[List[dsl.Dataset]]) -> str:
    return "+".join(open(item.path).read() for item in data)


@dsl.container_component
def write(text: str, out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'printf %s "$0" > "$1"', text, out])


@dsl.container_component
def shell(script: str, out: dsl.OutputPath(str)):
    """Runs a script whose ``$0`` is the output's file."""
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", script, out])
