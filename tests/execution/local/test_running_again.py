"""A run that failed, was ended or was killed goes on if it is run again: finished stages come from the cache."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl

from tests.execution.host.calling import wait_until
from tests.execution.local.components import shell, shell_out
from tests.execution.local.noting import Runs, everything, made
from tests.execution.local.test_failures import alive
from tests.facts import says
from tests.watching import Heard
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.local.runner import dry_run
from torchx_kfp.execution.runs.history import read_run
from torchx_kfp.execution.runs.prepared_run import prepare
from torchx_kfp.execution.runs.source import stages_named
from torchx_kfp.local import StageStarted, Watch, load_pipeline, run


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def noted(folder: Path) -> list[str]:
    """Return the notes that stages have made, in any order."""
    return sorted((folder / "notes").read_text().split())


def test_each_kind_of_task(runs: Runs) -> None:
    runs.fail("i")
    failed = runs.run(everything())
    assert failed.state == "failed"
    assert runs.notes == sorted(["a", "b", "c", "c", "d", "e", "g", "h", "last", "i", "n", "exit"])
    runs.mend()
    again = runs.run(everything())
    again.raise_for_failure()
    assert runs.notes == ["exit", "i", "j", "k", "m", "m"]
    new = runs.run(everything(), cache=False)
    assert made(again) == made(new)
    assert again.outputs == new.outputs == {"Output": "n(out)"}


@pytest.mark.parametrize(
    ("failing", "edited", "again"),
    [
        ("", "a", "a2 f k"),  # of a condition, the other branch
        ("", "b", "b2 c c d g i j"),
        ("", "c", "c2 c2 d g i j"),
        ("", "g", "g2 i"),
        ("", "h", "h2 last m m"),
        ("", "m", "m2 m2"),
        ("d", "h", "d g h2 i j k last m m"),
        ("h", "e", "e2 h k last m m"),
        ("last", "d", "d2 g i last m m"),
    ],
)
def test_what_had_failed_or_was_edited_runs_again_with_what_depends_on_it(
    failing: str, edited: str, again: str, runs: Runs
) -> None:
    """All ends as if new, and a dry run has said what would run."""
    runs.fail(failing)
    runs.run(everything())
    runs.mend()
    now = everything({edited: f"{edited}2"})
    prepared = prepare(load_pipeline(now), {"folder": str(runs.folder)}, directory=".")
    said = dict(dry_run(prepared, output_dir=runs.folder / "runs"))
    done = runs.run(now)
    done.raise_for_failure()
    assert runs.notes == sorted([*again.split(), "exit"])
    found = {stage.name: str(stage.state) for stage in done.stages}
    for name, what in said.items():
        if what.startswith("cached"):
            assert found[name] == "cached", name
        elif what.startswith("runs: ") and "it reads" not in what:  # what it reads may be made again as it was
            assert found[name] == "succeeded", (name, what)
    assert said.keys() >= {name for name in found if "[" not in name}
    assert made(done) == made(runs.run(now, cache=False))


@pytest.mark.parametrize("way", ["SIGINT", "SIGTERM", "cancel", "timeout", "fail_fast"])
def test_a_run_that_was_ended_goes_on(way, pass_time, tmp_path):
    @dsl.pipeline
    def pipeline(folder: str, items: list = ["a", "b"]):  # noqa: B006 (a constant to KFP)
        first = shell_out(script=f'echo first >> {folder}/notes; printf x > "$0"')
        with dsl.ParallelFor(items) as item:
            each = shell(script=f"echo {item}-{first.output} >> {folder}/notes")
        shell_out(script=f'echo long >> {folder}/notes; . {folder}/do; printf y > "$0"').after(each)

    def hear(event):
        if isinstance(event, StageStarted) and event.name == "shell-out-2":
            if way == "cancel":
                command = ["cancel", event.log_file.parent.parent.name, "--output-dir", str(tmp_path / "runs")]
                canceling.append(subprocess.Popen([sys.executable, "-m", "torchx_kfp", *command]))
            elif way == "timeout":
                pass_time(1000)
            elif way.startswith("SIG"):
                os.kill(os.getpid(), signal.Signals[way])

    canceling: list[Any] = []
    (tmp_path / "do").write_text("exit 1" if way == "fail_fast" else "sleep 300")
    given: Any = {"output_dir": tmp_path / "runs", "grace": 0.1}
    ways: dict[str, Any] = {"timeout": {"timeout": 1000.0}, "fail_fast": {"fail_fast": True}}
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        run(pipeline, {"folder": str(tmp_path)}, watch=Heard(on_event=hear), **given, **ways.get(way, {}))
    assert [process.wait() for process in canceling] == [0] * len(canceling)
    (tmp_path / "do").write_text(":")
    done = run(pipeline, {"folder": str(tmp_path)}, watch=Watch(), **given)
    assert {stage.name: str(stage.state) for stage in done.stages} == {
        "shell-out": "cached",
        "shell[0]": "cached",
        "shell[1]": "cached",
        "shell-out-2": "succeeded",
    }
    assert [note for note in noted(tmp_path) if note != "long"] == ["a-x", "b-x", "first"]


def test_stages_that_run_afresh(tmp_path):
    @dsl.pipeline
    def inner(folder: str, text: str):
        made = shell_out(script=f'echo inner-{text} >> {folder}/notes; printf x > "$0"')
        shell(script=f"echo last-{made.output} >> {folder}/notes")

    @dsl.pipeline(name="afresh")
    def pipeline(folder: str):
        first = shell_out(script=f'echo first >> {folder}/notes; cat {folder}/text > "$0"')
        with dsl.ParallelFor(["a", "b"]) as item:
            shell(script=f"echo {item} >> {folder}/notes")
        inner(folder=folder, text=first.output)

    def ran(*fresh: str) -> list[str]:
        (tmp_path / "notes").write_text("")
        given: Any = {"output_dir": tmp_path / "runs", "watch": Watch(), "fresh": fresh}
        run(pipeline, {"folder": str(tmp_path)}, **given).raise_for_failure()
        return noted(tmp_path)

    (tmp_path / "text").write_text("t")
    ran()
    assert ran() == []
    assert ran("shell") == ["a", "b"]
    assert ran("inner") == ["inner-t", "last-x"]
    assert ran("inner/shell-out", "shell") == ["a", "b", "inner-t"]
    (tmp_path / "text").write_text("u")
    assert ran() == [], "nobody can know"
    assert ran("shell_out") == ["first", "inner-u"]
    assert ran() == [], "what has run afresh is in the cache"
    with pytest.raises(ArgumentError, match=says("'afresh'", "'shel'", "Did you mean 'shell'?", "inner/shell-out")):
        ran("shell", "shel")
    with pytest.raises(ArgumentError, match=says("fresh must be a list", "'shell'")):
        run(pipeline, fresh="shell")


def test_a_killed_runner(call, tmp_path):
    @dsl.pipeline
    def pipeline(folder: str):
        first = shell(script=f"echo first >> {folder}/notes")
        with dsl.ParallelFor([1, 2]) as item:
            wait = f"echo $$ >> {folder}/pids; exec sleep 300"
            shell(script=f"echo {item} >> {folder}/notes; test -e {folder}/go || {{ {wait}; }}").after(first)

    (tmp_path / ".torchxignore").write_text("*")  # what the stages write is not their code
    compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
    words = ["run", "pipeline.yaml", "-p", f"folder={tmp_path}", "--output-dir", "runs"]
    runner = subprocess.Popen([sys.executable, "-m", "torchx_kfp", *words], cwd=tmp_path, stderr=subprocess.DEVNULL)
    wait_until(lambda: (tmp_path / "pids").exists() and len(asleep(tmp_path)) == 2)
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.name != ".cache")
    running = call("retry", folder.name, "--output-dir", "runs")
    assert (running.returncode, f"{folder.name} is running" in running.stderr) == (2, True), running.stderr
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    [recorded] = json.loads(call("runs", "--output-dir", "runs", "--json").stdout)
    assert [recorded[name] for name in ("state", "done", "failed", "running")] == ["interrupted", 1, 0, []]
    # This is the state if the process was killed while it wrote.
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "stage_fin')
    assert len(asleep(tmp_path)) == 2
    (tmp_path / "go").touch()
    again = call("retry", folder.name, "--output-dir", "runs")
    assert again.returncode == 0, again.stderr
    assert noted(tmp_path) == ["1", "1", "2", "2", "first"]
    assert asleep(tmp_path) == []


def test_outputs_of_an_attempt_that_was_never_recorded_do_not_count(execute_failing):
    """Its runner was killed before."""
    folder = '"$TORCHX_KFP_WORKSPACES"/../shell-out_1/made/outputs'

    @dsl.pipeline
    def pipeline():
        before = shell(script=f"mkdir -p {folder}; touch {folder}/out")
        shell_out(script="true").after(before)

    failed = execute_failing(pipeline)
    assert "did not write its output 'out'" in failed["shell-out"].reason


def asleep(folder: Path) -> list[int]:
    """Return the stages of a killed runner that are still running."""
    return [pid for pid in map(int, (folder / "pids").read_text().split()) if alive(pid)]


def test_tasks_that_another_compiler_has_named_with_underscores(tmp_path):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor(["a", "b"]):
            shell(script="true")

    compiler.Compiler().compile(pipeline, str(tmp_path / "compiled.yaml"))
    file = tmp_path / "other.yaml"
    file.write_text(re.sub("^( +)shell:", r"\1make_data:", (tmp_path / "compiled.yaml").read_text(), flags=re.M))
    done = run(file, output_dir=tmp_path / "runs", watch=Watch())
    for name in ("make_data", "make-data"):
        assert stages_named(read_run(done.folder), name) == ["make_data[0]", "make_data[1]"]
