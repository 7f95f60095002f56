"""Stages in containers that try to read, write or run something on the host. The attacker must never succeed."""

# No annotations from __future__: KFP reads those of pipelines as objects.

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import docker
import pytest
from kfp import compiler, dsl, kubernetes

from tests.containers.images import BUSYBOX_IMAGE
from tests.facts import says
from torchx_kfp import local
from torchx_kfp.errors import ArgumentError
from torchx_kfp.local import RunResult, Watch

SECRET = '{"token": "of the host"}'


@dsl.container_component
def attack(script: str, out: dsl.OutputPath(str), data: dsl.Output[dsl.Dataset], secret: str = "", report: str = "{}"):
    """Runs a script: ``$out``, ``$data``, ``$report`` are the paths of outputs, ``$secret`` is a file of the host."""
    names = 'out=$1 data=$2 report=$3 secret=$4 text=$5; : >"$out"; '
    return dsl.ContainerSpec(
        image=BUSYBOX_IMAGE,
        command=["sh", "-c", 'eval "$0"'],
        args=[f"{names}{script}", out, data.path, "{{$.outputs.output_file}}", secret, report],
    )


@dsl.container_component
def use(data: dsl.Input[dsl.Dataset]):
    return dsl.ContainerSpec(image=BUSYBOX_IMAGE, command=["sh", "-c", 'cat "$0" || cat "$0"/model'], args=[data.path])


@dsl.container_component
def untrusted(command: str):
    return dsl.ContainerSpec(image=BUSYBOX_IMAGE, command=["sh", "-c", command])


