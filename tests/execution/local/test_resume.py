"""A new run continues one that failed, was ended or was killed, and does not repeat stages that have succeeded."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl, kubernetes

from tests.execution.host.calling import wait_until
from tests.execution.local.components import shell, shell_out
from tests.execution.local.test_failures import alive
from tests.facts import says
from tests.watching import Heard
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.runs.history import read_run
from torchx_kfp.execution.runs.source import stages_named
from torchx_kfp.local import RunResult, RunStarted, StageFinished, StageStarted, Watch, plan_run, run


def go_on(folder: Path | None, **options: Any) -> RunResult:
    assert folder is not None
    options.setdefault("watch", Watch())
    return run(resume=folder, output_dir=folder.parent, **options)


def noted(folder: Path) -> list[str]:
    """Return the notes that stages have made, in any order."""
    return sorted((folder / "notes").read_text().split())


@pytest.mark.parametrize("way", ["SIGINT", "SIGTERM", "cancel", "timeout", "fail_fast"])
def test_an_interrupted_resume_keeps_what_had_succeeded(way, execute_failing, tmp_path):
    """Also stages whose turn had not come again, in loops and nested pipelines that had not begun again."""

    @dsl.pipeline
    def inner(folder: str, text: str):
        shell(script=f"echo inner-{text} >> {folder}/notes")

    @dsl.pipeline
    def pipeline(folder: str, items: list = ["a", "b"]):  # noqa: B006 (a constant to KFP)
        first = shell_out(script=f'echo first >> {folder}/notes; . {folder}/do; printf x > "$0"')
        shell_out(script=f'echo alone >> {folder}/notes; printf x > "$0"')
        with dsl.ParallelFor(items) as item:
            shell(script=f"echo {item}-{first.output} >> {folder}/notes; test {item} = a -o -e {folder}/mended")
        inner(folder=folder, text=first.output)

    def hear(event):
        if isinstance(event, RunStarted):
            folders.append(event.folder)
        if isinstance(event, StageFinished):
            stages[event.result.name] = str(event.result.state)
        if isinstance(event, StageStarted) and event.name == "shell-out":
            if way == "cancel":
                command = ["cancel", event.log_file.parent.parent.name, "--output-dir", str(tmp_path / "runs")]
                canceling.append(subprocess.Popen([sys.executable, "-m", "torchx_kfp", *command]))
            elif way.startswith("SIG"):
                os.kill(os.getpid(), signal.Signals[way])

    canceling: list[Any] = []
    folders: list[Path] = []
    stages: dict[str, str] = {}
    (tmp_path / "do").write_text(":")
    failed = execute_failing(pipeline, {"folder": str(tmp_path)}, parallelism=1)
    assert noted(tmp_path) == ["a-x", "alone", "b-x", "first", "inner-x"]
    shutil.rmtree(failed.folder / failed["shell-out"].pod_name)  # so it runs again, and the others wait for it
    (tmp_path / "do").write_text("exit 1" if way == "fail_fast" else "sleep 300")
    ways = {"timeout": {"timeout": 3.0}, "fail_fast": {"fail_fast": True}}
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        go_on(failed.folder, watch=Heard(on_event=hear), grace=0.1, **ways.get(way, {}))
    assert [process.wait() for process in canceling] == [0] * len(canceling)
    if way == "timeout":  # recalling needs no room: another stage had the only place
        assert next(iter(stages)) == "shell-out-2"
    assert stages.pop("shell-out") == ("failed" if way == "fail_fast" else "canceled")
    assert stages.pop("shell") == "not run", "the iterations that had not succeeded"
    assert set(stages.items()) == {(name, "succeeded") for name in ("shell-out-2", "shell[0]", "inner/shell")}
    (tmp_path / "do").write_text(":")
    (tmp_path / "mended").touch()
    assert go_on(folders[0]).state == "succeeded"
    assert [note for note in noted(tmp_path) if note != "first"] == ["a-x", "alone", "b-x", "b-x", "inner-x"]


def test_mended_code_does_not_repeat_what_has_succeeded(tmp_path, monkeypatch):
    """Secrets that are not given again, a task's id, and results of any form do not repeat it, either."""
    monkeypatch.chdir(tmp_path)
    for name in ("prepare", "train"):
        (tmp_path / f"{name}.py").write_text(f"print({name!r}, file=open('notes', 'a'))\n")
    with (tmp_path / "train.py").open("a") as file:
        file.write("raise SystemExit(1)")

    @dsl.container_component
    def component(script: str, task: str):
        return dsl.ContainerSpec(image="x", command=["python"], args=[script, task])

    @dsl.pipeline
    def pipeline():
        prepared = component(script="prepare.py", task=dsl.PIPELINE_TASK_ID_PLACEHOLDER)
        kubernetes.use_secret_as_env(prepared, "keys", {"token": "TOKEN"})
        component(script="train.py", task="").after(prepared)

    failed = run(pipeline, output_dir="runs", secrets={"keys": {"token": "x"}}, watch=Watch())
    (tmp_path / "train.py").write_text("print('mended', file=open('notes', 'a'))\n")
    assert go_on(failed.folder).state == "succeeded"
    assert noted(tmp_path) == ["mended", "prepare", "train"]


def test_a_stage_whose_folder_is_gone_runs_again(execute_failing, tmp_path):
    """So do the stages that read it, if its outputs differ."""

    @dsl.pipeline
    def pipeline(folder: str):
        made = shell_out(script=f'echo first >> {folder}/notes; printf %s $(ls {folder} | grep -c mended) > "$0"')
        shell(script=f"echo read-{made.output} >> {folder}/notes")
        shell(script=f"test -e {folder}/mended").after(made)

    failed = execute_failing(pipeline, {"folder": str(tmp_path)})
    shutil.rmtree(failed.folder / "shell-out_1")
    (tmp_path / "mended").touch()
    assert go_on(failed.folder).state == "succeeded"
    assert noted(tmp_path) == ["first", "first", "read-0", "read-1"]


