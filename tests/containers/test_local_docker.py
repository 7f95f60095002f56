"""The local runner's stages in containers of a real engine."""

# No annotations from __future__: KFP reads those of pipelines as objects.

import gc
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest
from kfp import compiler, dsl, kubernetes
from torchx.specs import AppDef, Role

from tests.containers.images import BUSYBOX_IMAGE, HOST_IMAGE, OWN_IMAGE, host_mounts
from tests.facts import says
from tests.watching import Heard
from torchx_kfp import local, task_from_app
from torchx_kfp.execution.local.executors.engine import remove_containers
from torchx_kfp.local import RunResult, Watch

#: The message about a missing command.
NEEDS = "its image lacks a command; an image needs sh, env and mkdir, and the commands that the application calls"
MOUNTS = [f"{source}:{target}:ro" for source, target in host_mounts().items()]

#: Records a result like an image without Python does.
RECORD = r"""
mkdir -p "$TORCHX_TRACKER_BASE/${TORCHX_JOB_ID%/*}"
echo "{\"user\": $(id -u)}" >"$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID"
"""


@pytest.fixture(scope="session")
def engine(docker_client: docker.DockerClient) -> docker.DockerClient:
    return docker_client


@pytest.fixture
def execute(engine: docker.DockerClient, tmp_path: Path) -> Callable[..., RunResult]:
    """Run a pipeline in containers; no containers and no connections are left afterwards."""

    def function(pipeline: Any, arguments: dict[str, Any] | None = None, **options: Any) -> RunResult:
        options = {"docker": True, "watch": Watch(), "output_dir": tmp_path / "runs", **options}
        result = local.run(pipeline, arguments, **options)
        assert containers_of(engine, result.run_id) == []
        gc.collect()
        return result

    return function


