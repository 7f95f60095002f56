"""``torchx-kfp check``, and the same findings in ``compile`` and ``run``: there is only one check."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call

PIPELINES = """\
from kfp import dsl

@dsl.container_component
def echo(text: str):
    return dsl.ContainerSpec(image="busybox", command=["echo", text])

@dsl.pipeline
def inner(text: str):
    echo(text=text)

@dsl.pipeline
def fails(lr: float = 0.1):
    inner(text=f"one-{lr}")

@dsl.pipeline
def differs(note: str = "$$"):
    echo(text=note).set_retry(1)

@dsl.pipeline
def clean():
    echo(text="a")

@dsl.container_component
def of_the_image():
    return dsl.ContainerSpec(image="busybox")

@dsl.pipeline
def not_here():
    of_the_image()
"""
LOST = "task 'inner' passes a nested pipeline the input 'text' as text that contains 'lr', which arrives as {{$.inputs."


@pytest.fixture(autouse=True)
def pipelines(project: Path) -> None:
    (project / "checked.py").write_text(PIPELINES)


def test_what_fails(call: Call, project: Path) -> None:
    done = call("check", "checked.py:fails")
    assert (done.returncode, done.stderr) == (2, "fails: 1 finding.\n")
    assert done.stdout.startswith(f"fails on KFP: {LOST}")
    run = call("run", "checked.py:fails")
    assert run.returncode == 2
    assert run.stderr.startswith(f"Error: The pipeline 'fails' fails on KFP, so nothing was started:\n- {LOST}")
    compiled = call("compile", "checked.py:fails", "-o", "fails.yaml")
    assert compiled.returncode == 0
    assert compiled.stderr.startswith(f"Warning: fails on KFP: {LOST}")
    assert call("check", "fails.yaml").stdout == done.stdout


def test_strict(call: Call, project: Path) -> None:
    done = call("compile", "checked.py:differs", "-o", "differs.yaml", "--strict")
    assert (done.returncode, done.stdout) == (2, "")
    said = "The pipeline 'differs' differs on KFP, so nothing was written:\n- task 'echo' is retried here"
    assert said in done.stderr
    assert not (project / "differs.yaml").exists()
    assert call("check", "checked.py:differs").returncode == 0
    assert call("check", "checked.py:differs", "--strict").returncode == 2
    assert call("compile", "checked.py:clean", "--strict").returncode == 0


def test_what_differs(call: Call) -> None:
    done = call("check", "checked.py:differs")
    retried, argument = done.stdout.splitlines()
    assert retried.startswith("differs on KFP: task 'echo' is retried here")
    assert argument.startswith("differs on KFP: the argument 'note' contains '$$', which arrives as '$': ")
    given = call("check", "checked.py:differs", "-p", "note=a")
    assert (given.stdout.splitlines(), given.stderr) == ([retried], "differs: 1 finding.\n")
    run = call("run", "checked.py:differs")
    assert f"On KFP: {retried.removeprefix('differs on KFP: ')}\n" in run.stderr
    assert run.returncode == 0, run.stderr


def test_what_this_machine_cannot_do_concerns_no_compiled_file(call: Call) -> None:
    done = call("check", "checked.py:not_here")
    assert done.returncode == 2
    assert done.stdout.startswith("cannot run on this machine: task 'of-the-image' has no command")
    assert call("compile", "checked.py:not_here", "--strict").returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.yaml",), "Error: There is no file 'none.yaml'. Give a compiled pipeline"),
        (("cheked.py:clean",), "There is no file 'cheked.py'. Did you mean 'checked.py'?\n"),
        (("checked.py:cleen",), "has no pipeline 'cleen'. Did you mean 'clean'?"),
        (("checked.py:clean", "-p", "x"), "-p 'x' is not NAME=VALUE"),
        (("checked.py:clean", "-p", "x=1"), "There is no parameter 'x'."),
    ],
)
def test_wrong_calls(call: Call, words: tuple[str, ...], message: str) -> None:
    done = call("check", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
