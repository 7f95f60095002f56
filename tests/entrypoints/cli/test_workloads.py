"""``torchx-kfp check --show-workload``: what the launcher will create."""

import json
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl

from tests.authoring.engines.apps import CASES, engine_of
from tests.authoring.engines.filled import launched
from tests.documents import documents
from tests.entrypoints.cli.conftest import Call
from torchx_kfp import task_from_app

#: Cases without channels.
STATIC = [(name, case.engines[-1]) for name, case in CASES.items() if not {"replicas", "secrets"} & {*case.options}]


def without_the_run(manifest: Any) -> Any:
    """Return a manifest without what only a run knows; the hash in names is shown as what it is."""
    name = manifest["metadata"]["name"]
    shown = json.loads(json.dumps(manifest).replace(name, f"{name.rpartition('-')[0]}-<hash>"))
    for part in ("annotations", "ownerReferences"):
        shown["metadata"].pop(part, None)
    return shown


@pytest.mark.parametrize(("name", "kind"), STATIC)
def test_what_is_shown_is_what_the_launcher_creates(name: str, kind: str, inside: Call, project: Path) -> None:
    case = CASES[name]
    app, engine = case.make(0.1, "app:2", 2), engine_of(case, kind)

    @dsl.pipeline(name="p")
    def pipeline() -> None:
        task_from_app(app, engine=engine)

    compiler.Compiler().compile(pipeline, str(project / "p.yaml"))
    shown = documents(inside("check", "p.yaml", "--show-workload").stdout)
    environ = {variable: value.replace("${app_id}", "train") for variable, value in app.roles[0].env.items()}
    expected = json.dumps(without_the_run(launched(app, engine).manifest(environ=environ)))
    assert without_the_run(shown[0]) == json.loads(expected.replace('"pipeline-runner"', '"<service-account>"'))


FILE = """
from kfp import dsl
from torchx.specs import AppDef, Role
from torchx_kfp import Stages

@dsl.pipeline(name="p")
def p(tracker_base: str, nodes: int, lr: float = 0.1):
    stages = Stages(tracker_base=tracker_base)
    args = ["--lr", f"{lr}", "a$b"]
    train = AppDef("train", [Role("trainer", image="i", entrypoint="python", args=args, num_replicas=8)])
    stages.task(train, engine="job", replicas=nodes)

@dsl.pipeline
def none(tracker_base: str):
    Stages(tracker_base=tracker_base).task(AppDef("a", [Role("r", image="i", entrypoint="e")]))
"""


def test_channels_are_shown_by_their_names_or_as_given(call: Call, project: Path) -> None:
    (project / "p.py").write_text(FILE)
    done = call("check", "p.py:p", "--show-workload")
    assert (done.returncode, done.stderr) == (0, "")
    assert "# The role 'trainer' has <nodes_int> replicas, from 1 to 8. Shown are 8.\n" in done.stdout
    job, service = documents(done.stdout)
    assert (job["kind"], service["kind"], service["metadata"]["name"]) == ("Job", "Service", "train-<hash>")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][-4:] == ["python", "--lr", "0.1", "a$$b"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert (env["TORCHX_TRACKER_BASE"], env["TORCHX_JOB_ID"]) == ("<tracker_base>", "<run-id>")

    call("compile", "p.py:p", "-o", "p.yaml")
    words = ("-p", "nodes=2", "-p", "tracker_base=s3://b/r", "-p", "lr=0.5")
    job = documents(call("check", "p.yaml", "--show-workload", *words).stdout)[0]
    assert job["spec"]["completions"] == 2
    assert "0.5" in job["spec"]["template"]["spec"]["containers"][0]["command"]
    done = call("check", "p.py:none", "--show-workload")
    assert (done.returncode, done.stdout, "engine='job'" in done.stderr) == (0, "", True)