def test_a_killed_runner(call, tmp_path):
    @dsl.pipeline
    def pipeline(folder: str):
        first = shell(script=f"echo first >> {folder}/notes")
        with dsl.ParallelFor([1, 2]) as item:
            wait = f"echo $$ >> {folder}/pids; exec sleep 300"
            shell(script=f"echo {item} >> {folder}/notes; test -e {folder}/go || {{ {wait}; }}").after(first)

    path = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    code = "import sys; from torchx_kfp.local import run; run(sys.argv[1], {'folder': sys.argv[2]}, output_dir='runs')"
    runner = subprocess.Popen([sys.executable, "-c", code, str(path), str(tmp_path)], cwd=tmp_path)
    wait_until(lambda: (tmp_path / "pids").exists() and len(asleep(tmp_path)) == 2)
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.name != ".cache")
    with pytest.raises(ArgumentError, match=says(folder.name, "not over", f"torchx-kfp cancel {folder.name}")):
        go_on(folder)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    [recorded] = json.loads(call("runs", "--output-dir", "runs", "--json").stdout)
    assert [recorded[name] for name in ("state", "done", "failed", "running")] == ["interrupted", 1, 0, []]
    # This is the state if the process was killed while it wrote.
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "stage_fin')
    copy = shutil.copytree(folder, tmp_path / "copies" / folder.name)
    assert call("cancel", str(copy)).returncode == 0
    assert len(asleep(tmp_path)) == 2, "a copy of the folder is another run"
    (tmp_path / "go").touch()
    result = go_on(folder)
    assert result.state == "succeeded"
    assert noted(tmp_path) == ["1", "1", "2", "2", "first"]
    assert asleep(tmp_path) == []


def test_outputs_of_an_attempt_that_was_never_recorded_do_not_count(execute_failing, tmp_path, monkeypatch):
    """Its runner was killed, and some of its files cannot be removed, such as those of a container's user."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "rm"
    program.write_text("#!/bin/sh\nfind \"$3\" -type f ! -name 'kept*' -delete\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    folder = '"$TORCHX_KFP_WORKSPACES"/../shell-out_1/made/outputs'

    @dsl.pipeline
    def pipeline():
        before = shell(script=f"mkdir -p {folder}; cd {folder}; touch kept1 kept2 kept3 out kept4 kept5 kept6")
        shell_out(script="true").after(before)

    failed = execute_failing(pipeline)
    assert "did not write its output 'out'" in failed["shell-out"].reason
    assert list(failed.folder.glob("shell-out_1/made/outputs/kept*"))


def asleep(folder: Path) -> list[int]:
    """Return the stages of a killed runner that are still running."""
    return [pid for pid in map(int, (folder / "pids").read_text().split()) if alive(pid)]


def test_iterations_that_succeeded_are_kept_unless_they_have_changed(execute_failing, tmp_path):
    def pipeline_with(word="old"):
        @dsl.pipeline(name="loops")
        def pipeline(folder: str, text: str = "t"):
            with dsl.ParallelFor(["a", "b", "c"]) as item:
                first = shell_out(script=f'echo {item}-{text} >> {folder}/notes; printf {item} > "$0"')
                shell(script=f"echo {word}-{first.output} >> {folder}/notes; test {item} != b -o -e {folder}/mended")

        return pipeline

    def ran(folder, *words, **options):
        (tmp_path / "notes").write_text("")
        result = run(*words, resume=folder, output_dir=folder.parent, watch=Watch(), **options)
        assert result.state == "succeeded"
        return noted(tmp_path), result

    failed = execute_failing(pipeline_with(), {"folder": str(tmp_path)}, cache=False)
    (tmp_path / "mended").touch()
    plan = plan_run(pipeline_with(), resume=failed)
    assert str(plan).splitlines()[2].strip() == "kept inside, if the inputs are the same: 5 stages"
    notes, result = ran(failed.folder, cache=False)
    assert notes == ["old-b"]
    assert {stage.name: stage.cached_from for stage in result.stages} == {
        **{f"shell-out[{index}]": failed.run_id for index in range(3)},
        **{f"shell[{index}]": "" if index == 1 else failed.run_id for index in range(3)},
    }
    assert ran(failed.folder, pipeline_with("new"), cache=False)[0] == ["new-a", "new-b", "new-c"]
    every = ["a-t", "b-t", "c-t", "old-a", "old-b", "old-c"]
    assert ran(failed.folder, from_stages=["shell"], cache=False)[0] == every
    other = ran(failed.folder, None, {"text": "u"}, cache=False)[0]
    assert [note for note in other if note.endswith("-u")] == ["a-u", "b-u", "c-u"]


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
        assert len(plan_run(file, resume=done, from_stages=[name]).running) == 1
        assert stages_named(read_run(done.folder), name) == ["make_data[0]", "make_data[1]"]


def test_a_run_without_a_pipeline_has_the_directory_of_the_earlier_one(execute_failing, tmp_path, monkeypatch):
    @dsl.pipeline
    def pipeline():
        shell(script="pwd; test -e mended")

    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    failed = execute_failing(pipeline, directory=here)
    monkeypatch.chdir(there)
    (here / "mended").touch()
    assert go_on(failed.folder)["shell"].last_lines() == [str(here)]
    assert go_on(failed.folder, directory=there).state == "failed"
