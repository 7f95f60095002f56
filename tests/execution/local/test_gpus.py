"""The GPUs of a machine, which has none: they are those of CUDA_VISIBLE_DEVICES, or of a program like nvidia-smi."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter

import pytest
from kfp import compiler, dsl, kubernetes
from torchx.specs import AppDef, Resource

from tests.execution.host.calling import wait_until
from tests.execution.local.components import shell, shell_out
from tests.execution.local.test_distributed import role
from tests.execution.local.test_failures import alive
from tests.execution.local.test_signals import HANGS, RUNNER, read_pids
from tests.execution.local.test_signals import start as start
from tests.facts import says
from tests.watching import Heard
from torchx_kfp import task_from_app
from torchx_kfp.errors import PipelineError
from torchx_kfp.execution.local import dag_scheduler
from torchx_kfp.execution.local import gpus as module
from torchx_kfp.execution.local.attempt import AttemptThread
from torchx_kfp.execution.local.gpus import visible_gpus
from torchx_kfp.local import StageFinished, StagePending, attach, replay, run

GPU = "nvidia.com/gpu"
ONE = {"": 1}
#: Notes when a stage has which GPUs, and whether others have them at the same time.
USES = 'echo "+ $CUDA_VISIBLE_DEVICES" >> {log}; {script}; echo "- $CUDA_VISIBLE_DEVICES" >> {log}'
#: The first two stages run until both do.
BOTH = "until [ $(grep -c + {log}) -ge 2 ]; do sleep 0.05; done"
#: Each of four stages runs until the next one has started: the third one while the second one runs.
NEXT = (
    "n=1; until mkdir {log}.$n 2>/dev/null; do n=$((n + 1)); done; "
    "until [ -e {log}.go ] && {{ [ $n = 4 ] || [ -e {log}.$((n + 1)) ]; }}; do sleep 0.05; done"
)


def asking(script, number=1):
    """Return a task that runs a script with GPUs."""
    return shell(script=script).set_accelerator_type(GPU).set_accelerator_limit(number)


@pytest.fixture
def two(monkeypatch):
    """The machine has two GPUs, which no other test has: all processes of a machine share its GPUs."""
    names = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
    return names


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Make a program that does what nvidia-smi does."""

    def function(script):
        path = tmp_path / "smi"
        path.mkdir(exist_ok=True)
        (path / "nvidia-smi").write_text(f'#!/bin/sh\n[ "$*" = -L ] || exit 9\n{script}\n')
        (path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{path}{os.pathsep}{os.environ['PATH']}")

    return function


@pytest.fixture
def no_smi(tmp_path, monkeypatch):
    """There is no such program, nor any other."""
    monkeypatch.setenv("PATH", str(tmp_path))


def most_at_once(log):
    """Return how many GPUs were in use at the same time, each by one stage only."""
    used, most = Counter(), 0
    for sign, names in map(str.split, log.read_text().splitlines()):
        for name in names.split(","):
            used[name] += 1 if sign == "+" else -1
            assert used[name] in (0, 1), (name, log.read_text())
        most = max(most, used.total())
    assert not used.total()
    return most


def four(log, script=BOTH):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor([1, 2, 3, 4]):
            asking(USES.format(log=log, script=script.format(log=log)))

    return pipeline


def test_four_stages_share_two_gpus(execute, two, tmp_path):
    """As soon as one ends, the next one starts."""
    log, waiting = tmp_path / "log", {}

    def hear(event):
        if isinstance(event, StagePending):
            waiting[event.name] = event.reason
            if len(waiting) == 2:
                (tmp_path / "log.go").touch()

    result = execute(four(log, NEXT), watch=Heard(on_event=hear), parallelism=9)
    assert most_at_once(log) == 2
    assert set(re.findall(r"GPU-\S+", log.read_text())) == set(two)
    assert list(waiting.values()) == ["waits for 1 of this machine's 2 GPUs"] * 2
    assert all(stage.state == "succeeded" for stage in result.stages)


def test_two_runs_share_them_too(two, tmp_path):
    log = tmp_path / "log"
    compiler.Compiler().compile(four(log), str(tmp_path / "four.yaml"))
    command = [sys.executable, "-c", RUNNER.replace("grace=", "cache=False, grace="), str(tmp_path / "four.yaml")]
    runners = [subprocess.Popen([*command, str(tmp_path / str(number)), "1"]) for number in range(2)]
    assert [runner.wait(HANGS) for runner in runners] == [0, 0]
    assert most_at_once(log) == 2
    assert log.read_text().count("+") == 8


def test_a_stage_without_gpus_waits_for_none_and_one_that_waits_takes_no_place(execute, two):
    held = visible_gpus().take({"": 2})

    @dsl.pipeline
    def pipeline():
        asking(":")
        shell(script=":").after(shell(script=":"))

    def hear(event):
        if isinstance(event, StageFinished) and event.result.name == "shell-2":
            held.release()

    events = []
    execute(pipeline, watch=Heard(on_event=lambda event: (events.append(event), hear(event))), parallelism=1)
    ended = [event.result.name for event in events if isinstance(event, StageFinished)]
    assert ended == ["shell-3", "shell-2", "shell"]
    assert [event.name for event in events if isinstance(event, StagePending)] == ["shell"]


def test_a_stage_that_asks_for_two_is_not_overtaken(execute, two, tmp_path):
    held = visible_gpus().take(ONE)

    @dsl.pipeline
    def pipeline():
        asking(f"echo $CUDA_VISIBLE_DEVICES >> {tmp_path}/log", 2)
        asking(f"echo one >> {tmp_path}/log")

    waiting = []

    def hear(event):
        if isinstance(event, StagePending):
            waiting.append(event.name)
            if len(waiting) == 2:
                held.release()

    execute(pipeline, watch=Heard(on_event=hear))
    assert waiting == ["shell", "shell-2"]
    assert (tmp_path / "log").read_text() == f"{','.join(two)}\none\n"


def test_attempts_release_them(execute_failing, two, pass_time, tmp_path, monkeypatch):
    """Also one that fails, one that is ended, and one that cannot be started."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", two[0])
    log = tmp_path / "log"

    @dsl.container_component
    def missing():
        return dsl.ContainerSpec(image="busybox", command=["no-such-program"])

    @dsl.pipeline
    def pipeline():
        asking(f"echo fails >> {log}; exit 1").set_retry(2, backoff_duration="0s")
        kubernetes.set_timeout(asking(f"echo sleeps | tee -a {log}; sleep 300"), 1000)
        missing().set_accelerator_type(GPU).set_accelerator_limit(1)
        asking(f"echo last >> {log}")

    watch = Heard(on_line=lambda *_: pass_time(1000))
    result = execute_failing(pipeline, watch=watch)
    # Whoever is tried again waits behind the others.
    assert log.read_text().split() == ["fails", "sleeps", "last", "fails", "fails"]
    assert [str(stage.state) for stage in result.stages] == ["failed", "failed", "failed", "succeeded"]
    visible_gpus().take(ONE).release()


def test_an_attempt_that_is_given_up_releases_them(execute_failing, two, monkeypatch):
    """It may be busy with a copy from a server that does not answer."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", two[0])
    monkeypatch.setattr(dag_scheduler, "_LEAVE", 0.1)
    answered = threading.Event()
    copy = AttemptThread._copy_inputs
    monkeypatch.setattr(
        AttemptThread, "_copy_inputs", lambda self: answered.wait(HANGS) if self.plan.stage == "shell" else copy(self)
    )

    @dsl.pipeline
    def pipeline():
        kubernetes.set_timeout(asking(":"), 1)
        asking(":")

    result = execute_failing(pipeline, grace=0.1)
    answered.set()
    assert [str(stage.state) for stage in result.stages] == ["failed", "succeeded"]


