"""A project folder with a pipeline, and the command line as a user calls it."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import Done, Program
from torchx_kfp.entrypoints.cli import cli

PIPELINE = '''\
import sys

from kfp import dsl
from torchx.specs import AppDef, Role

from torchx_kfp import task_from_app

RECORD = """
import sys
from torchx_kfp.tracking import current_run
run = current_run()
before = [parent.results() for parent in run.parents.values()]
print("arguments", sys.argv[1:], flush=True)
run.put(value=float(sys.argv[1]), parents=len(before))
"""


def app(name, *args, program=RECORD):
    return AppDef(name, [Role("role", image="image", entrypoint="python", args=["-c", program, *args])])


@dsl.pipeline(name="two")
def two(tracker_base: str, value: float = 1.5, names: list = ["a"]):
    first = task_from_app(app("first", f"{value}"), tracker_base=tracker_base)
    with dsl.ParallelFor(names) as name:
        task_from_app(app("second", "2", f"{name}"), tracker_base=tracker_base, reads=first)


@dsl.pipeline(name="fails")
def fails(tracker_base: str):
    program = RECORD + "print('the last line', flush=True); sys.exit(7)"
    first = task_from_app(app("first", "1", program=program), tracker_base=tracker_base)
    task_from_app(app("second", "2"), tracker_base=tracker_base, reads=first)


@dsl.pipeline(name="sleeps")
def sleeps():
    task_from_app(app("sleep", program="import time; print('asleep', flush=True); time.sleep(60)"))
'''

Call = Callable[..., Done]


def invoke(*words: str) -> Done:
    """Call the command line in this process."""
    with tempfile.TemporaryFile("w+", newline="") as out, tempfile.TemporaryFile("w+", newline="") as err:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            cli(list(words), prog_name="torchx-kfp")
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess(words, int(ended.value.code or 0), *texts)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with ``pipelines.py``."""
    (tmp_path / "pipelines.py").write_text(PIPELINE)
    return tmp_path


@pytest.fixture
def call(project: Path, call: Program) -> Program:
    """The command line, in the project's folder."""
    return call
