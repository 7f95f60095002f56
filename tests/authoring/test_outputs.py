"""Results, artifacts and UI metadata as KFP outputs: what compiles, what is rejected, and how much space it takes."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.authoring.apps import HOSTILE, PLAIN, compile_pipeline, compile_stage, load, make_app
from tests.authoring.kfp_engines import container_of, containers
from tests.contract.carried.published import Stage
from torchx_kfp import task_from_app

pytestmark = pytest.mark.versions


def stage(**options: Any) -> str:
    return compile_stage(make_app("train"), **options)


def test_outputs_by_the_name_that_is_recorded() -> None:
    def pipeline(tracker_base: str = "/tmp/results") -> None:
        train = task_from_app(make_app("train"), tracker_base=tracker_base, results={"l2norm/mean": float})
        assert train.outputs["l2norm/mean"] is train.outputs["l2norm_mean"]
        task_from_app(make_app("use", args=[f"{train.outputs['l2norm/mean']}"]))

    spec, _ = load(compile_pipeline(pipeline))
    (source,) = spec["root"]["dag"]["tasks"]["use"]["inputs"]["parameters"].values()
    assert source["taskOutputParameter"]["outputParameterKey"] == "l2norm_mean"


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("accuracy", "accuracy"),
        ("l2norm/mean", "l2norm_mean"),
        ("F1", "F1"),
        ("a  -  b", "a_b"),
        ("1st", "n1st"),
        ("class", "class_"),
        ("/x/", "x"),
        ("größe", "gr_e"),
        ("__x", "x"),
    ],
)
def test_the_rule_for_names(name: str, output: str) -> None:
    spec, _ = load(stage(results={name: float}))
    assert output in spec["components"]["comp-train"]["outputDefinitions"]["parameters"]


def test_an_input_of_a_task_makes_room_for_an_output() -> None:
    def pipeline(accuracy: str, tracker_base: str) -> None:
        task_from_app(
            make_app("train", args=[accuracy]),
            tracker_base=tracker_base,
            results={"accuracy": str, "tracker_base": str},
        )

    spec, _ = load(compile_pipeline(pipeline))
    component = spec["components"]["comp-train"]
    assert set(component["inputDefinitions"]["parameters"]) == {"accuracy_2", "tracker_base_2", "stage"}
    assert set(component["outputDefinitions"]["parameters"]) == {"run_id", "accuracy", "tracker_base"}


# The command


def test_words_reach_an_application_that_publishes_byte_for_byte(shells: Path, tmp_path: Path) -> None:
    words = [*HOSTILE, *PLAIN, *["a"] * 100]
    done = Stage(tmp_path, artifacts={}).run("printf", "%s\\0", *words, env=with_shell(shells), text=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"".join(word.encode() + b"\0" for word in words)


@pytest.mark.usual
def test_hostile_names_of_results(shells: Path, tmp_path: Path) -> None:
    names = [f"{word}x{index}" for index, word in enumerate(HOSTILE)]
    record = (
        "import json, sys; from torchx_kfp.tracking import current_run;"
        " current_run().put(dict.fromkeys(json.loads(sys.argv[1]), 0.5))"
    )
    stage = Stage(tmp_path, results=dict.fromkeys(names, float))
    done = stage.run("python3", "-c", record, json.dumps(names), env=with_shell(shells))
    assert (done.returncode, done.stderr) == (0, "")
    assert {*stage.outputs().values()} == {"0.5"}


def with_shell(shells: Path) -> dict[str, str]:
    """Return an environment in which ``sh`` is one of these, and ``python3`` is the interpreter of the tests."""
    return {"PATH": f"{shells}:{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("workspace", ["", f"/tmp/results/.torchx_kfp/workspaces/{'0a' * 32}.tar"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"results": {"accuracy": float}}, "results need python3 and fsspec in the image, or publish_results"),
        ({"may_fail": True}, "may_fail needs python3 and fsspec in the image"),
        # Not to publish results in another way: the replicas would not start, either.
        ({"engine": "job"}, "a distributed stage needs python3 in the image, or a launcher_image"),
        (
            {"engine": "job", "results": {"accuracy": float}},
            "a distributed stage needs python3 in the image, or a launcher_image",
        ),
    ],
)
def test_an_image_without_python_is_told(
    options: dict[str, Any], said: str, workspace: str, shells: Path, tmp_path: Path
) -> None:
    compiled = stage(**options, **({"workspace": workspace} if workspace else {}))
    only = tmp_path / "bin"
    only.mkdir()
    for program in ("env", "mkdir", "true"):
        (only / program).symlink_to(f"/usr/bin/{program}")
    (only / "sh").symlink_to((shells / "sh").resolve())
    container = container_of(
        compiled,
        "train",
        inputs={"tracker_base": "/tmp/results"},
        outputs={"run_id": str(tmp_path / "run_id")},
        environ={"PATH": str(only)},
    )
    done = container.run()
    assert done.returncode == 125
    assert done.stderr.decode().splitlines()[-1] == f"torchx-kfp: {said}"


def test_python_may_be_where_the_role_says() -> None:
    """The script looks for it before the role's variables are set."""
    for env, looks in (({"PATH": "/opt/python/bin"}, False), ({"A": "b"}, True)):
        compiled = compile_stage(make_app(env=env), results={"accuracy": float})
        assert ("hash python3" in containers(compiled)["train"]["command"][4]) == looks
