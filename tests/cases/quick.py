"""Components that do not start an interpreter in each stage."""

from kfp import dsl


@dsl.container_component
def echo(text: str, out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'printf %s "$0" > "$1"', text, out])


@dsl.container_component
def fail(message: str, out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'echo "$0"; exit 3', message, out])
