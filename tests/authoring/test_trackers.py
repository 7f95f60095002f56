"""Further trackers of a stage: in its command, and in its environment when the command runs."""

from pathlib import Path

import pytest

from tests.authoring.apps import HOSTILE, compile_pipeline, compile_stage, load, make_app, unresolved_inputs
from tests.authoring.kfp_engines import tracked_container
from torchx_kfp import component_from_app, task_from_app

pytestmark = pytest.mark.versions

BASE = "/tmp/results"


@pytest.mark.parametrize(
    "trackers",
    [
        {},
        {"mlflow": None},
        {"mlflow": ""},
        {"mlflow": "http://mlflow:5000"},
        {"mlflow": "http://mlflow:5000", "my.module:create": None, "third": "a,b c=d"},
        {f"t{index}": text for index, text in enumerate(HOSTILE)},
    ],
)
def test_the_stage_has_what_torchx_reads(tmp_path: Path, trackers: dict[str, str | None]) -> None:
    app = make_app(entrypoint="env", args=["-0"], env={"A": "$$"})
    environ = tracked_container(compile_stage(app, trackers=trackers), "train", tmp_path).environment()
    variables = {f"TORCHX_TRACKER_{name.upper()}_CONFIG": config for name, config in trackers.items() if config}
    found = {name: value for name, value in environ.items() if name.startswith("TORCHX_TRACKER_")}
    assert found == {"TORCHX_TRACKER_BASE": BASE, "TORCHX_TRACKER_TORCHX_KFP_CONFIG": BASE, **variables}
    assert environ["TORCHX_TRACKERS"].split(",") == ["torchx_kfp", *trackers]
    assert environ["A"] == "$$"


def test_a_trackers_config_may_have_channels(tmp_path: Path) -> None:
    def pipeline(host: str, port: int, tracker_base: str = BASE) -> None:
        app = make_app(entrypoint="env", args=["-0"])
        task_from_app(app, tracker_base=tracker_base, trackers={"a": f"http://{host}:{port}/x", "b": host, "c": port})

    compiled = compile_pipeline(pipeline)
    assert unresolved_inputs(load(compiled)[0]) == []
    environ = tracked_container(compiled, "train", tmp_path, host="$(HOME) 'x'", port_int="5").environment()
    configs = [environ[f"TORCHX_TRACKER_{name}_CONFIG"] for name in "ABC"]
    assert configs == ["http://$(HOME) 'x':5/x", "$(HOME) 'x'", "5"]


def test_a_configuration_may_be_a_secret_or_that_of_the_role() -> None:
    secrets = {"mlflow": {"uri": "TORCHX_TRACKER_MLFLOW_CONFIG"}}
    component_from_app(make_app(), tracked=True, trackers={"mlflow": None}, secrets=secrets)
    component_from_app(make_app(env={"TORCHX_TRACKER_MLFLOW_CONFIG": "x"}), tracked=True, trackers={"mlflow": None})