def test_a_cached_stage_takes_none_and_which_it_had_does_not_count(execute, two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @dsl.pipeline
    def pipeline():
        asking("echo $CUDA_VISIBLE_DEVICES")

    execute(pipeline, cache=True)
    held = visible_gpus().take({"": 2})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", two[1])
    assert execute(pipeline, cache=True)["shell"].state == "cached"
    held.release()


def test_the_end_of_a_run_ends_the_wait(execute_failing, two):
    held = visible_gpus().take({"": 2})

    @dsl.pipeline
    def pipeline():
        with dsl.ExitHandler(asking("echo exit", 2)):
            asking(":")
            shell(script="exit 3")

    events = []

    def hear(event):
        events.append(event)
        if isinstance(event, StageFinished) and event.result.state == "not run":
            held.release()

    result = execute_failing(pipeline, fail_fast=True, watch=Heard(on_event=hear))
    assert {stage.name: str(stage.state) for stage in result.stages} == {
        "shell": "succeeded",
        "shell-2": "not run",
        "shell-3": "failed",
    }
    assert result["shell"].last_lines() == ["exit"]


def test_ctrl_c_ends_the_wait(two, start, tmp_path):
    @dsl.pipeline
    def pipeline():
        asking(f"echo $$ >> {tmp_path}/pids; exec sleep 300", 2)
        asking(":").after(shell(script=f"until [ -e {tmp_path}/pids ]; do sleep 0.05; done"))

    runner = start(pipeline, 1)
    [events] = (tmp_path / "runs").glob("*/events.jsonl")
    wait_until(lambda: "stage_pending" in events.read_text())
    runner.send_signal(signal.SIGINT)
    _, errors = runner.communicate(timeout=HANGS)
    assert "shell-2 cannot start: waits for 1 of this machine's 2 GPUs.\n" in errors
    states = {stage.name: str(stage.state) for stage in attach(output_dir=tmp_path / "runs").wait().stages}
    assert states == {"shell": "canceled", "shell-2": "not run", "shell-3": "succeeded"}
    visible_gpus().take({"": 2}).release()


def test_a_process_keeps_its_gpu_if_its_runner_is_killed(two, start, tmp_path):
    @dsl.pipeline
    def pipeline():
        asking(f"echo $$ >> {tmp_path}/pids; exec sleep 300")

    runner = start(pipeline, 1)
    runner.kill()
    runner.wait()
    assert visible_gpus().take({"": 2}) is None
    [pid] = read_pids(tmp_path)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))
    wait_until(lambda: visible_gpus().take({"": 2})).release()