def start(pipeline: Any, folder: Path, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Compile a pipeline, and start ``torchx-kfp run --docker``."""
    compiler.Compiler().compile(pipeline, str(folder / "pipeline.yaml"))
    command = [Path(sys.executable).with_name("torchx-kfp"), "run", folder / "pipeline.yaml", "--docker"]
    words = (*command, "--output-dir", folder / "runs", *words)
    return subprocess.Popen(words, text=True, start_new_session=True, **{"stderr": subprocess.PIPE, **options})


def containers_of(engine: docker.DockerClient, run_id: str) -> list[Any]:
    return list(engine.api.containers(all=True, filters={"label": f"torchx-kfp.run={run_id}"}))


def log_of(result: RunResult, stage: str) -> str:
    (found,) = [each for each in result.stages if each.name == stage]
    assert found.log_file is not None
    return found.log_file.read_text()


@dsl.container_component
def shell(script: str):
    return dsl.ContainerSpec(image=BUSYBOX_IMAGE, command=["sh", "-c"], args=[script])


@dsl.container_component
def shell_out(script: str, out: dsl.OutputPath(str), data: dsl.Output[dsl.Dataset]):
    return dsl.ContainerSpec(image=BUSYBOX_IMAGE, command=["sh", "-c"], args=[script, out, data.path])


@dsl.container_component
def own():
    return dsl.ContainerSpec(image=OWN_IMAGE)


@dsl.container_component
def own_args(word: str):
    return dsl.ContainerSpec(image=OWN_IMAGE, args=[word])


@dsl.container_component
def own_command(out: dsl.OutputPath(str), data: dsl.Output[dsl.Dataset]):
    script = 'printf %s "$(id -u)" >"$0"; mkdir "$1"; echo x >"$1/file"; echo "$OWN" "$MINE" "$PATH" "${SECRET-none}"'
    return dsl.ContainerSpec(image=OWN_IMAGE, command=["sh", "-c", script, out, data.path])


@dsl.container_component
def read(data: dsl.Input[dsl.Dataset]):
    return dsl.ContainerSpec(image=BUSYBOX_IMAGE, command=["cat"], args=[data.path])


def test_images_have_their_own_entrypoint_command_environment_and_user(execute, monkeypatch):
    monkeypatch.setenv("SECRET", "of this machine")

    @dsl.pipeline
    def pipeline():
        own()
        own_args(word="given")
        own_command().set_env_variable("MINE", "the pipeline's")

    result = execute(pipeline)
    result.raise_for_failure()
    assert log_of(result, "own") == "own its-command\n"
    assert log_of(result, "own-args") == "own given\n"
    words = log_of(result, "own-command")
    assert words == "its-own the pipeline's /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin none\n"
    (stage,) = [stage for stage in result.stages if stage.name == "own-command"]
    # Its user differs from this process's, but could write.
    assert stage.outputs == {"out": "1234"}
    assert Path(stage.artifacts["data"].path).stat().st_uid == 1234


VALUES = {
    "TEXT": "a\nb=c ${x} \\r\r",
    "EMPTY": "",
    "PATH": "/bin",
    "HOME": "/x y",
    "DOCKER_HOST": "tcp://nowhere:1",
    "GODEBUG": "x=1",
}


def test_variables_and_mounts_arrive_as_they_are_and_values_are_no_words(execute, monkeypatch, tmp_path):
    """Nobody sees the value of a secret in the list of processes, and none changes what the engine's program does."""
    real = shutil.which("docker")
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "docker"
    shim.write_text(f'#!/bin/sh\nprintf \'%s\\n\' "$@" >>{tmp_path}/words\nexec {real} "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    folder = tmp_path / 'a,"b'
    folder.mkdir()
    (folder / "file").write_text("mounted\n")

    @dsl.pipeline
    def pipeline():
        names = " ".join(f'"${name}"' for name in VALUES)
        task = shell(script=f"printf '%s|' {names} \"$TOKEN\"; cat '{folder}/file'")
        for name, value in VALUES.items():
            task.set_env_variable(name, value)
        kubernetes.use_secret_as_env(task, "any", {"key": "TOKEN"})

    result = execute(pipeline, mounts=[str(folder)], secrets={"any": {"key": "of-a-secret"}})
    result.raise_for_failure()
    log = result["shell"].log_file.read_bytes().decode()  # no line break is translated
    assert log == "|".join([*VALUES.values(), "of-a-secret", "mounted\n"])
    words = (tmp_path / "words").read_text()
    assert "--env=TOKEN\n" in words
    assert "of-a-secret" not in words


def test_a_secret_with_a_name_that_the_program_reads_is_refused(execute):
    @dsl.pipeline
    def pipeline():
        kubernetes.use_secret_as_env(shell(script="echo"), "any", {"key": "DOCKER_HOST"})

    reason = execute(pipeline, secrets={"any": {"key": "of-a-secret"}})["shell"].reason
    assert re.search(says("itself would read the variable 'DOCKER_HOST'", "Name it differently", "as a file"), reason)


def test_an_image_whose_name_looks_like_an_option(execute):
    @dsl.container_component
    def privileged():
        return dsl.ContainerSpec(image="--privileged", command=["sh"], args=["-c", "id"])

    @dsl.pipeline
    def pipeline():
        privileged()

    reason = execute(pipeline)["privileged"].reason
    assert reason.startswith(
        "could not be started: the image '--privileged' does not exist locally and cannot be pulled: "
    )


def test_stages_hand_on_outputs_artifacts_and_results(execute, engine, tmp_path):
    app = AppDef("record", roles=[Role("record", OWN_IMAGE, entrypoint="sh", args=["-c", RECORD])])

    @dsl.pipeline
    def pipeline(tracker_base: str):
        made = shell_out(script='echo "in $(cat /proc/sys/kernel/hostname)" >&2; printf v >$0; echo data >$1')
        read(data=made.outputs["data"])
        shell(script=f"test {made.outputs['out']} = v")
        task_from_app(app, tracker_base=tracker_base)

    base = tmp_path / "tracker"
    result = execute(pipeline, {"tracker_base": str(base)})
    result.raise_for_failure()
    assert log_of(result, "read") == "data\n"
    assert result["record"].results == {"user": 1234}
    assert {stage.execution_id.split("/")[0] for stage in result.stages if stage.execution_id} == {result.run_id}


def test_thirty_quick_failures_are_failures(execute):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor(list(range(30))) as item:
            shell(script=f"echo last words; exit {item}")

    result = execute(pipeline)
    assert [stage.exit_code for stage in result.stages] == list(range(30))
    assert [stage.state for stage in result.stages] == ["succeeded"] + ["failed"] * 29
    assert {log_of(result, stage.name) for stage in result.stages} == {"last words\n"}


def test_how_containers_end(execute):
    @dsl.container_component
    def missing():
        return dsl.ContainerSpec(image="torchx-kfp-test/missing:1", command=["sh"])

    @dsl.pipeline
    def pipeline():
        shell(script="kill -SEGV $$; sleep 60")
        shell(script="echo out; echo err >&2; exec no-such-command")
        shell(script="tail /dev/zero").set_memory_limit("16M")
        missing()
        kubernetes.set_image_pull_policy(missing(), "Never")

    result = execute(pipeline)
    reasons = {stage.name: stage.reason for stage in result.stages}
    pulled = reasons.pop("missing")
    # An engine may notice too late why it has ended a container.
    reasons["shell-3"] = reasons["shell-3"].replace("perhaps ", "")
    assert reasons == {
        "shell": "was ended by signal 11 (SIGSEGV)",
        "shell-2": f"ended with exit code 127: {NEEDS}",
        "shell-3": "was ended by signal 9 (SIGKILL): it ran out of memory (its limit is 16 MB)",
        "missing-2": "could not be started: the image 'torchx-kfp-test/missing:1' does not exist locally, and its "
        "image pull policy is Never. Build or pull it",
    }
    assert pulled.startswith(
        "could not be started: the image 'torchx-kfp-test/missing:1' does not exist locally and cannot be pulled: "
    )
    # The engine has two streams, whose relative order is lost.
    assert {"out", "err"} < set(log_of(result, "shell-2").splitlines())
    assert log_of(result, "missing") == "Pulling the image torchx-kfp-test/missing:1.\n"


LIMITS = """
cd /sys/fs/cgroup
if [ -e cpu.max ]; then cat cpu.max memory.max; else cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us \
memory/memory.limit_in_bytes; fi | tr '\\n' ' '
df -k /dev/shm /memory | awk 'NR > 1 { print $2 }' | tr '\\n' ' '
echo new >/new/file; cat /data/file; echo 2>/dev/null >/data/other || echo read-only
id -u
"""


def test_limits_volumes_users_and_mounts(execute, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("mounted ")

    @dsl.pipeline
    def pipeline(memory: str = "64Mi"):
        task = shell(script=LIMITS).set_cpu_limit("500m").set_memory_limit(memory)
        kubernetes.empty_dir_mount(task, "new", "/new")
        kubernetes.empty_dir_mount(task, "memory", "/memory", medium="Memory", size_limit="1Mi")
        kubernetes.empty_dir_mount(task, "dshm", "/dev/shm", medium="Memory", size_limit="2Mi")
        kubernetes.mount_pvc(task, "claim", "/data")
        kubernetes.set_security_context(task, run_as_user=77)

    events: list[Any] = []
    result = execute(pipeline, mounts=[f"{tmp_path}/data:/data:ro"], watch=Heard(on_event=events.append))
    result.raise_for_failure()
    assert events[0].not_applied == ()
    assert log_of(result, "shell") == f"50000 100000 {64 * 2**20} 2048 1024 mounted read-only\n77\n"
    assert [file.read_text() for file in result.folder.rglob("volumes/new/file")] == ["new\n"]


def test_a_stage_of_another_user_that_may_fail_records_its_exit_code(execute, tmp_path):
    app = AppDef("fail", roles=[Role("fail", HOST_IMAGE, entrypoint="sh", args=["-c", "exit 3"])])

    @dsl.pipeline
    def pipeline(tracker_base: str):
        kubernetes.set_security_context(task_from_app(app, tracker_base=tracker_base, may_fail=True), run_as_user=1234)

    result = execute(pipeline, {"tracker_base": str(tmp_path / "tracker")}, mounts=MOUNTS)
    result.raise_for_failure()
    assert result["fail"].results == {"exit_code": 3}


def test_python_components_in_their_images(execute):
    @dsl.component(base_image=HOST_IMAGE, install_kfp_package=False)
    def make(data: dsl.Output[dsl.Dataset]) -> str:
        import os

        with open(data.path, "w") as file:
            file.write("made")
        data.metadata["rows"] = 3
        return str(os.path.exists("/host/usr"))

    @dsl.component(base_image=HOST_IMAGE, install_kfp_package=False)
    def use(data: dsl.Input[dsl.Dataset], word: str) -> str:
        with open(data.path) as file:
            return f"{file.read()} {data.metadata['rows']} {word}"

    @dsl.pipeline
    def pipeline() -> str:
        made = make()
        return use(data=made.outputs["data"], word=made.outputs["Output"]).output

    result = execute(pipeline, mounts=MOUNTS)
    result.raise_for_failure()
    assert result.outputs == {"Output": "made 3 True"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_leaves_no_container(engine, tmp_path, number):
    @dsl.pipeline
    def pipeline():
        note = f"trap 'echo ended >{tmp_path}/seen/ended; exit 0' TERM; echo >{tmp_path}/seen/up"
        shell(script=f"{note}; sleep 300 & wait")
        shell(script=f"sleep 300; echo {tmp_path}")

    (tmp_path / "seen").mkdir()
    runner = start(pipeline, tmp_path, "--mount", tmp_path / "seen")
    try:
        deadline = time.monotonic() + 120
        while not ((tmp_path / "seen" / "up").exists() and len(running(tmp_path, engine)) == 2):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        runner.send_signal(number)
        _, stderr = runner.communicate(timeout=120)
    finally:
        runner.kill()
        runner.wait()
    assert runner.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], stderr
    assert (tmp_path / "seen" / "ended").read_text() == "ended\n"
    assert f"was ended by {number.name}" in stderr
    assert containers_of(engine, run_of(tmp_path)) == []


def test_a_run_that_waits_for_an_image_can_be_ended(engine, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:

        @dsl.container_component
        def never():
            return dsl.ContainerSpec(image=f"127.0.0.1:{silent.getsockname()[1]}/never:1", command=["true"])

        @dsl.pipeline
        def pipeline():
            never()

        runner = start(pipeline, tmp_path)
        try:
            assert runner.stderr is not None
            while "Pulling the image" not in runner.stderr.readline():
                assert runner.poll() is None
            runner.send_signal(signal.SIGINT)
            _, stderr = runner.communicate(timeout=120)
        finally:
            runner.kill()
            runner.wait()
    assert (runner.returncode, "was ended by SIGINT" in stderr) == (130, True)


def test_a_killed_run_goes_on_in_containers(engine, tmp_path):
    """Containers of the killed runner are removed first; the mounts are the same as before."""

    @dsl.pipeline(pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")))
    def pipeline():
        first = shell(script=f"echo first >>{dsl.WORKSPACE_PATH_PLACEHOLDER}/ran")
        rest = (
            f"cat {dsl.WORKSPACE_PATH_PLACEHOLDER}/ran; echo second >>{tmp_path}/seen/up; "
            f"test -e {tmp_path}/seen/go || sleep 300"
        )
        shell(script=rest).after(first)

    (tmp_path / "seen").mkdir()
    runner = start(pipeline, tmp_path, "--mount", tmp_path / "seen", stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    # The engine says that the container runs some time after that has begun.
    while not ((tmp_path / "seen" / "up").exists() and running(tmp_path, engine)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    runner.kill()
    runner.wait()
    assert len(running(tmp_path, engine)) == 1
    (tmp_path / "seen" / "go").touch()
    earlier = run_of(tmp_path)
    program = Path(sys.executable).with_name("torchx-kfp")
    subprocess.run([program, "retry", earlier, "--output-dir", tmp_path / "runs"], check=True)
    [again] = {*(tmp_path / "runs").glob("pipeline-*")} - {tmp_path / "runs" / earlier}
    assert (again / "workspace" / "ran").read_text() == "first\n", "both ran again, since they share a workspace"
    assert containers_of(engine, earlier) == []


def run_of(folder: Path) -> str:
    return next((path.name for path in (folder / "runs").glob("pipeline-*")), "-")


def running(folder: Path, engine: docker.DockerClient) -> list[Any]:
    return [found for found in containers_of(engine, run_of(folder)) if found["State"] == "running"]


def test_what_a_killed_runner_leaves_is_removed(engine):
    killed = f"killed-{uuid.uuid4()}"
    for _ in range(2):
        engine.api.start(
            engine.api.create_container(BUSYBOX_IMAGE, ["sleep", "300"], labels={"torchx-kfp.run": killed})
        )
    assert remove_containers(f"{killed}-not") == 0
    assert remove_containers(killed) == 2
    assert containers_of(engine, killed) == []


def test_code_travels_into_containers(engine: docker.DockerClient, tmp_path: Path) -> None:
    """The archive is all that a container sees of the tracker base's own folders."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "app.py").write_text("import os; print('unpacked', sorted(os.listdir()))")
    base = tmp_path / "results"
    app = AppDef("train", [Role("train", image=HOST_IMAGE, entrypoint="python3", args=["-m", "app"])])
    shell = AppDef("shell", [Role("shell", image=BUSYBOX_IMAGE, entrypoint="true")])

    @dsl.pipeline
    def pipeline(tracker_base: str, workspace: str = ""):
        task_from_app(app, tracker_base=tracker_base, workspace=workspace)
        task_from_app(shell, tracker_base=tracker_base, workspace=workspace)

    words = ["--workspace", tmp_path / "code", "--tracker-base", base, *(f"--mount={mount}" for mount in MOUNTS)]
    with start(pipeline, tmp_path, *words) as done:
        _, stderr = done.communicate()
    assert done.returncode == 1
    train, shell_log = (
        (found.read_text()) for name in ("train", "shell") for found in tmp_path.rglob(f"{name}_1/log.txt")
    )
    assert "unpacked ['app.py']" in train
    assert "a workspace needs python3 and fsspec" in shell_log
    assert "exit code 125" in stderr
