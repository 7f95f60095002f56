"""A project folder with a pipeline, and the command line as a user calls it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.entrypoints.cli.ready import PROGRAM, Ready, Started
from torchx_kfp.entrypoints.cli import cli
from torchx_kfp.execution.host.run import DEFAULT_POLICY

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

Call = Callable[..., subprocess.CompletedProcess[str]]


def invoke(*words: str) -> subprocess.CompletedProcess[str]:
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
def call(project: Path, ready_program: Ready) -> Call:
    """The command line, in the project's folder and in a separate process."""

    def run(*words: str, folder: Path = project, **environ: str) -> subprocess.CompletedProcess[str]:
        if not any(name.startswith("PYTHON") for name in environ):
            return ready_program.call(words, folder, {**os.environ, "COLUMNS": "100", **environ})
        return subprocess.run(
            [PROGRAM, *words],
            cwd=folder,
            env={**os.environ, "COLUMNS": "100", **environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.fixture
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """The command line in this process, for tests with many cases. It polls hosts often, and imports files anew."""
    for name, value in {"shortest": 0.1, "longest": 0.5, "share": 1.0}.items():
        monkeypatch.setitem(DEFAULT_POLICY.__dict__, name, value)
    imported = set(sys.modules)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(project)
        return invoke(*words)

    yield run
    for name in set(sys.modules) - imported:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(project):
            del sys.modules[name]


@pytest.fixture
def start(project: Path, ready_program: Ready) -> Callable[..., Started]:
    """The command line as a process that keeps running."""
    return lambda *words: ready_program.start(words, project, os.environ)


@pytest.fixture
def terminal(project: Path, ready_program: Ready) -> Callable[..., str]:
    """The output of the command line in a terminal of this width, without carriage returns."""

    def run(width: int, *words: str, **environ: str) -> str:
        variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        return ready_program.in_terminal(words, project, {**variables, **environ}, width)[0]

    return run
