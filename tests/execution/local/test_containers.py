"""Stages in containers, without an engine: what is rejected before one is asked, and how one is looked for."""

import os
import re
import signal
import subprocess

import pytest
from kfp import compiler, dsl, kubernetes

from tests.execution.host.calling import wait_until
from tests.execution.local.components import shell, write
from tests.execution.local.test_failures import alive
from tests.facts import says
from tests.programs import PROGRAM
from torchx_kfp.errors import ArgumentError, PipelineError, TorchxKfpError
from torchx_kfp.execution.local.executors.engine import ask
from torchx_kfp.local import Watch, run


@dsl.pipeline
def inner():
    write(x="in")
    with dsl.ParallelFor([1, 2]), dsl.ParallelFor([3]):
        shell(script="train")


@dsl.pipeline
def outer():
    shell(script="out")
    inner()


@dsl.pipeline
def single():
    write(x="a")


@dsl.container_component
def no_command():
    return dsl.ContainerSpec(image="image")


@pytest.fixture(autouse=True)
def no_engine(tmp_path, monkeypatch):
    """Programs to which no engine answers."""
    (tmp_path / "bin").mkdir()
    for name in ("docker", "podman"):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\necho Error: no engine for {name}. >&2\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    "words",
    [
        "--docker outer.yaml",
        "outer.yaml --docker",
        "--docker -- outer.yaml",
    ],
)
def test_the_option_leaves_the_file(words, call, tmp_path):
    """An engine is asked for before anything is started."""
    compiler.Compiler().compile(outer, str(tmp_path / "outer.yaml"))
    done = call("run", "--output-dir", "runs", *words.split())
    assert done.returncode == 1
    assert "Tried:\n- docker: no engine for docker\n- podman: no engine for podman\n" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.lowest
def test_a_machine_without_the_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        TorchxKfpError, match=says("docker: there is no such program", "podman: there is no", "install Podman")
    ):
        run(outer, docker=True, output_dir=tmp_path / "runs")


def test_a_stage_in_a_container_needs_no_command():
    @dsl.pipeline
    def pipeline():
        no_command()
        write(x="a")

    with pytest.raises(PipelineError, match=says("--docker", "'pipeline'", "'no-command'", "'image'")):
        run(pipeline)
    with pytest.raises(TorchxKfpError):
        run(pipeline, docker=True)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"mounts": ["missing"]}, ["'missing'", "/missing'", "Create"]),
        *(
            ({"mounts": [text]}, ["SRC[:DST][:ro]", "Write"])
            for text in ("", ":/data", ".:data", ".:/data:rx", ".:/a:/b")
        ),
    ],
)
def test_a_wrong_option_of_containers_is_refused(options, facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=says(*facts)):
        run(outer, **{"docker": True, **options})


def engine(tmp_path, answers):
    """Replace the program of an engine."""
    (tmp_path / "bin" / "docker").write_text(
        f'#!/bin/sh\ncd "${{0%/*}}"\ncase "$1" in info) echo \'{{"NCPU": 1}}\' ;; {answers} esac\n'
    )