class Host:
    """A host with a secret, a file that must not change, and a separate folder for runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.private = folder / "private"
        self.private.mkdir()
        self.secret = self.private / "secret.json"
        self.secret.write_text(SECRET)
        self.before = self._state()

    def run(self, pipeline: Any, arguments: dict[str, Any] | None = None, **options: Any) -> RunResult:
        options = {"docker": True, "watch": Watch(), "output_dir": self.folder / "runs", "cache": False, **options}
        return local.run(pipeline, arguments, **options)

    def assert_untouched(self, result: RunResult | None = None) -> None:
        assert self._state() == self.before
        if result is not None:
            for path in result.folder.rglob("*"):
                if path.is_file() and not path.is_symlink() and path.name not in ("pipeline.yaml", "run.json"):
                    assert "of the host" not in path.read_text(errors="replace"), path

    def _state(self) -> dict[str, tuple[int, str]]:
        paths = [self.private, *sorted(self.private.rglob("*"))]
        return {str(path): (path.lstat().st_mode, path.read_text() if path.is_file() else "") for path in paths}


@pytest.fixture
def host(docker_client: docker.DockerClient, tmp_path: Path) -> Host:
    return Host(tmp_path)


def report(**entry: str) -> str:
    return json.dumps({"artifacts": {"data": {"artifacts": [entry]}}})


def stages_of(result: RunResult) -> dict[str, Any]:
    return {stage.name: stage for stage in result.stages}


def attack_with(host: Host, script: str, text: str = "{}") -> tuple[RunResult, str]:
    """Run a pipeline in which a stage runs the script and another one takes its artifact.

    Returns:
        The run, and the reason why the first stage failed.
    """
    secret = str(host.secret)

    @dsl.pipeline
    def pipeline(text: str):
        # The path is the pipeline's own word: as an argument, the user would have named it.
        made = attack(script=script, secret=secret, report=text)
        use(data=made.outputs["data"])

    result = host.run(pipeline, {"text": text})
    host.assert_untouched(result)
    stages = stages_of(result)
    assert (stages["attack"].state, stages["use"].state) == ("failed", "not run")
    return result, stages["attack"].reason


def test_a_custom_path_does_not_read_the_host(host):
    _, reason = attack_with(host, 'printf "%s" "$text" >$report', report(customPath=str(host.secret)))
    assert str(host.secret) in reason
    assert "gone with the container" in reason


def test_a_uri_does_not_write_to_the_host(host):
    script = 'echo evil >$data; printf "%s" "$text" | sed "s#FROM#$data#" >$report'
    _, reason = attack_with(host, script, report(customPath="FROM", uri=str(host.private / "new")))
    assert "is not inside" in reason


@pytest.mark.parametrize("prefix", ["", "file://", "local://", "simplecache::file://"])
def test_a_uri_does_not_make_the_next_container_read_the_host(host, prefix):
    attack_with(host, 'printf "%s" "$text" >$report', report(uri=f"{prefix}{host.secret}"))


@pytest.mark.parametrize(
    ("script", "fact"),
    [
        ("rm $out; ln -s $secret $out", "out is a symbolic link"),
        ("rm $out; mkdir $out", "out is a folder"),
        ("rm $out; mkfifo $out", "out is a FIFO"),
        ("rm $out; truncate -s 17M $out", "is larger than 16 MiB"),
        ("rm -r ${out%/*}; mkdir /x; ln -s / ${out%/*}", "made/outputs is a symbolic link"),
        ("ln -s $secret $report", "executor_output.json is a symbolic link"),
        ("mkfifo $report", "executor_output.json is a FIFO"),
        ("ln -s $secret $data", "data is a symbolic link"),
        ("mkfifo $data", "data is a FIFO"),
        ("mkdir $data; mkfifo $data/x", "data/x is a FIFO"),
        ("mkdir $data; ln -s ${secret%/*} $data/x", "data/x is a link to "),
        ("mkdir $data; ln -s ../../../../../../private $data/x", "data/x is a link to "),
        ("mkdir -p $data/a; ln -s a/../../.. $data/b; ln -s b/.. $data/x", "data/"),
        ("rmdir ${data%/*}; ln -s ${secret%/*} ${data%/*}; ", "made/artifacts is a symbolic link"),
        ("echo >$data; chmod 4755 $data", "set-user-id"),
    ],
)
def test_no_link_is_followed_out_of_the_attempts_folder(host, script, fact):
    _, reason = attack_with(host, script)
    assert fact in reason


def test_no_device_is_left_behind(host):
    @dsl.pipeline
    def pipeline():
        attack(script="mknod $data c 1 5 || echo refused >&2")

    result = host.run(pipeline)
    result.raise_for_failure()
    assert "refused" in stages_of(result)["attack"].log_file.read_text()
    assert not any(stat.S_ISCHR(path.lstat().st_mode) for path in result.folder.rglob("*"))


def test_links_inside_of_an_artifact_are_kept(host):
    @dsl.pipeline
    def pipeline():
        made = attack(script="mkdir $data $data/blobs; echo weights >$data/blobs/1; ln -s blobs/1 $data/model")
        use(data=made.outputs["data"])

    result = host.run(pipeline)
    result.raise_for_failure()
    assert "weights" in stages_of(result)["use"].log_file.read_text()


def test_a_custom_path_in_a_folder_that_is_mounted(host):
    @dsl.pipeline
    def pipeline(text: str):
        made = attack(script='echo weights >/new/file; chmod 750 /new/file; printf "%s" "$text" >$report', report=text)
        kubernetes.empty_dir_mount(made, "new", "/new")
        use(data=made.outputs["data"])

    result = host.run(pipeline, {"text": report(customPath="/new/file")})
    result.raise_for_failure()
    assert stages_of(result)["use"].log_file.read_text() == "weights\n"
    assert os.stat(stages_of(result)["attack"].artifacts["data"].path).st_mode & 0o777 == 0o750


def test_a_container_sees_its_own_folder_and_what_it_takes(host):
    look = (
        'folder=${out%/made/*}; echo seen: $(find ${folder%/*} -type f | sed "s#${folder%/*}/##" | sort); '
        "echo kept: $(ls -A $folder); touch $folder/x ${folder%/*}/run.json; echo ${folder%/*} >$data; "
    )

    @dsl.pipeline
    def pipeline():
        first = attack(script=look)
        attack(script=look).after(first)
        use(data=first.outputs["data"])

    result = host.run(pipeline)
    result.raise_for_failure()
    assert [path.name for path in result.folder.glob("*/x")] == []
    for name in ("attack", "attack-2"):
        log = stages_of(result)[name].log_file.read_text()
        assert f"seen: {name}_1/made/outputs/out\n" in log
        assert "kept: made\n" in log
    assert result.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("where", ["literal", "default", "output", "command"])
def test_a_tracker_base_that_only_the_pipeline_names(host, where):
    @dsl.container_component
    def tracked(tracker_base: str):
        return dsl.ContainerSpec(image=BUSYBOX_IMAGE, command=["sh", "-c", 'echo evil >"$0"/new'], args=[tracker_base])

    base = str(host.private)

    @dsl.container_component
    def literal():
        word = f"TORCHX_TRACKER_BASE={base}"
        return dsl.ContainerSpec(image=BUSYBOX_IMAGE, command=["env", word, "sh", "-c", f"echo evil >{base}/new"])

    @dsl.pipeline
    def pipeline(tracker_base: str = base):
        if where == "literal":
            literal()
        elif where in ("default", "command"):
            tracked(tracker_base=tracker_base)
        else:
            made = attack(script='printf "%s" "$secret" >$out', secret=base)
            tracked(tracker_base=made.outputs["out"])

    if where == "command":
        compiler.Compiler().compile(pipeline, str(host.folder / "pipeline.yaml"))
        command = [Path(sys.executable).with_name("torchx-kfp"), "run", "pipeline.yaml", "--docker"]
        done = subprocess.run(command, cwd=host.folder, capture_output=True, text=True)
        host.assert_untouched()
        assert f"--tracker-base {base}" in done.stderr
        return
    result = host.run(pipeline)
    host.assert_untouched(result)
    (failed,) = [stage for stage in result.stages if stage.state == "failed"]
    assert f"--tracker-base {base}" in failed.reason


@dsl.container_component
def tracked(tracker_base: str, script: str):
    return dsl.ContainerSpec(image=BUSYBOX_IMAGE, command=["sh", "-c", script], args=[tracker_base])


@pytest.mark.parametrize("user", [0, 1234])
def test_a_container_writes_below_its_own_run_only(host, user):
    base = host.folder / "base"
    files = ["other/train/1", ".torchx_kfp/runs/other/train/1/1.metadata", ".torchx_kfp/workspaces/code.tar"]
    for name in files:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("{}")
        (base / name).chmod(0o666)
    names = " ".join([*files, "new", "other/train/2", ".torchx_kfp/new", ".torchx_kfp/runs/new/1.tags"])
    own = '"$0"/own-* "$0"/.torchx_kfp/runs/own-* "$0"/.torchx_kfp/files/own-*'
    script = (
        f'for name in {names}; do mkdir -p "$(dirname "$0/$name")"; echo evil >"$0/$name" && echo WROTE $name; done; '
        f'for folder in {own}; do mkdir "$folder"/train && echo x >"$folder"/train/1 || exit 1; done; '
        'cat "$0"/other/train/1'
    )

    @dsl.pipeline(name="own")
    def pipeline(tracker_base: str):
        task = tracked(tracker_base=tracker_base, script=script)
        kubernetes.set_security_context(task, run_as_user=user)

    result = host.run(pipeline, {"tracker_base": str(base)})
    result.raise_for_failure()
    log = stages_of(result)["tracked"].log_file.read_text()
    assert "WROTE" not in log
    assert "{}" in log
    assert [(base / name).read_text() for name in files] == ["{}"] * 3
    own = [path for path in base.rglob("*") if path.is_file() and path.read_text() == "x\n"]
    assert len(own) == 3


def test_a_link_in_the_tracker_base_is_not_followed(host):
    """The runner creates folders there that all users may write to, but not where a link leads."""

    @dsl.pipeline
    def once(tracker_base: str):
        task = tracked(tracker_base=tracker_base, script="true")
        kubernetes.set_security_context(task, run_as_user=1234)

    base = host.folder / "base"
    base.mkdir()
    (base / ".torchx_kfp").symlink_to(host.private)
    result = host.run(once, {"tracker_base": str(base)})
    host.assert_untouched(result)
    assert " is a symbolic link" in stages_of(result)["tracked"].reason


@pytest.mark.parametrize("prefix", ["", "file://", "local://", "simplecache::file://", "http://127.0.0.1:1"])
def test_an_importer_does_not_read_the_host(host, prefix):
    uri = f"{prefix}{host.secret}"

    @dsl.pipeline
    def pipeline():
        use(data=dsl.importer(artifact_uri=uri, artifact_class=dsl.Dataset).output)

    result = host.run(pipeline)
    host.assert_untouched(result)
    reason = stages_of(result)["use"].reason
    assert uri in reason
    assert any(way_out in reason for way_out in ("--mount", "--copy-from", "chained"))


def test_an_importer_of_a_file_that_the_user_names(host):
    @dsl.pipeline
    def pipeline(uri: str):
        use(data=dsl.importer(artifact_uri=uri, artifact_class=dsl.Dataset).output)

    for options in ({}, {"mounts": [f"{host.private}:ro"]}):
        result = host.run(pipeline, {"uri": str(host.secret)}, **options)
        result.raise_for_failure()
        assert stages_of(result)["use"].log_file.read_text() == SECRET


def test_a_variable_of_the_host_that_the_pipeline_takes_as_a_key(host, monkeypatch):
    monkeypatch.setenv("TOKEN_OF_HOST", SECRET)

    @dsl.pipeline
    def pipeline():
        task = untrusted(command='printf %s "$TOKEN_OF_HOST"')
        kubernetes.use_secret_as_env(task, "any", {"key": "TOKEN_OF_HOST"}, optional=True)

    for options, printed in (({}, ""), ({"env": ["TOKEN_OF_HOST"]}, SECRET), ({"secrets": {"any": {"key": "k"}}}, "k")):
        result = host.run(pipeline, **options)
        assert stages_of(result)["untrusted"].log_file.read_text() == printed


def test_runs_are_not_mounted(host):
    runs = str(host.folder / "runs")

    @dsl.pipeline
    def pipeline():
        attack(script='ls -A "$secret" >&2', secret=runs)

    os.mkdir(runs)
    for mount in (str(host.folder), f"{host.folder}:/elsewhere", runs):
        with pytest.raises(ArgumentError, match=says("Containers must not write there", "runs", "--output-dir")):
            host.run(pipeline, mounts=[mount])
    result = host.run(pipeline, mounts=[f"{host.folder}:ro"])
    result.raise_for_failure()
    # It sees its own attempt, but no other run, and not the cache.
    assert stages_of(result)["attack"].log_file.read_text() == f"{result.run_id}\n"


def test_a_resumed_run_runs_no_command_of_a_container(host):
    """The run's folder could once be written to, so that the runner took commands from it."""

    @dsl.pipeline
    def pipeline():
        rewrite = (
            "folder=${out%/*/made/*}; for name in run.json pipeline.yaml events.jsonl lock; do "
            'echo evil >"$folder/$name"; done; exit 1'
        )
        attack(script=rewrite)

    result = host.run(pipeline)
    before = {path.name: path.read_text() for path in result.folder.iterdir() if path.is_file()}
    assert not any(text.startswith("evil") for text in before.values())
    again = local.run(resume=result.folder, output_dir=result.folder.parent, watch=Watch())
    assert (again.state, len(again.stages)) == ("failed", 1)
