"""The environment in which a stage runs."""

import json
import os
import re
import socket
import sys

from kfp import dsl, kubernetes
from torchx.specs import AppDef, Role

from tests.facts import says
from tests.watching import Heard
from torchx_kfp import Stages, task_from_app

#: Variables that tell a stage who it is: those of a stage around a run are not those of its stages.
OF_A_STAGE = {f"TORCHX_{name}" for name in ("TRACKERS", "TRACKER_BASE", "JOB_ID", "PARENT_RUN_ID", "PARENT_RUN_IDS")}
CODE = "import json, os, sys; json.dump([dict(os.environ), sys.executable, os.getcwd()], open(sys.argv[1], 'w'))"


@dsl.container_component
def environ(out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="python", command=["python", "-c", CODE], args=[out])


@dsl.container_component
def environ_by_env(out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(
        image="python", command=["env", "A=1", "sh", "-c", 'exec "$@"', "sh", "python3", "-c", CODE], args=[out]
    )


def read(result, name):
    (stage,) = [stage for stage in result.stages if stage.name == name]
    return json.loads(stage.outputs["out"])


def test_the_environment_of_a_stage(execute, monkeypatch):
    for name in (*OF_A_STAGE, "KFP_RUN_ID", "KFP_POD_NAME"):
        monkeypatch.setenv(name, "from-outside")
    monkeypatch.setenv("MINE", "kept")
    monkeypatch.setenv("REPLACED", "outside")

    @dsl.pipeline
    def pipeline():
        task = environ().set_env_variable("FIXED", "{{workflow.name}} $(HOME)").set_env_variable("REPLACED", "inside")
        kubernetes.use_field_path_as_env(task, "RUN", "metadata.labels['pipeline/runid']")
        kubernetes.use_field_path_as_env(task, "POD", "metadata.name")
        kubernetes.use_field_path_as_env(task, "NODE", "spec.nodeName")
        kubernetes.use_field_path_as_env(task, "UID_", "metadata.uid")
        environ_by_env()

    result = execute(pipeline)
    variables, executable, cwd = read(result, "environ")
    assert (executable, cwd) == (sys.executable, os.getcwd())
    assert not OF_A_STAGE & set(variables)
    assert variables["KFP_RUN_ID"] == result.run_id
    assert variables["FIXED"] == "{{workflow.name}} $(HOME)"
    assert (variables["MINE"], variables["REPLACED"]) == ("kept", "inside")
    assert variables["RUN"] == result.run_id
    assert variables["POD"] == variables["KFP_POD_NAME"] == "environ_1"
    assert variables["NODE"] == socket.gethostname()
    assert len(variables["UID_"]) == 36
    assert variables["PYTHONUNBUFFERED"] == "1"
    by_env, executable, _ = read(result, "environ-by-env")
    assert executable in (sys.executable, os.path.join(os.path.dirname(sys.executable), "python3"))
    assert by_env["A"] == "1"


def test_the_users_s3_server_counts_in_place_of_that_of_the_cluster(execute, tmp_path, monkeypatch):
    """However a stage sets it: in its container, in its command, for roles; a localhost is not that of a container."""
    there, here = "http://seaweedfs.kubeflow:9000", "http://localhost:9000"
    show = ["-c", 'echo "<$AWS_ENDPOINT_URL|$AWS_ENDPOINT_URL_S3|$FSSPEC_S3_ENDPOINT_URL|$OTHER>"']

    def role(name="r", variable="AWS_ENDPOINT_URL", value=there, **options):
        env = {variable: value, "OTHER": "x|y"}
        return Role(name, image="i", entrypoint="sh", args=show, env=env, **options)

    @dsl.pipeline
    def pipeline(url: str = there):
        stages = Stages(tracker_base=str(tmp_path / "results"))
        stages.task(AppDef("plain", [role(variable="FSSPEC_S3_ENDPOINT_URL")]))
        stages.task(AppDef("given", [role(value=f"{url}")]))
        stages.task(AppDef("published", [role()]), may_fail=True)
        roles = [role("a", num_replicas=2), role("b", value=f"{there}/b")]
        stages.task(AppDef("several", roles), engine="jobset")
        untracked = task_from_app(AppDef("untracked", [role()]))
        untracked.set_env_variable("AWS_ENDPOINT_URL", there)

    def shown():
        result = execute(pipeline, watch=Heard(on_event=(events := []).append))
        logs = {stage.name: stage.log_file.read_text() for stage in result.stages}
        return {name: re.findall("<(.*)>", log) for name, log in logs.items()}, events[0].not_applied

    for name in ("AWS_ENDPOINT_URL", "FSSPEC_S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    logs, not_applied = shown()
    assert logs["plain"] == [f"||{there}|x|y"]
    assert sorted(logs["several"]) == [f"{there}/b|||x|y", *[f"{there}|||x|y"] * 2]
    assert all(logs[name] == [f"{there}|||x|y"] for name in ("given", "published", "untracked"))
    assert "AWS_ENDPOINT_URL" not in str(not_applied)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", here)
    logs, not_applied = shown()
    assert {line for log in logs.values() for line in log} == {f"|{here}||x|y"}, logs
    assert any(
        re.search(says(f"AWS_ENDPOINT_URL={there}", "your own AWS_ENDPOINT_URL_S3"), text) for text in not_applied
    )