def test_ctrl_c_ends_the_pull_of_a_replay(tmp_path):
    compiler.Compiler().compile(single, str(tmp_path / "single.yaml"))
    assert run(tmp_path / "single.yaml", output_dir=tmp_path / "local_outputs").state == "succeeded"
    engine(tmp_path, "image) exit 1 ;; pull) echo $$ >pulling; mv pulling pull; exec sleep 300 ;;")
    replaying = subprocess.Popen([PROGRAM, "replay", "--docker", "latest/write"], cwd=tmp_path)
    wait_until((tmp_path / "bin" / "pull").exists)
    pid = int((tmp_path / "bin" / "pull").read_text())
    replaying.send_signal(signal.SIGINT)
    assert replaying.wait(120) == 130
    try:
        wait_until(lambda: not alive(pid))
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_ctrl_c_ends_a_program_of_the_engine_that_is_being_started(monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask("sleep", "60")
    try:
        assert started[0].wait(120) == -signal.SIGKILL
    finally:
        started[0].kill()


def test_stages_that_wait_for_a_pull_share_its_failure(tmp_path):
    """All three look for the image before the pull ends."""
    found = "image) echo >>images; exit 1 ;;"
    wait = "i=0; until [ $(wc -l <images) -ge 3 ] || [ $i = 300 ]; do i=$((i + 1)); sleep 0.1; done; sleep 0.3"
    engine(tmp_path, f"{found} pull) echo >>pulls; {wait}; echo Error: denied. >&2; exit 1 ;;")

    @dsl.pipeline
    def pipeline():
        for _ in range(3):
            write(x="a")

    done = run(pipeline, docker=True, output_dir=tmp_path / "runs", parallelism=3, cache=False)
    assert [("cannot be pulled: denied" in stage.reason) for stage in done.stages] == [True] * 3
    assert (tmp_path / "bin" / "pulls").read_text() == "\n"


def test_an_image_is_pulled_again_after_a_failure_and_then_no_more(tmp_path):
    pull = "echo >>pulls; [ $(wc -l <pulls) -gt 1 ]"
    engine(tmp_path, f"image) echo '[{{}}]' ;; pull) {pull} ;; create) echo id ;;")

    @dsl.pipeline
    def pipeline():
        first, second = shell(script=":").set_retry(1), shell(script=":")
        second.after(first)
        for task in (first, second):
            kubernetes.set_image_pull_policy(task, "Always")

    done = run(pipeline, docker=True, output_dir=tmp_path / "runs", cache=False)
    assert done.state == "succeeded"
    assert (tmp_path / "bin" / "pulls").read_text() == "\n\n"
    assert ["Pulling" in stage.log_file.read_text() for stage in done.stages] == [True, False]


@pytest.mark.parametrize(
    "answers", ["create) echo id; rm docker ;;", "create) echo id ;; start) rm docker; exit 1 ;;"], ids=["start", "end"]
)
def test_a_stage_is_lost_if_the_engines_program_goes(tmp_path, answers):
    engine(tmp_path, f"image) echo '[{{}}]' ;; {answers}")
    (stage,) = run(single, docker=True, output_dir=tmp_path / "runs", cache=False).stages
    assert stage.reason.startswith(f"was lost: {tmp_path}/bin/docker cannot be started: ")


@pytest.mark.parametrize(
    "answers",
    ["image) exit 1 ;; pull) SEE; exit 1 ;;", "image) echo '[{}]' ;; create) echo id ;; start) exit 1 ;; rm) SEE ;;"],
    ids=["pull", "removal"],
)
def test_the_files_of_a_secret_exist_until_its_container_is_removed(answers, tmp_path):
    engine(tmp_path, answers.replace("SEE", "cat ../runs/*/*/secrets/*/key >seen"))

    @dsl.pipeline
    def pipeline():
        kubernetes.use_secret_as_volume(write(x="a"), "any", "/any")

    done = run(pipeline, docker=True, output_dir=tmp_path / "runs", cache=False, secrets={"any": {"key": "k"}})
    assert done.state == "failed"
    assert (tmp_path / "bin" / "seen").read_text() == "k"
    assert not list(tmp_path.glob("runs/**/secrets/*"))


def test_no_variable_of_a_pipeline_changes_the_engines_program(tmp_path):
    """Podman would take ``HOME_*`` for all variables of this machine that begin like it."""
    program = tmp_path / "bin" / "docker"
    answers = (
        """info) echo '{"NCPU": 1}' ;; image) echo '[{}]' ;; create) printf '%s\\n' "$@" >"${0%/*}/words"; exit 1 ;;"""
    )
    program.write_text(f'#!/bin/sh\ncase "$1" in {answers} esac\n')
    risky = ["HOME_*", "*", "SSH_ASKPASS", "LD_PRELOAD", "DOCKER_HOST", "_CONTAINERS_ROOTLESS_UID", "http_proxy"]

    @dsl.pipeline
    def pipeline():
        task = write(x="a")
        for name in [*risky, "PLAIN"]:
            task.set_env_variable(name, "v")

    assert run(pipeline, docker=True, output_dir=tmp_path / "runs").state == "failed"
    words = (program.parent / "words").read_text().splitlines()
    assert {f"--env={name}=v" for name in risky} | {"--env=PLAIN=v"} <= set(words)
    assert not {"--env=HOME_*", "--env=*", "--env=PLAIN"} & set(words)


#: A Podman whose answers to some commands are given.
PODMAN = """#!/bin/sh
case "$1 $2" in
    info*) echo '{"host": {"cpus": 2}}';;
    "image inspect") echo '[{"Id": "1"}]';;
    "container inspect") echo '[{"State": {"ExitCode": 1, "StartedAt": "2026"}}]';;
    create*) CREATE;;
    start*) echo 'ERROR (catatonit:6): failed to exec pid1: No such file or directory'; exit 1;;
esac
"""


@pytest.mark.parametrize(
    ("create", "facts"),
    [
        ("echo 1", ["exit code 1", "image lacks the command"]),
        ("echo 'Error: stat /usr/libexec/podman/catatonit: no such file' >&2; exit 125", ["Install catatonit"]),
    ],
)
def test_podman_without_its_init_or_the_command(create, facts, tmp_path):
    (tmp_path / "bin" / "podman").write_text(PODMAN.replace("CREATE", create))
    [stage] = run(single, docker=True, output_dir=tmp_path / "runs", watch=Watch()).stages
    assert re.search(says(*facts), stage.reason)