def test_a_run_inside_of_a_stage_shares_the_gpus_of_the_stage(execute, two, tmp_path):
    compiler.Compiler().compile(four(tmp_path / "log"), str(tmp_path / "four.yaml"))
    inside = f"{sys.executable} -c '{RUNNER}' {tmp_path}/four.yaml {tmp_path}/inside 1"

    @dsl.pipeline
    def pipeline():
        asking(inside, 2)

    execute(pipeline)
    assert most_at_once(tmp_path / "log") == 2


def test_each_replica_has_its_own(execute, monkeypatch, tmp_path):
    names = [f"GPU-{uuid.uuid4()}" for _ in range(5)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
    script = 'echo "<$CUDA_VISIBLE_DEVICES>"'
    # Network cards and memory are not GPUs.
    others = {"nvidia.com/hostdev": 8, "nvidia.com/gpumem": 3000}
    trainers = role("trainer", 2, "sh", "-c", script, resource=Resource(cpu=1, gpu=2, memMB=100, devices=others))
    reader = role("reader", 1, "sh", "-c", script)
    again = role(
        "trainer", 1, "sh", "-c", f"{script}; [ -e tried ] || {{ touch tried; exit 1; }}",
        resource=Resource(cpu=1, gpu=1, memMB=100), max_retries=1,
    )  # fmt: skip

    @dsl.pipeline
    def pipeline():
        task_from_app(AppDef("app", [trainers, reader]), name="train", engine="jobset")
        task_from_app(AppDef("app", [again]), name="again", engine="job")

    monkeypatch.chdir(tmp_path)
    result = execute(pipeline, parallelism=1)
    said = sorted(re.findall(r"(\S+) \| <(.*)>", result["train"].log_file.read_text()))
    assert said == [("reader/0", ""), ("trainer/0", ",".join(names[:2])), ("trainer/1", ",".join(names[2:4]))]
    # A replica that is started again has the same.
    assert re.findall("<(.*)>", result["again"].log_file.read_text()) == names[:1] * 2


def test_a_stage_that_asks_for_more_than_there_are_is_refused(two, tmp_path):
    @dsl.pipeline
    def pipeline(large: bool = False):
        shell(script=f"touch {tmp_path}/started")
        with dsl.If(large == True):  # noqa: E712 (KFP's condition)
            asking(":", 4)

    run(pipeline, output_dir=tmp_path / "small")
    (tmp_path / "started").unlink()
    facts = ["'pipeline'", "requests 4 GPUs", "has 2", f"CUDA_VISIBLE_DEVICES={','.join(two)}", "Request fewer", "KFP"]
    with pytest.raises(PipelineError, match=says(*facts)):
        run(pipeline, {"large": True}, output_dir=tmp_path / "large")
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "large").exists()


