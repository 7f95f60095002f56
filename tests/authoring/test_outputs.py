"""Results, artifacts and UI metadata as KFP outputs: what compiles, what is rejected, and how much space it takes."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import components, dsl
from kfp.local import config

from tests.authoring.apps import HOSTILE, PLAIN, compile_pipeline, load, make_app
from tests.authoring.kfp_engines import container_of, containers
from tests.documents import documents
from tests.facts import says
from torchx_kfp import component_from_app, component_spec_from_app, publish_results, task_from_app
from torchx_kfp.authoring.naming import output_name
from torchx_kfp.contract.carried.programs import PUBLISHER, RESULTS_PUBLISHER
from torchx_kfp.errors import AppDefError, OutputsError, ReadsError

pytestmark = pytest.mark.versions

RESULTS = {
    "accuracy": float,
    "model_uri": str,
    "epochs": int,
    "good": bool,
    "l2norm/mean": float,
    "trials": list,
    "best": dict,
}
ARTIFACTS = {"model": dsl.Model, "confusion": dsl.HTML, "notes": dsl.Markdown}


def stage(**options: Any) -> str:
    def pipeline(tracker_base: str = "/tmp/results") -> None:
        task_from_app(make_app("train"), tracker_base=tracker_base, **options)

    return compile_pipeline(pipeline)


def definitions(compiled: str, component: str = "comp-train") -> dict[str, Any]:
    spec, _ = load(compiled)
    return spec["components"][component]["outputDefinitions"]


def test_each_declared_result_and_artifact_is_an_output() -> None:
    outputs = definitions(stage(results=RESULTS, artifacts=ARTIFACTS))
    assert {name: kind["parameterType"] for name, kind in outputs["parameters"].items()} == {
        "run_id": "STRING",
        "accuracy": "NUMBER_DOUBLE",
        "model_uri": "STRING",
        "epochs": "NUMBER_INTEGER",
        "good": "BOOLEAN",
        "l2norm_mean": "NUMBER_DOUBLE",
        "trials": "LIST",
        "best": "STRUCT",
    }
    assert {name: kind["artifactType"]["schemaTitle"] for name, kind in outputs["artifacts"].items()} == {
        "metrics": "system.Metrics",
        "model": "system.Model",
        "confusion": "system.HTML",
        "notes": "system.Markdown",
    }


@pytest.mark.parametrize("options", [{"results": {}}, {"artifacts": {}}])
def test_metrics_alone(options: dict[str, Any]) -> None:
    outputs = definitions(stage(**options))
    assert (list(outputs["parameters"]), list(outputs["artifacts"])) == (["run_id"], ["metrics"])


def test_without_a_declaration_nothing_is_carried() -> None:
    compiled = stage()
    assert "artifacts" not in definitions(compiled)
    assert "python3" not in compiled


def test_outputs_are_channels() -> None:
    def pipeline(tracker_base: str = "/tmp/results") -> None:
        train = task_from_app(make_app("train"), tracker_base=tracker_base, results=RESULTS)
        with dsl.If(train.outputs["accuracy"] >= 0.9):
            task_from_app(make_app("use", args=["--model", f"{train.outputs['model_uri']}"]))
        with dsl.ParallelFor([1, 2]):
            trial = task_from_app(make_app("trial"), tracker_base=tracker_base, results={"accuracy": float})
        take(values=dsl.Collected(trial.outputs["accuracy"]))

    spec, _ = load(compile_pipeline(pipeline))
    condition = spec["root"]["dag"]["tasks"]["condition-1"]
    assert condition["triggerPolicy"]["condition"].endswith(">= 0.9")
    assert "accuracy" in condition["triggerPolicy"]["condition"]
    assert spec["components"]["comp-use"]["inputDefinitions"]["parameters"] == {
        "model_uri": {"parameterType": "STRING"}
    }


@dsl.container_component
def take(values: list):
    return dsl.ContainerSpec(image="busybox", command=["echo"], args=[values])


def test_outputs_by_the_name_that_is_recorded() -> None:
    def pipeline(tracker_base: str = "/tmp/results") -> None:
        train = task_from_app(make_app("train"), tracker_base=tracker_base, results=RESULTS)
        assert train.outputs["l2norm/mean"] is train.outputs["l2norm_mean"]
        with pytest.raises(
            KeyError,
            match=says(
                "'train'",
                "'acuracy'",
                "'metrics'",
                "results={'accuracy': float}",
                "'run_id'",
                "'model_uri'",
                "'epochs'",
            ),
        ):
            train.outputs["acuracy"]
        task_from_app(make_app("use", args=[f"{train.outputs['l2norm/mean']}"]))

    spec, _ = load(compile_pipeline(pipeline))
    (source,) = spec["root"]["dag"]["tasks"]["use"]["inputs"]["parameters"].values()
    assert source["taskOutputParameter"]["outputParameterKey"] == "l2norm_mean"


@pytest.mark.parametrize("make", [component_from_app, component_spec_from_app])
def test_components_have_them_too(make: Callable[..., Any]) -> None:
    made = make(make_app("train"), reads=["prepare"], results=RESULTS, artifacts=ARTIFACTS)
    component = components.load_component_from_text(made) if isinstance(made, str) else made

    def pipeline(tracker_base: str, prepared: str) -> None:
        train = component(tracker_base=tracker_base, prepare=prepared)
        take_all(model=train.outputs["model"], accuracy=train.outputs["accuracy"], metrics=train.outputs["metrics"])

    spec, _ = load(compile_pipeline(pipeline))
    assert set(definitions(compile_pipeline(pipeline))["parameters"]) == {
        "run_id",
        "accuracy",
        "model_uri",
        "epochs",
        "good",
        "l2norm_mean",
        "trials",
        "best",
    }
    inputs = set(spec["components"]["comp-train"]["inputDefinitions"]["parameters"])
    assert inputs - {"stage"} == {"tracker_base", "prepare"}


@dsl.container_component
def take_all(model: dsl.Input[dsl.Model], metrics: dsl.Input[dsl.Metrics], accuracy: float):
    return dsl.ContainerSpec(image="busybox", command=["echo"], args=[model.uri, metrics.uri, accuracy])


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
        ("//", ""),
    ],
)
def test_the_rule_for_names(name: str, output: str) -> None:
    assert output_name(name) == output
    if output:
        assert output in definitions(stage(results={name: float}))["parameters"]


def make_task(**options: Any) -> None:
    stage(**options)


def make_component(**options: Any) -> None:
    component_from_app(make_app("train"), **options)


@pytest.mark.parametrize("make", [make_task, make_component])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"results": ["accuracy"]},
            says("['accuracy']", "results={'accuracy'", "Write"),
        ),
        (
            {"results": {"accuracy": tuple}},
            says("results['accuracy']", "'tuple'", "list or dict", "results={'accuracy'", "Write"),
        ),
        ({"results": {"accuracy": "float"}}, says("results['accuracy']", "'float'", "results=", "Write")),
        ({"results": {"": float}}, says("''", "results", "output", "'accuracy'", "Write")),
        ({"results": {"//": float}}, says("'//'", "results", "output", "'accuracy'", "Write")),
        ({"results": {1: float}}, says("results", "1", "'accuracy'", "Write")),
        (
            {"results": {"run_id": str}},
            says("'run_id'", "stage", "input", "Record"),
        ),
        (
            {"results": {"metrics": float}},
            says("'metrics'", "stage", "Record"),
        ),
        ({"artifacts": {"metrics": dsl.Metrics}}, says("'metrics'", "artifacts", "stage", "Record")),
        (
            {"results": {"a/b": float, "a.b": float}},
            says("'a.b'", "'a/b'", "'a_b'", "results", "output", "'_'", "Record"),
        ),
        (
            {"results": {"model": str}, "artifacts": {"model": dsl.Model}},
            says("'model'", "'_'", "Record"),
        ),
        (
            {"artifacts": {"model": str}},
            says("artifacts['model']", "'str'", "artifacts={'model'", "dsl.Model", "kfp.dsl"),
        ),
        ({"artifacts": dsl.Model}, says("artifacts={'model'", "dsl.Model", "'kfp.dsl.types.artifact_types.Model'")),
        ({"ui_metadata": "x"}, says("ui_metadata", "'x'", "'outputs'", "dsl.Markdown", "'type'", "'markdown'")),
        ({"ui_metadata": {"outputs": float("nan")}}, says("ui_metadata", "nan", "JSON", "'outputs'")),
        ({"ui_metadata": {"outputs": {1, 2}}}, says("ui_metadata", "JSON", "'outputs'")),
    ],
)
def test_refused(make: Callable[..., None], options: dict[str, Any], text: str) -> None:
    with pytest.raises(OutputsError, match=text):
        make(**options)


def test_names_that_a_component_has_for_its_inputs() -> None:
    with pytest.raises(OutputsError, match=says("'prepare'", "stage", "input", "Record")):
        component_from_app(make_app("train"), reads=["prepare"], results={"prepare": float})
    with pytest.raises(OutputsError, match=says("'tracker_base'", "stage", "input", "Record")):
        component_from_app(make_app("train"), results={"tracker_base": str})


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


@pytest.mark.parametrize("what", ["results", "artifacts"])
def test_results_need_a_tracker_base(what: str) -> None:
    with pytest.raises(
        ReadsError,
        match=says(what, f"Stages(tracker_base=...).task(app, {what}=...)", "task_from_app(app, tracker_base="),
    ):
        compile_pipeline(lambda: task_from_app(make_app(), **{what: {}}))


def test_a_stage_that_is_not_cached() -> None:
    for cache in (True, False):
        spec, _ = load(stage(cache=cache))
        assert spec["root"]["dag"]["tasks"]["train"]["cachingOptions"] == ({"enableCache": True} if cache else {})


# The command


def with_python(shells: Path | None) -> dict[str, str]:
    """Return an environment in which ``sh`` is one of these, and ``python3`` is the interpreter of the tests."""
    folders = [*([str(shells)] if shells else []), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {"PATH": ":".join(folders)}


def executed(tmp: Path, compiled: str, shells: Path | None = None, name: str = "train") -> Any:
    container = container_of(
        compiled,
        name,
        inputs={"tracker_base": str(tmp / "results")},
        outputs={"run_id": str(tmp / "out" / "run_id"), "accuracy": str(tmp / "out" / "accuracy")},
        artifacts={
            output: str(tmp / "out" / output) for output in definitions(compiled, f"comp-{name}").get("artifacts", {})
        },
        environ=with_python(shells),
    )
    return container.run()


def test_words_reach_an_application_that_publishes_byte_for_byte(shells: Path, tmp_path: Path) -> None:
    words = [*HOSTILE, *PLAIN, *["a"] * 100]

    def pipeline(tracker_base: str = "/tmp/results") -> None:
        app = make_app("train", entrypoint="printf", args=["%s\\0", *words], env={"A": "$(HOME)"})
        task_from_app(app, tracker_base=tracker_base, results={}, artifacts={})

    done = executed(tmp_path, compile_pipeline(pipeline), shells)
    assert done.stderr == b""
    assert done.stdout == b"".join(word.encode() + b"\0" for word in words)
    assert done.returncode == 0


@pytest.mark.usual
def test_hostile_names_of_results(shells: Path, tmp_path: Path) -> None:
    names = [f"{word}x{index}" for index, word in enumerate(HOSTILE)]
    record = (
        "import json, sys; from torchx_kfp.tracking import current_run;"
        " current_run().put(dict.fromkeys(json.loads(sys.argv[1]), 0.5))"
    )

    def pipeline(tracker_base: str = "/tmp/results") -> None:
        app = make_app("train", entrypoint="python3", args=["-c", record, json.dumps(names)])
        task_from_app(app, tracker_base=tracker_base, results=dict.fromkeys(names, float))

    compiled = compile_pipeline(pipeline)
    outputs = {name: str(tmp_path / "out" / name) for name in definitions(compiled)["parameters"]}
    done = container_of(
        compiled,
        "train",
        inputs={"tracker_base": str(tmp_path / "results")},
        outputs=outputs,
        artifacts={"metrics": str(tmp_path / "out" / "metrics")},
        environ=with_python(shells),
    ).run()
    assert (done.returncode, done.stderr) == (0, b"")
    assert {Path(path).read_text() for name, path in outputs.items() if name != "run_id"} == {"0.5"}


@pytest.mark.parametrize("workspace", ["", f"/tmp/results/.torchx_kfp/workspaces/{'0a' * 32}.tar"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"results": {"accuracy": float}}, "results need python3 and fsspec in the image, or publish_results"),
        ({"may_fail": True}, "may_fail needs python3 and fsspec in the image"),
    ],
)
def test_an_image_without_python_is_told(
    options: dict[str, Any], said: str, workspace: str, shells: Path, tmp_path: Path
) -> None:
    compiled = stage(**options, workspace=workspace)
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


UI = {"outputs": [{"type": "markdown", "storage": "inline", "source": "# $(HOME) $$ {{x}} \\ \x7f 'ü' 🜨\n"}]}


@pytest.mark.parametrize("tracked", [True, False])
def test_ui_metadata_is_written_as_it_is(shells: Path, tmp_path: Path, tracked: bool) -> None:
    def pipeline(tracker_base: str = "/tmp/results") -> None:
        app = make_app("train", entrypoint="echo", args=["$$"])
        task_from_app(app, tracker_base=tracker_base if tracked else None, ui_metadata=UI)

    compiled = compile_pipeline(pipeline)
    assert definitions(compiled)["artifacts"] == {
        "mlpipeline_ui_metadata": {"artifactType": {"schemaTitle": "system.Artifact", "schemaVersion": "0.0.1"}}
    }
    done = executed(tmp_path, compiled, shells)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"$$\n", b"")
    assert json.loads((tmp_path / "out" / "mlpipeline_ui_metadata").read_text()) == UI


def test_ui_metadata_as_the_retired_adapter_took_it() -> None:
    component = component_from_app(make_app("train"), UI)

    def pipeline() -> None:
        component()

    compiled = compile_pipeline(pipeline)
    assert "mlpipeline_ui_metadata" in definitions(compiled)["artifacts"]


@pytest.mark.parametrize(
    ("options", "program"),
    [
        ({"results": {"a": float, "b": int, "c": bool, "d": str}}, RESULTS_PUBLISHER),
        ({"results": {"a": list}}, PUBLISHER),
        ({"results": {"a": float, "b": dict}}, PUBLISHER),
        ({"artifacts": {"model": dsl.Model}}, PUBLISHER),
        ({"results": {"a": float}, "may_fail": True}, PUBLISHER),
    ],
)
def test_a_stage_with_plain_results_carries_a_smaller_program(options: dict[str, Any], program: str) -> None:
    assert program in containers(stage(**options))["train"]["command"]


def test_an_image_that_has_torchx_kfp(tmp_path: Path) -> None:
    compiled = stage(results={"accuracy": float}, inline=False)
    assert not [program for program in (PUBLISHER, RESULTS_PUBLISHER) if program in compiled]
    words = containers(compiled)["train"]["command"]
    assert words[words.index("python3") + 1] == "-c"
    assert "from torchx_kfp import publisher" in words[words.index("python3") + 2]


# Sizes


def test_what_results_add_to_a_stage() -> None:
    plain, carried = (len(stage(**options)) for options in ({}, {"results": {"accuracy": float}}))
    assert carried - plain < 4_320, "bytes of YAML: the program, what is declared, outputs, a check for python3"


# publish_results


def published(*args: Any, **options: Any) -> str:
    def pipeline(tracker_base: str = "/tmp/results", run_id: str = "a/b/c") -> None:
        train = task_from_app(make_app("train"), tracker_base=tracker_base)
        names = {"task": train, "run_id": run_id, "trackers": tracker_base, "untracked": task_from_app(make_app("no"))}
        positional = [names.get(argument, argument) if isinstance(argument, str) else argument for argument in args]
        publish_results(
            *positional,
            image="publisher:1",
            **{name: names.get(value, value) if isinstance(value, str) else value for name, value in options.items()},
        )

    return compile_pipeline(pipeline)


def test_publish_results_is_a_stage_of_its_own() -> None:
    compiled = published("task", {"accuracy": float}, artifacts={"model": dsl.Model})
    spec, _ = load(compiled)
    outputs = definitions(compiled, "comp-publish-train")
    assert set(outputs["parameters"]) == {"run_id", "accuracy"}
    assert set(outputs["artifacts"]) == {"metrics", "model"}
    container = spec["deploymentSpec"]["executors"]["exec-publish-train"]["container"]
    assert container["image"] == "publisher:1"
    inputs = spec["root"]["dag"]["tasks"]["publish-train"]["inputs"]["parameters"]
    assert inputs["stage"]["taskOutputParameter"] == {"outputParameterKey": "run_id", "producerTask": "train"}
    assert inputs["tracker_base"]["componentInputParameter"] == "tracker_base"


def test_publish_results_of_a_run_id() -> None:
    compiled = published("run_id", {"accuracy": float}, tracker_base="trackers", name="show")
    spec, _ = load(compiled)
    assert spec["root"]["dag"]["tasks"]["show"]["inputs"]["parameters"]["stage"]["componentInputParameter"] == "run_id"


def test_what_publishes_can_be_read() -> None:
    def pipeline(tracker_base: str = "/tmp/results") -> None:
        train = task_from_app(make_app("train"), tracker_base=tracker_base)
        shown = publish_results(train, {"accuracy": float}, image="publisher:1")
        task_from_app(make_app("use"), tracker_base=tracker_base, reads={"train": shown})

    spec, _ = load(compile_pipeline(pipeline))
    source = spec["root"]["dag"]["tasks"]["use"]["inputs"]["parameters"]["train"]["taskOutputParameter"]
    assert source == {"outputParameterKey": "run_id", "producerTask": "publish-train"}


@pytest.mark.parametrize(
    ("args", "options", "error", "text"),
    [
        (
            ["run_id"],
            {},
            ReadsError,
            says("task_from_app", "tracker base", "stage", "publish_results", "run_id"),
        ),
        (
            ["untracked"],
            {},
            ReadsError,
            says("'run_id'", "output", "tracked", "'stage'", "'no'", "tracker_base", "Pass"),
        ),
        ([["task", "task"]], {}, ReadsError, r"is 'task'|publish_results publishes one stage"),
        (["task", {"a": tuple}], {}, OutputsError, r"results\['a'\] is <class 'tuple'>"),
        ([5], {}, ReadsError, r"reads\['stage'\] is 5 \(int\)"),
    ],
)
def test_publish_results_refuses(args: list[Any], options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        published(*args, **options)


def test_publish_results_needs_an_image() -> None:
    def pipeline() -> None:
        publish_results("a/b/c", {}, image="", tracker_base="/tmp/results")

    with pytest.raises(
        AppDefError, match=says("publish_results has no image", "python3", "fsspec", "images/publisher")
    ):
        compile_pipeline(pipeline)


def test_publish_results_needs_a_pipeline() -> None:
    assert config.LocalExecutionConfig.instance is None
    with pytest.raises(AppDefError, match=says("publish_results", "task", "kfp.dsl.pipeline", "Call")):
        publish_results("a/b/c", {}, image="x", tracker_base="/tmp/results")


def test_the_compiled_file_is_yaml_that_kfp_reads_back() -> None:
    compiled = stage(results=RESULTS, artifacts=ARTIFACTS, ui_metadata=UI)
    (document, *_) = documents(compiled)
    command = document["deploymentSpec"]["executors"]["exec-train"]["container"]["command"]
    assert PUBLISHER in command
    assert "{{$}}" in command
