"""Pipelines that a host stores: uploaded with versions, and run by their names."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.entrypoints.cli.ready import Ready
from tests.execution.host.calling import ended, get
from tests.execution.host.commands import Program, write_pipelines
from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp.errors import HostRefusedError
from torchx_kfp.host import StoredPipelines, connect
from torchx_kfp.local import load_pipeline

_RUNS, _PIPELINES = "/apis/v2beta1/runs", "/apis/v2beta1/pipelines"
#: A pipeline whose docstring describes its parameters.
_DESCRIBED = '''
from kfp import dsl

@dsl.container_component
def say(word: str):
    return dsl.ContainerSpec(image="app:1", command=["echo", word])

@dsl.pipeline(name="described")
def described(word: str, count: int = 1, other: str = ""):
    """Say a word.

    Args:
        word: what is said,
            in any language.
        count: how often.
    """
    say(word=f"{word} {count} {other}")
'''


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines")
    write_pipelines(folder, folder / "base")
    (folder / "described.py").write_text(_DESCRIBED, encoding="utf-8")
    (folder / "comp.py").write_text(
        "from torchx.specs import AppDef, Role\n\n"
        "def train(lr: float) -> AppDef:\n    '''Train.\n\n    Args:\n        lr: rate\n    '''\n"
        "    return AppDef('train', [Role('r', image='app:1', entrypoint='echo', args=[str(lr)])])\n",
        encoding="utf-8",
    )
    return folder


@pytest.fixture
def program(kfp_host: KfpHost, ready_program: Ready, pipelines: Path, tmp_path: Path) -> Program:
    shutil.copytree(pipelines, tmp_path, dirs_exist_ok=True)
    return Program(ready_program, tmp_path, {"TORCHX_KFP_HOST": kfp_host.url})


def test_versions_are_uploaded_and_run_by_name(kfp_host: KfpHost, program: Program) -> None:
    first = program("upload", "described.py", "--name", "my words", "--version", "1")
    assert first.returncode == 0, first.stderr
    facts = ["my words, version 1", "/#/pipelines/details/", "--pipeline 'my words@1'", "description in the UI: other."]
    assert re.search(says(*facts), first.stderr)
    second = json.loads(program("upload", "plain.yaml", "--name", "my words", "--json").stdout)
    assert (second["name"], first.stdout.strip()) != ("", second["version_id"])
    [stored] = get(kfp_host, _PIPELINES)["pipelines"]
    assert (stored["name"], stored["display_name"], stored["description"]) == ("my words", "my words", "Say a word.")
    version = get(kfp_host, f"{_PIPELINES}/{second['pipeline_id']}/versions/{first.stdout.strip()}")
    parameters = version["pipeline_spec"]["root"]["inputDefinitions"]["parameters"]
    described = {name: parameter.get("description") for name, parameter in parameters.items()}
    assert described == {"word": "what is said,\nin any language.", "count": "how often.", "other": None}

    done = program("submit", "--pipeline", "my words@1", "-p", "word=hello", "-p", "count=2", "--watch")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.splitlines()[0]
    run = get(kfp_host, f"{_RUNS}/{run_id}")
    assert run["pipeline_version_reference"] == {
        "pipeline_id": second["pipeline_id"],
        "pipeline_version_id": first.stdout.strip(),
    }
    assert "pipeline_spec" not in run
    assert program("logs", run_id, "say").stdout == "hello 2 \n"
    newest = program("submit", "--pipeline", "my words", "-p", "word=new", "--no-cache")
    assert newest.returncode == 0, newest.stderr
    assert ended(kfp_host, newest.stdout.strip())["pipeline_spec"]["pipelineInfo"]["name"] == "plain"
    assert program("logs", newest.stdout.strip(), "script").stdout == "new 1\n"

    scheduled = program("submit", "--pipeline", "my words@1", "-p", "word=x", "--every", "1h")
    assert scheduled.returncode == 0, scheduled.stderr
    kfp_host.advance(3600)
    [made] = [run for run in get(kfp_host, _RUNS)["runs"] if "recurring_run_id" in run]
    assert ended(kfp_host, made["run_id"])["pipeline_version_reference"] == run["pipeline_version_reference"]


def test_a_component_is_described(kfp_host: KfpHost, program: Program) -> None:
    done = program("upload", "comp.py:train", "--result", "loss=float", "--", "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert "Without a description" not in done.stderr
    stored, pipeline = StoredPipelines(connect(host=kfp_host.url)).find("train")
    assert (stored.name, list(pipeline.root.inputs)) == ("train", ["tracker_base"])


def test_shared_pipelines_and_those_of_a_namespace(kfp_host: KfpHost, pipelines: Path) -> None:
    pipeline = load_pipeline(pipelines / "plain.yaml")
    shared = StoredPipelines(connect(host=kfp_host.url)).upload(pipeline)
    own = StoredPipelines(connect(host=kfp_host.url, namespace="team-a"))
    assert own.find("plain")[0] == shared
    mine = own.upload(pipeline, "plain@home", "1")
    assert [own.find(name)[0] for name in ("plain@home", "plain@home@1")] == [mine, mine]
    assert {each.get("namespace") for each in kfp_host.pipelines.values()} == {None, "team-a"}


def test_wrong_calls_upload_and_start_nothing(kfp_host: KfpHost, program: Program) -> None:
    plain = (program.folder / "plain.yaml").read_text(encoding="utf-8")
    folders = plain.replace(
        "image: app:1", "image: app:1\n        env:\n        - {name: A, value: 'torchx-kfp-folders:/mine=b'}"
    )
    (program.folder / "folders.yaml").write_text(folders, encoding="utf-8")
    assert program("upload", "plain.yaml", "--version", "1").returncode == 0
    for words, facts in {
        ("upload", "plain.yaml", "--version", "1"): ["'plain'", "version '1' already", "--version"],
        ("upload", "folders.yaml"): ["'plain'", "/mine", "parameter workspace"],
        ("submit", "--pipeline", "plan"): ["no pipeline 'plan'", "Did you mean 'plain'", kfp_host.url],
        ("submit", "--pipeline", "plain@"): ["'plain'", "no version ''", "Versions: 1"],
        ("submit", "--pipeline", "plain@2"): ["'plain'", "no version '2'", "Versions: 1"],
        ("submit", "--pipeline", "plain", "-p", "wrod=x"): ["'wrod'", "'word'"],
        ("submit", "--pipeline", "plain", "--engine", "job"): ["--engine", "components"],
    }.items():
        done = program(*words)
        assert (done.returncode, done.stdout) == (2, ""), (words, done)
        assert re.search(says(*facts), done.stderr), (words, done.stderr)
    assert not kfp_host.runs
    assert len(get(kfp_host, _PIPELINES)["pipelines"]) == 1


def test_an_upload_that_the_host_refuses(kfp_host: KfpHost, pipelines: Path) -> None:
    body = json.dumps({"error_message": "the file is too large", "error_details": "too large: 40 MB"})
    kfp_host.fail(400, path="upload_version", body=body)
    pipeline = load_pipeline(pipelines / "plain.yaml")
    stored = StoredPipelines(connect(host=kfp_host.url))
    with pytest.raises(HostRefusedError, match="the file is too large"):
        stored.upload(pipeline)
    assert stored.upload(pipeline).name == "plain"
