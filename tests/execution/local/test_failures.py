"""Stages that fail, are retried, or leave something behind."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035

import dataclasses
import io
import os
import re
import subprocess
import time
from typing import List

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.execution.host.calling import wait_until
from tests.execution.local.components import produce, python, scripts, shell, states, text_of, write
from tests.facts import says
from tests.watching import Heard
from torchx_kfp import task_from_app
from torchx_kfp.errors import StageFailedError
from torchx_kfp.execution.local.executors.executor import describe_end
from torchx_kfp.local import Lines, StageRetried, StageStarted, State, load_pipeline, run


def test_a_failed_stage_ends_its_dependants_and_the_others_finish(execute_failing):
    @dsl.pipeline
    def pipeline():
        bad = shell(script="echo one; echo two >&2; exit 3")
        dependant = write(x="never").after(bad)
        with dsl.ParallelFor(["a"]) as item:
            write(x=item).after(dependant)
        slow = python(code="import time; time.sleep(0.3)")
        write(x="independent").after(slow)

    result = execute_failing(pipeline)
    assert states(result) == {
        "shell": "failed",
        "write": "not run",
        "write-2": "not run",
        "python": "succeeded",
        "write-3": "succeeded",
    }
    bad = result["shell"]
    assert (bad.exit_code, bad.reason) == (3, "ended with exit code 3")
    with pytest.raises(StageFailedError) as error:
        result.raise_for_failure()
    assert str(error.value) == (
        f"The run {result.run_id} failed: 1 of 5 stages failed.\n"
        "shell ended with exit code 3.\n"
        f"  Its last lines, from {bad.log_file}:\n"
        "    one\n"
        "    two\n"
        "Not run because of that: write, write-2."
    )
    assert error.value.exit_code == 1


def test_a_line_that_is_the_reason_is_not_quoted(execute_failing):
    @dsl.pipeline
    def pipeline():
        shell(script="echo 'torchx-kfp: no rows.'; exit 1")

    result = execute_failing(pipeline)
    with pytest.raises(StageFailedError) as error:
        result.raise_for_failure()
    assert str(error.value) == (
        f"The run {result.run_id} failed: 1 of 1 stage failed.\nshell ended with exit code 1: no rows."
    )


def test_the_last_lines_of_a_stage(execute_failing):
    (stage,) = execute_failing(scripts("seq 1 3000; exit 1")).stages
    assert stage.last_lines() == [str(number) for number in range(2991, 3001)]
    assert stage.last_lines(2) == ["2999", "3000"]


def test_a_stage_that_was_not_run_names_stages_and_not_the_groups_that_kfp_has_named(execute_failing):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor(["0", "1", "2", "3", "4"]) as code, dsl.If(code != "9"):
            # The first iteration is the last to fail.
            fails = shell(script=f"test {code} != 1 || sleep 2; exit {code}")
        after_loop = write(x="never").after(fails)
        with dsl.ParallelFor(["a"]) as item, dsl.If(item == "a"):
            second = write(x=item).after(after_loop)
        write(x="never").after(second)

    assert {stage.name: stage.reason for stage in execute_failing(pipeline).stages if not stage.attempts} == {
        "write": "was not run: shell[1], shell[2], shell[3] and 1 more failed",
        "write-2": "was not run: write was not run",
        "write-3": "was not run: write-2 was not run",
    }


#: A word of a command, alone or behind ``echo`` -> the exit code and the reason of a stage that cannot be started.
NOT_STARTED = {
    "no-such-command": (
        127,
        "there is no command 'no-such-command' on this machine. Install it, add its folder to PATH, or run the stage "
        "in its image (--docker)",
    ),
    "/no/such/file": (127, "there is no file '/no/such/file' on this machine, or its interpreter is missing"),
    "/etc/passwd": (126, "'/etc/passwd' is not a program that this machine can run"),
    "x" * 200_000: (
        None,
        "its command is too long (its longest argument has 200000 bytes; the system accepts 128 KiB in one argument)",
    ),
    "\0": (None, "a word of its command contains a NUL character"),
    # JSON can contain such text.
    "\ud800": (
        None,
        "its command or environment contains a character that UTF-8 cannot encode ('\\ud800', a surrogate)",
    ),
}


def test_a_command_that_cannot_be_started_says_why(execute_failing):
    loaded = load_pipeline(scripts(*map(str, range(len(NOT_STARTED)))))
    for component, word in zip(loaded.components.values(), NOT_STARTED, strict=True):
        command = (word,) if NOT_STARTED[word][0] else ("echo", word)
        object.__setattr__(component, "container", dataclasses.replace(component.container, command=command, args=()))
    found = [(stage.exit_code, stage.reason) for stage in execute_failing(loaded).stages]
    assert found == [(code, f"could not be started: {reason}") for code, reason in NOT_STARTED.values()]


def test_a_command_that_a_tracked_stage_does_not_find(execute_failing, tmp_path):
    @dsl.pipeline
    def pipeline(tracker_base: str):
        task_from_app(AppDef("app", [Role("app", image="image", entrypoint="no-such")]), tracker_base=tracker_base)
        role = Role("words", image="image", entrypoint="sh", args=["-c", "exit 127"])
        task_from_app(AppDef("words", [role]), tracker_base=tracker_base)

    result = execute_failing(pipeline, {"tracker_base": str(tmp_path / "results")})
    assert result["app"].exit_code == 127
    assert result["app"].reason == (
        "ended with exit code 127: this machine lacks the command 'no-such' that it calls. Install it, add its folder "
        "to PATH, or run the stage in its image (--docker)"
    )
    assert "lacks a command that it calls" in result["words"].reason


@pytest.mark.parametrize(
    "said",
    ["sh: 1: exec: {}: not found", "bash: line 1: {}: command not found", "env: '{}': No such file or directory"],
)
def test_a_command_that_is_missing_is_named(said):
    assert "the command 'jq' that it calls. Install it" in describe_end(127, said.format("jq"), is_process=True)
    assert "the command 'torchrun' that it calls (it comes with torch)." in describe_end(
        127, said.format("torchrun"), is_process=True
    )


@pytest.mark.parametrize("words", [["-c", "import no_such.module"], ["-m", "no_such"]])
def test_a_python_module_that_is_missing(execute_failing, words):
    @dsl.pipeline
    def pipeline():
        task_from_app(AppDef("app", [Role("app", image="image", entrypoint="python", args=words)]))

    stage = execute_failing(pipeline).stages[0]
    assert re.search(says("exit code 1", "'no_such'", "--docker", "--directory"), stage.reason)


def test_what_cannot_be_prepared_fails_alone(execute_failing):
    @dsl.pipeline
    def pipeline():
        made = produce(int, "huge")(text="1" + "0" * 400)
        text_of(int, "text-of-int")(x=made.outputs["out"])
        with dsl.ParallelFor([10**400, 1]) as item:
            text_of(int, "in-command")(x=item)
            with dsl.If(item > 0):
                shell(script="echo fine")
        write(x="other")

    result = execute_failing(pipeline)
    assert result["huge"].reason.startswith("wrote a value into its output 'out' that is not a 64-bit int: '1000")
    assert result["text-of-int"].state is State.NOT_RUN
    assert str(result["in-command[0]"].reason).endswith("(401 characters) is larger than any that KFP passes on.")
    (condition,) = (stage.reason for stage in result.stages if stage.name.startswith("condition-"))
    assert re.fullmatch(r"has the condition .* > 0\", which cannot be evaluated: int too large .*", condition)
    fine = {stage.name for stage in result.stages if stage.state is State.SUCCEEDED}
    assert fine == {"in-command[1]", "shell[1]", "write"}


def test_outputs_that_are_missing_or_of_another_type(execute_failing):
    @dsl.container_component
    def forgets(out: dsl.OutputPath(int)):
        return dsl.ContainerSpec(image="busybox", command=["sh", "-c"], args=["exit 0", out])

    @dsl.container_component
    def binary(out: dsl.OutputPath(str)):
        return dsl.ContainerSpec(image="busybox", command=["sh", "-c", "printf '\\377' > $0", out])

    @dsl.container_component
    def folder(out: dsl.OutputPath(str)):
        return dsl.ContainerSpec(image="busybox", command=["mkdir", out])

    @dsl.container_component
    def pipe(out: dsl.OutputPath(str)):
        return dsl.ContainerSpec(image="busybox", command=["mkfifo", out])

    @dsl.pipeline
    def pipeline():
        forgets()
        binary()
        folder()
        pipe()
        produce(int, "wrong-int")(text="three")
        produce(List[int], "wrong-list")(text="")

    result = execute_failing(pipeline)
    outputs = {stage.name: f"{result.folder}/{stage.pod_name}/made/outputs/out" for stage in result.stages}
    assert {stage.name: stage.reason for stage in result.stages} == {
        "forgets": f"did not write its output 'out': the file {outputs['forgets']} is missing, though the process "
        "ended with exit code 0",
        "binary": f"wrote its output 'out' in an encoding other than UTF-8: {outputs['binary']}",
        "folder": f"left its output 'out' unreadable: {outputs['folder']} is a folder",
        "pipe": f"left its output 'out' unreadable: {outputs['pipe']} is a FIFO",
        "wrong-int": "wrote a value into its output 'out' that is not an int: 'three'",
        "wrong-list": "wrote a value into its output 'out' that is not a list: ''",
    }
    assert {stage.exit_code for stage in result.stages} == {0}


def test_retries_come_to_an_end_and_wait_longer_and_longer(execute_failing):
    @dsl.pipeline
    def pipeline():
        shell(script="exit 7").set_retry(3, backoff_duration="1s", backoff_factor=1.5)
        # Its second delay would be too long, and the third one too large for a float.
        python(code="1/0").set_retry(3, backoff_duration="1s", backoff_factor=1e300)

    events = []
    started = time.monotonic()
    result = execute_failing(pipeline, watch=Heard(on_event=events.append))
    assert time.monotonic() - started >= 4.75
    delays = {name: [event.delay for event in events if isinstance(event, StageRetried) and event.name == name]
              for name in ("shell", "python")}  # fmt: skip
    assert delays == {"shell": [1.0, 1.5, 2.25], "python": [1.0]}
    starts = [event.attempt for event in events if isinstance(event, StageStarted) and event.name == "shell"]
    assert starts == [1, 2, 3, 4]
    with pytest.raises(StageFailedError, match=says("exit code 7", "4 attempts", "2 attempts", "2 of 2 stages")):
        result.raise_for_failure()


def test_no_retry_begins_after_the_longest_time(execute_failing):
    """As with Argo, it counts from the first start."""

    @dsl.pipeline
    def pipeline():
        shell(script="sleep 1.1; exit 7").set_retry(4, backoff_max_duration="1s")
        shell(script="exit 7").set_retry(4, backoff_duration="9s", backoff_max_duration="8s")

    result = execute_failing(pipeline)
    assert {stage.attempts for stage in result.stages} == {1}
    late = "ended with exit code 7; no retry begins {} s after the first start (backoff_max_duration)"
    assert [result[name].reason for name in ("shell", "shell-2")] == [late.format(seconds) for seconds in (1, 8)]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "start",
    [
        "sleep 3000 &",
        "nohup sleep 3000 > /dev/null 2>&1 &",
        "(trap '' TERM HUP; exec sleep 3000) &",
        "timeout 3000 sleep 3000 &",
        # It does not have the run's mark, and is found by its session.
        "env -i sleep 3000 &",
        "setsid sleep 3000 &",
        "setsid sleep 3000 > /dev/null 2>&1 < /dev/null &",
    ],
)
def test_what_a_stage_leaves_behind_is_ended_and_holds_nothing_up(execute, tmp_path, start):
    pipeline = scripts(f"{start} echo $! > {tmp_path}/pid; sleep 0.2; echo done")
    result = execute(pipeline)  # if it waited for one of them, the test would take too long
    assert result.stages[0].log_file.read_text() == "done\n"
    pid = int((tmp_path / "pid").read_text())
    # setsid may have forked: no process of this test that sleeps for so long may be left.
    wait_until(lambda: not alive(pid))
    wait_until(lambda: not [p for p in os.listdir("/proc") if p.isdigit() and _has(int(p), result.run_id)])


def test_what_has_left_the_stages_session_does_not_reach_the_next_stage(execute, tmp_path):
    leave = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 300' > /dev/null 2>&1 < /dev/null &"

    @dsl.pipeline
    def pipeline():
        other = shell(
            script=f"setsid -w sh -c 'until [ -e {tmp_path}/seen ]; do sleep 0.02; done; touch {tmp_path}/end'"
        )
        first = shell(script=f"{leave} until [ -s {tmp_path}/pid ]; do sleep 0.02; done")
        # A process that was killed but not waited for yet does not have a command line.
        gone = f"! grep -q sleep /proc/$(cat {tmp_path}/pid)/cmdline"
        shell(script=f"{gone}; code=$?; touch {tmp_path}/seen; exit $code").after(first)
        write(x="x").after(other)

    execute(pipeline, parallelism=2)
    # The processes of other stages are left alone.
    assert (tmp_path / "end").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk with 512 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_called_that(small_disk, tmp_path):
    stream = io.StringIO()

    @dsl.container_component
    def copied(elsewhere: str, data: dsl.Output[dsl.Dataset]):
        report = '{"artifacts": {"data": {"artifacts": [{"customPath": "\'$1\'"}]}}}'
        script = f"head -c 2000000 /dev/zero >$1; printf %s '{report}' >$2"
        return dsl.ContainerSpec(
            image="busybox", command=["sh", "-c", script, "sh", elsewhere, "{{$.outputs.output_file}}"]
        )

    @dsl.pipeline
    def pipeline(elsewhere: str):
        first = copied(elsewhere=elsewhere)
        shell(script="yes | head -c 2000000; echo end; exit 3").ignore_upstream_failure().after(first)

    result = run(pipeline, {"elsewhere": str(tmp_path / "big")}, output_dir=small_disk, watch=Lines(stream))
    reasons = {stage.name: stage.reason for stage in result.stages}
    assert "the disk is full" in reasons["copied"]
    assert reasons["shell"] == "ended with exit code 3 (the log ends early: the disk is full)"
    assert "shell | torchx-kfp: the log ends here: the disk is full: " in stream.getvalue()


def _has(pid: int, run_id: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return run_id.encode() in file.read() and alive(pid)
    except OSError:
        return False


@dsl.container_component
def script():
    return dsl.ContainerSpec(image="image", command=["env", "A=b", "python", "train.py"])


@dsl.pipeline
def runs_a_script():
    script()


@dsl.pipeline
def runs_a_tracked_script(tracker_base: str):
    role = Role("evaluate", image="image", entrypoint="python", args=["-Bu", "train.py"])
    task_from_app(AppDef("evaluate", roles=[role]), tracker_base=tracker_base, results={"accuracy": float})


def test_a_script_that_is_elsewhere(execute_failing, execute, tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (there / "train.py").write_text("import sys; sys.exit(2 if 'fail' in sys.argv else 0)")
    monkeypatch.chdir(here)
    failed = execute_failing(runs_a_script)
    assert failed["script"].reason == (
        f"ended with exit code 2: there is no '{here}/train.py'; --directory names another folder to run stages in"
    )
    # The words of a tracked stage come from its input `stage`; Python's options may precede the script.
    tracked = execute_failing(runs_a_tracked_script, {"tracker_base": str(tmp_path / "results")})
    assert tracked["evaluate"].reason == failed["script"].reason
    execute(runs_a_script, directory=there)