def test_a_stage_that_is_found_to_ask_for_more_fails(execute_failing, two):
    @dsl.pipeline
    def pipeline():
        number = shell_out(script="echo 3 > $0").outputs["out"]
        shell(script=":").set_accelerator_type(GPU).set_accelerator_limit(number)

    stage = execute_failing(pipeline)["shell"]
    assert re.search(says("requests 3 GPUs", "has 2"), stage.reason)


def test_without_gpus_nothing_changes_but_one_line(execute, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")

    @dsl.pipeline
    def pipeline():
        for _ in range(2):
            asking("echo $CUDA_VISIBLE_DEVICES", 4)

    events = []
    result = execute(pipeline, watch=Heard(on_event=events.append))
    assert events[0].not_applied == ("limits of GPUs (CUDA_VISIBLE_DEVICES is '-1')",)
    assert result["shell"].last_lines() == ["-1"]


def test_a_replay_waits_for_them(execute, two, tmp_path):
    @dsl.pipeline
    def pipeline():
        asking(f"echo $CUDA_VISIBLE_DEVICES > {tmp_path}/seen")

    execute(pipeline)
    held = visible_gpus().take({"": 2})
    said = []

    def say(sentence):
        said.append(sentence)
        if sentence.startswith("It waits"):
            held.release()

    ended = replay("latest", "shell", output_dir=tmp_path / "runs", say=say)
    assert ended.stage.state == "succeeded"
    assert said[-1] == "It waits for 1 of this machine's 2 GPUs."
    assert (tmp_path / "seen").read_text() == f"{two[0]}\n"
    visible_gpus().take({"": 2}).release()


#: An engine that notes its containers and their GPUs.
DOCKER = """#!/bin/sh
cd "${{0%/*}}"
case "$1" in
info) echo '{{"NCPU": 1, "Runtimes": {{"nvidia": {{}}}}}}' ;;
image) echo '[{{"Id": "i", "Config": {{}}}}]' ;;
create)
    mkdir -p made; id=$(mktemp made/XXXXXX)
    for word; do
        case "$word" in
        --gpus=*) echo "${{word#--gpus=}}" >$id ;;
        *REPLICA_GPUS*) echo "$word" >shares ;;
        esac
    done
    echo $id ;;
start)
    gpus=$(sed 's/^"device=//; s/"$//' $3)
    echo "+ $gpus" >>{log}; {both}; echo "- $gpus" >>{log} ;;
esac
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """The folder of a Docker whose containers do nothing."""
    folder = tmp_path / "docker"
    folder.mkdir()
    log = tmp_path / "log"
    (folder / "docker").write_text(DOCKER.format(log=log, both=BOTH.format(log=log)))
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_containers_have_their_own(execute, two, docker, tmp_path):
    execute(four(tmp_path / "log"), docker=True, parallelism=9)
    assert most_at_once(tmp_path / "log") == 2
    asked = sorted(path.read_text() for path in (docker / "made").iterdir())
    assert set(asked) == {f'"device={name}"\n' for name in two}


@pytest.mark.parametrize("address", ["DOCKER_HOST", "context"])
def test_an_engine_on_another_machine_has_other_gpus(address, execute, two, docker, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", "ssh://gpu-box" if address == "DOCKER_HOST" else "")
    program = (docker / "docker").read_text()
    (docker / "docker").write_text(program.replace("info)", "context) echo tcp://gpu-box:2375 ;;\ninfo)"))
    (tmp_path / "log").write_text("+\n+\n")

    @dsl.pipeline
    def pipeline():
        asking(":", 4)  # more than this machine has

    events = []
    execute(pipeline, docker=True, watch=Heard(on_event=events.append))
    assert [path.read_text() for path in (docker / "made").iterdir()] == ["4\n"]
    [lack] = events[0].not_applied
    assert re.search(says("limits of GPUs", "share the engine's first ones", "another machine", "://gpu-box"), lack)


def test_replicas_in_a_container_have_its_gpus(execute, two, docker, smi, monkeypatch, tmp_path):
    """CUDA counts those of the container."""
    smi(f"echo 'GPU 3: X (UUID: {two[0]})'; echo 'GPU 7: X (UUID: {two[1]})'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,7")
    (tmp_path / "log").write_text("+\n+\n")
    app = AppDef("app", [role("trainer", 2, "true", resource=Resource(cpu=1, gpu=1, memMB=100))])

    @dsl.pipeline
    def pipeline():
        task_from_app(app, engine="job")

    execute(pipeline, docker=True)
    assert [path.read_text() for path in (docker / "made").iterdir()] == ['"device=3,7"\n']
    _, _, shares = (docker / "shares").read_text().partition("=TORCHX_KFP_REPLICA_GPUS=")
    assert json.loads(shares) == {"trainer/0": "0", "trainer/1": "1"}


A, B, C = (f"GPU-{letter * 8}-d33d-2b2c-524d-9e3d8d2b8a77" for letter in "abc")
PARTS = [f"MIG-{letter * 8}-d33d-2b2c-524d-9e3d8d2b8a77" for letter in "de"]
LISTED = f"""cat << END
GPU 0: NVIDIA A100-SXM4-40GB (UUID: {A})
  MIG 1g.5gb      Device  0: (UUID: {PARTS[0]})
  MIG 1g.5gb      Device  1: (UUID: {PARTS[1]})
GPU 1: NVIDIA A100-SXM4-40GB (UUID: {B})
GPU 2: NVIDIA A100-SXM4-40GB (UUID: {C})
END"""


@pytest.mark.parametrize(
    ("visible", "known"),
    [
        (None, [*PARTS, "1", "2"]),
        ("0,2", ["0", "2"]),
        (f" {C} , GPU-b,{PARTS[1]}", [C, "GPU-b", PARTS[1]]),
        ("2,-1,1", ["2"]),
        ("1,3,2", ["1"]),
        (f"1,{B}", ["1"]),
        ("GPU-d", []),
        ("", []),
        ("NoDevFiles", []),
        ("all", []),
    ],
)
def test_cuda_names_the_gpus_up_to_the_first_entry_that_is_none(visible, known, smi, monkeypatch):
    smi(LISTED)
    environ = {"PATH": os.environ["PATH"], **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    gpus = visible_gpus(environ)
    assert [gpu.name for gpu in gpus.known] == known
    assert known or gpus.lacks == f"CUDA_VISIBLE_DEVICES is {visible!r}"


def test_numbers_are_those_of_nvidia_smi(execute, smi, monkeypatch):
    """CUDA may number the GPUs by their speed."""
    smi("".join(f"echo 'GPU {index}: NVIDIA A100 (UUID: GPU-{uuid.uuid4()})';" for index in range(2)))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    @dsl.pipeline
    def pipeline():
        asking("echo $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES")

    assert execute(pipeline)["shell"].last_lines() == ["PCI_BUS_ID 1"]


def test_without_nvidia_smi_entries_are_taken_at_their_word(no_smi):
    found = {
        text: [gpu.name for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": text}).known] for text in ("0,1", "7,x,1")
    }
    assert found == {"0,1": ["0", "1"], "7,x,1": ["7"]}


def test_the_index_and_the_uuid_of_a_gpu_are_one_gpu(smi):
    names = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
    smi("; ".join(f"echo 'GPU {index}: NVIDIA A100 (UUID: {name})'" for index, name in enumerate(names)))

    def of(visible):
        return visible_gpus({**os.environ, "CUDA_VISIBLE_DEVICES": visible})

    held = of("1").take(ONE)
    assert of(names[1]).take(ONE) is of(names[1][:20]).take(ONE) is None
    other = of(f"{names[1]},0").take(ONE)
    assert [gpu.name for gpu in other.gpus] == ["0"]
    held.release()
    other.release()


def test_replicas_in_a_container_share_no_gpu_if_some_have_uuids(smi):
    smi(LISTED)
    held = visible_gpus({**os.environ, "CUDA_VISIBLE_DEVICES": f"2,{B}"}).take({"t/0": 1, "t/1": 1})
    shares = json.loads(held.environ({"t/0": 1, "t/1": 1}, {}, in_container=True)["TORCHX_KFP_REPLICA_GPUS"])
    held.release()
    assert shares == {"t/0": C, "t/1": B}


@pytest.mark.parametrize(
    ("script", "lacks"),
    [
        ("echo No devices were found", "nvidia-smi lists no GPUs"),
        ("echo NVIDIA-SMI has failed; exit 9", "nvidia-smi fails with exit code 9"),
        ("sleep 300", "nvidia-smi did not answer within 0.5 s"),
    ],
)
def test_an_nvidia_smi_that_lists_none_means_none(script, lacks, smi, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.5 if "within" in lacks else 60)
    smi(script)
    gpus = visible_gpus({"PATH": os.environ["PATH"]})
    assert (gpus.known, gpus.lacks) == ([], lacks)


def test_a_machine_without_nvidia_smi(no_smi):
    assert visible_gpus({"PATH": os.environ["PATH"]}).lacks == "there is no nvidia-smi"
