"""Files that ``compile`` writes: KFP's own command line starts what ``submit`` sends, without arguments."""

# Annotations are not postponed: kfp reads them as types.

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.execution.host.calling import ended, get
from tests.execution.host.scripted import Reply, scripted
from tests.fake_kfp import KfpHost
from tests.programs import Program
from torchx_kfp.execution.pipeline.load import load_file
from torchx_kfp.tracking import FsspecResultTracker

pytestmark = pytest.mark.versions

_PIPELINE = """
from kfp import dsl, kubernetes
from torchx.specs import AppDef, Role
from torchx_kfp import Stages

@dsl.pipeline(name="file")
def file(tracker_base: str, word: str, rate: float = 1.0, shape: dict = {{}}, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    role = Role("app", image="i", entrypoint={python!r}, args=["-m", "app", f"{{word}}", f"{{rate}}", f"{{shape}}"])
    kubernetes.mount_pvc(stages.task(AppDef("app", [role])), "claim", {base!r})
"""
_APP = """
import os, sys
from torchx_kfp.tracking import current_run
word, rate, shape = sys.argv[1:]
current_run().put(word=word, rate=rate, shape=shape, store=os.environ["STORE"], key=os.environ["KEY"])
"""
_ARGUMENTS = ("-p", "word=1e5", "-p", "rate=0.25", "-p", 'shape={"a": [1, "no"]}', "--workspace", "code", "--no-cache")
_MADE = {
    "recurring_run_id": "00000000-0000-0000-0000-000000000001",
    "experiment_id": "1",
    "created_at": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def program(call: Program, tmp_path: Path) -> Program:
    """The command line of a user with settings of storage, a pipeline, its code, and its base, ``base``."""
    base = tmp_path / "base"
    for folder in (base, tmp_path / "code"):
        folder.mkdir()
    (tmp_path / "code" / "app.py").write_text(_APP)
    (tmp_path / "file.py").write_text(_PIPELINE.format(python=sys.executable, base=str(base)))
    settings = {
        "TORCHX_KFP_TRACKER_BASE": str(base),
        "TORCHX_KFP_STORAGE_VARIABLES": "STORE=http://store:9000",
        "TORCHX_KFP_STORAGE_SECRET": "storage key=KEY",
    }
    return replace(call, variables=settings)


def kfp(url: str, *words: str, folder: Path) -> str:
    """Run KFP's own command line, and return what it prints."""
    program = str(Path(sys.executable).parent / "kfp")
    done = subprocess.run(
        [program, "--endpoint", url, *words], capture_output=True, text=True, cwd=folder, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_defaults(spec: Any) -> Any:
    """Return a specification without the defaults of the pipeline's parameters, as KFP's client sends it."""
    spec = json.loads(json.dumps(spec))
    for parameter in spec["pipeline_spec"]["root"]["inputDefinitions"]["parameters"].values():
        parameter.pop("defaultValue", None)
        parameter.pop("isOptional", None)
    for task in spec["pipeline_spec"]["root"]["dag"]["tasks"].values():
        assert not task["cachingOptions"].pop("enableCache", False)
    return spec


def test_kfp_starts_what_submit_sends(program: Program, tmp_path: Path) -> None:
    with KfpHost(tmp_path / "host", secrets={"storage": {"key": "of the store"}}) as host:
        sent = program("submit", "file.py", *_ARGUMENTS, "--host", host.url)
        assert sent.returncode == 0, sent.stderr
        written = program("compile", "file.py", *_ARGUMENTS, "-o", "file.yaml")
        assert written.returncode == 0, written.stderr
        assert "Workspace code: 1 file" in written.stderr
        assert "need values" not in written.stderr
        kfp(host.url, "run", "create", "-e", "ci", "-r", "theirs", "-f", "file.yaml", folder=tmp_path)
        ours, theirs = (ended(host, run_id) for run_id in host.runs)
        assert [run["state"] for run in (ours, theirs)] == ["SUCCEEDED"] * 2
        assert (theirs["display_name"], theirs.get("runtime_config", {}).get("parameters")) == ("theirs", None)
        found = [get(host, f"/apis/v2beta1/runs/{run['run_id']}")["pipeline_spec"] for run in (ours, theirs)]
    assert without_defaults(found[0]) == without_defaults(found[1])
    [first, second] = [results for _, results in FsspecResultTracker(str(tmp_path / "base")).items()]
    assert first == second
    expected = {"word": "1e5", "rate": "0.25", "shape": '{"a":[1,"no"]}'}
    assert first == {**expected, "store": "http://store:9000", "key": "of the store"}


def test_kfp_makes_a_recurring_run_of_a_file(program: Program, tmp_path: Path) -> None:
    assert program("compile", "file.py", *_ARGUMENTS, "-o", "file.yaml").returncode == 0
    with scripted(lambda request: Reply(_MADE)) as server:
        times = ("--cron-expression", "0 0 3 * * *", "--job-name", "nightly", "--experiment-id", "1")
        kfp(server.url, "recurring-run", "create", *times, "--pipeline-package-path", "file.yaml", folder=tmp_path)
        made = server.requests[-1]
    assert (made.method, made.path) == ("POST", "/apis/v2beta1/recurringruns")
    spec, platform = yaml.safe_load_all((tmp_path / "file.yaml").read_text())
    expected = {"pipeline_spec": spec, "platform_spec": platform}
    assert without_defaults(made.body["pipeline_spec"]) == without_defaults(expected)
    assert not made.body["runtime_config"].get("parameters")
    parameters = made.body["pipeline_spec"]["pipeline_spec"]["root"]["inputDefinitions"]["parameters"]
    assert {name: its["defaultValue"] for name, its in parameters.items() if name != "workspace"} == {
        "tracker_base": str(tmp_path / "base"),
        "word": "1e5",
        "rate": 0.25,
        "shape": {"a": [1, "no"]},
    }
    assert all(its["isOptional"] for its in parameters.values()), "KFP's compiler writes both"
    # Of a secret, a file has the name.
    [executor] = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values()
    assert executor["secretAsEnv"][0]["keyToEnv"] == [{"envVar": "KEY", "secretKey": "key"}]
    assert 'defaultValue: "1e5"' in (tmp_path / "file.yaml").read_text(), "KFP's reader would take 1e5 for a number"


def test_a_file_may_leave_values_to_whoever_starts_it(program: Program, tmp_path: Path) -> None:
    wrong = program("compile", "file.py", "-o", "out.txt")
    assert (wrong.returncode, Path(program.folder, "out.txt").exists()) == (2, False), wrong.stderr
    assert "'out.txt' is not the name of a YAML file" in wrong.stderr
    done = program("compile", "file.py", "-o", "file.yaml", TORCHX_KFP_TRACKER_BASE="")
    assert done.returncode == 0, done.stderr
    for fact in ("need values for tracker_base, word", "-p NAME=VALUE", "--workspace ."):
        assert fact in done.stderr
    parameters = load_file(tmp_path / "file.yaml").root.parameter_inputs
    assert [name for name, its in parameters.items() if not its.has_default] == ["tracker_base", "word"]
    wrong = program("compile", "file.py", "-p", "wrod=x")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Did you mean 'word'?" in wrong.stderr
    # A compiled file can get arguments as well.
    again = program("compile", "file.yaml", "-p", "word=x", "--fresh", "app", "-o", "again.yaml")
    assert again.returncode == 0, again.stderr
    found = load_file(tmp_path / "again.yaml")
    assert found.root.parameter_inputs["word"].default == "x"
    assert found.root.dag is not None
    assert [task.caches for task in found.root.dag.tasks.values()] == [False]
    assert next(iter(load_file(tmp_path / "file.yaml").root.dag.tasks.values())).caches
