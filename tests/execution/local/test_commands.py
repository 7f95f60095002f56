"""Commands of tracked stages, with the values from an input filled in: the same words that the script puts together."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kfp import dsl

from tests.authoring.apps import HOSTILE, PLAIN, compile_pipeline, make_app
from tests.authoring.kfp_engines import Container, container_of
from torchx_kfp import task_from_app
from torchx_kfp.contract.command import Outputs, decode
from torchx_kfp.local import Watch, run

RECORDED = Path(__file__).parents[2] / "recorded" / "sizes.json.gz"
#: Has the python3 that publishes results.
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"
OPTIONS = [{}, {"ui_metadata": {}}, {"results": {}}, {"ui_metadata": {}, "results": {}}]
WORDS = st.lists(st.sampled_from([*HOSTILE, *PLAIN, "--lr", "0.1", "app.train", "a b"]), max_size=8)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=WORDS, reads=st.integers(0, 2), options=st.sampled_from(OPTIONS), value=st.text("a $\\|"))
def test_the_application_is_what_it_is_given(
    words: list[str], reads: int, options: dict[str, Any], value: str, tmp_path: Path
) -> None:
    def pipeline(tracker_base: str = str(tmp_path)) -> None:
        tasks = [task_from_app(make_app(f"read {number}"), tracker_base=tracker_base) for number in range(reads)]
        app = make_app("show", entrypoint="printf", args=["%s\\0", *words], env={"PATH": PATH, "A": value})
        task_from_app(app, tracker_base=tracker_base, reads=tasks, **options)

    container = container_of(
        compile_pipeline(pipeline),
        "show",
        inputs={"tracker_base": str(tmp_path), "reads": "r/a/1", "reads_2": "r/b/2"},
        outputs={"run_id": str(tmp_path / "run_id")},
        artifacts={"mlpipeline_ui_metadata": str(tmp_path / "ui"), "metrics": str(tmp_path / "metrics")},
    )
    facts = decode(container.argv())
    assert facts.application == ("printf", "%s\\0", *words)
    assert facts.variables == {"PATH": PATH, "A": value}
    assert (facts.stage, facts.words[-len(facts.application) :]) == ("show", facts.application)
    done = container.run()
    assert (done.returncode, done.stdout) == (0, b"".join(word.encode() + b"\0" for word in words or [""]))


def test_a_stage_with_results_finds_the_run_in_the_uris_of_its_outputs(tmp_path: Path) -> None:
    def pipeline(tracker_base: str = str(tmp_path)) -> None:
        task_from_app(make_app("train", entrypoint="env"), tracker_base=tracker_base, results={})

    run_id, salt = "bb4d525f-2bcc-45c1-bf62-ec9faa276244", "64d5755d-4c3f-4774-b444-c6224970e5a3"
    container = container_of(
        compile_pipeline(pipeline),
        "train",
        inputs={"tracker_base": str(tmp_path)},
        outputs={"run_id": str(tmp_path / "run_id")},
        artifacts={"metrics": f"{tmp_path}/pipeline/{run_id}/train/{salt}/metrics"},
        environ={"KFP_POD_NAME": "pod", "KFP_POD_UID": "1b2c3d4e-5f60", "PATH": PATH},
    )
    done = container.run()
    assert done.returncode == 0, done.stderr
    assert f"TORCHX_JOB_ID={run_id}/train/pod_1b2c3d4e" in done.stdout.decode().splitlines()
    assert (tmp_path / "run_id").read_text() == f"{run_id}/train/pod_1b2c3d4e"


@pytest.mark.parametrize("form", ["inline", "image"])
def test_stages_that_version_0_1_0_compiled(form: str, tmp_path: Path) -> None:
    """Recorded pipelines: a script starts these stages, and values are separated by spaces."""
    with gzip.open(RECORDED) as file:
        spec = json.load(file)[form]["spec"]
    command = spec["deploymentSpec"]["executors"]["exec-stage-15"]["container"]["command"]
    constant = spec["root"]["dag"]["tasks"]["stage-15"]["inputs"]["parameters"]["stage"]["runtimeValue"]["constant"]
    container = Container(
        command,
        inputs={"tracker_base": str(tmp_path), "reads": "run/stage-5/pod"},
        outputs={"run_id": str(tmp_path / "run_id"), "accuracy": str(tmp_path / "accuracy")},
        artifacts={"metrics": str(tmp_path / "metrics")},
        environ={"KFP_RUN_ID": "run", "KFP_POD_NAME": "pod", "PATH": PATH},
        constants={"stage": constant},
    )
    argv = container.argv()
    facts = decode(argv)
    assert (facts.version, facts.stage, facts.tracker_base) == (0, "stage-15", str(tmp_path))
    assert (facts.application[:2], facts.application[3:]) == (("python3", "-c"), ('{"accuracy": 15.5}',))
    assert facts.outputs == Outputs(
        {"accuracy": ("float", "accuracy")}, {"metrics": ("system.Metrics", "metrics", False)}
    )
    assert facts.reads == {"stage-5": "run/stage-5/pod"}
    done = container.run()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run_id").read_text() == "run/stage-15/pod"
    assert (tmp_path / "accuracy").read_text() == "15.5"


@pytest.mark.parametrize("words", [[], ["-ec"], ["sh", "-ec", "x"], ["sh", "-ec", "x", "torchx-kfp-1"], ["env", "a=b"]])
def test_other_commands_stay(words: list[str]) -> None:
    facts = decode(words)
    assert (facts.words, facts.version) == (tuple(words), None)


def test_a_changed_module_makes_a_stage_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-m app`` is found, although the name of the module is in an input."""
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "changing.py"
    app = make_app(entrypoint=sys.executable, args=["-m", "changing", "--lr", "0.1"])

    @dsl.pipeline(name="pipeline")
    def pipeline(tracker_base: str = str(tmp_path / "results")) -> None:
        task_from_app(app, tracker_base=tracker_base)

    states = []
    for text in ("print(1)", None, "print('another')"):
        if text is not None:
            module.write_text(text)
        result = run(pipeline, output_dir="runs", watch=Watch())
        states += [str(stage.state) for stage in result.stages]
    assert states == ["succeeded", "cached", "succeeded"]
