"""Stages made from AppDefs under the local runner: the values that reach applications, and results that they read."""

# The defaults of KFP pipelines are constants in their signatures. KFP cannot parse typing's names of generic types in
# its text of channels, which is tested here.
# ruff: noqa: B006, UP006, UP035

import dataclasses
import functools
import json
import math
import os
from pathlib import Path
from typing import Any, Dict, List

import pytest
from kfp import components, dsl
from torchx.specs import AppDef, Role

from tests.authoring.apps import compile_pipeline
from tests.facts import says
from torchx_kfp import component_from_app, component_spec_from_app, task_from_app
from torchx_kfp.errors import StageFailedError
from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.local import RunResult, State, Watch, run
from torchx_kfp.tracking import FsspecResultTracker

#: Records its arguments, one of its variables, and the results of the stages that it reads.
PROGRAM = """
import json, os, sys
from torchx_kfp.tracking import current_run
run = current_run()
def read(parent):
    return [p.results()["argv"] for p in parent] if isinstance(parent, list) else parent.results()["argv"]
run.put(
    argv=json.dumps(sys.argv[1:]),
    variable=os.environ.get("VARIABLE", ""),
    read=json.dumps({alias: read(parent) for alias, parent in run.parents.items()}),
)
"""


def app(name: str, *args: Any, **fields: Any) -> AppDef:
    role = Role("role", image="image", entrypoint="python", args=["-c", PROGRAM, *args], **fields)
    return AppDef(name, [role])


def run_pipeline(function: Any, tmp_path: Path, **arguments: Any) -> RunResult:
    path = tmp_path / "pipeline.yaml"
    path.write_text(compile_pipeline(function))
    base = {"tracker_base": str(tmp_path / "results"), **arguments}
    return run(path, base, output_dir=tmp_path / "runs", watch=Watch())


def recorded(result: RunResult, name: str) -> dict[str, Any]:
    (stage,) = [stage for stage in result.stages if stage.name == name]
    assert stage.run_id is not None, stage.reason
    assert stage.tracker_base is not None
    return FsspecResultTracker(stage.tracker_base)[stage.run_id]


def argv(result: RunResult, name: str) -> list[str]:
    return json.loads(recorded(result, name)["argv"])


def test_parameters_of_every_type(tmp_path: Path) -> None:
    def pipeline(
        tracker_base: str,
        s: str = "x",
        i: int = 3,
        f: float = 0.1,
        b: bool = True,
        li: List[int] = [1, 2],
        d: Dict[str, int] = {"a": 1},
    ) -> None:
        task_from_app(
            app("use", f"{s}", f"--i={i}", f"[{f}]", f"{b}", f"{li}", f"{d}", i, env={"VARIABLE": f"{i}-{s}"}),
            tracker_base=tracker_base,
        )

    result = run_pipeline(pipeline, tmp_path, s='it\'s "$HOME" $$ $(id)\n')
    assert argv(result, "use") == ['it\'s "$HOME" $$ $(id)\n', "--i=3", "[0.1]", "true", "[1,2]", '{"a":1}', "3"]
    assert recorded(result, "use")["variable"] == '3-it\'s "$HOME" $$ $(id)\n'


@pytest.mark.versions
def test_items_and_fields_in_loops_conditions_and_nested_pipelines(tmp_path: Path) -> None:
    @dsl.pipeline(name="inner")
    def inner(tracker_base: str, lr: float, words: List[str]) -> str:
        with dsl.ParallelFor(words) as word:
            task_from_app(app("deep", f"{lr}-{word}"), tracker_base=tracker_base)
        return task_from_app(app("last", f"{lr}"), tracker_base=tracker_base).outputs["run_id"]

    def pipeline(tracker_base: str, mode: str = "a", points: List[Dict[str, float]] = [{"lr": 0.5}]) -> None:
        stage = functools.partial(task_from_app, tracker_base=tracker_base)
        with dsl.ParallelFor([{"lr": 0.1, "kind": "x", "n": 2}, {"lr": 1e-5, "kind": "y z", "n": 3}]) as item:
            stage(app("fields", f"--lr={item.lr}", f"{item.kind}", item.n, f"{item}"))
            with dsl.If(mode == "a"), dsl.ParallelFor([10, 0.5]) as number:
                stage(app("both", f"{item.kind}:{item.lr}:{number}"))
        with dsl.ParallelFor(points) as point:
            stage(app("point", f"{point.lr}"))
        first, second = (inner(tracker_base=tracker_base, lr=lr, words=["u", "v"]) for lr in (0.1, 0.2))
        stage(app("read"), reads={"first": first.output, "second": second.output})

    result = run_pipeline(pipeline, tmp_path)
    assert argv(result, "fields[0]") == ["--lr=0.1", "x", "2", '{"kind":"x","lr":0.1,"n":2}']
    assert argv(result, "fields[1]") == ["--lr=0.00001", "y z", "3", '{"kind":"y z","lr":0.00001,"n":3}']
    assert argv(result, "both[0,0]") == ["x:0.1:10"]
    assert argv(result, "both[1,1]") == ["y z:0.00001:0.5"]
    assert argv(result, "point[0]") == ["0.5"]
    assert argv(result, "inner/deep[1]") == ["0.1-v"]
    assert argv(result, "inner-2/deep[0]") == ["0.2-u"]
    read = json.loads(recorded(result, "read")["read"])
    assert read == {"first": '["0.1"]', "second": '["0.2"]'}


def test_every_execution_has_a_run_id_of_its_own(tmp_path: Path) -> None:
    @dsl.pipeline(name="inner")
    def inner(tracker_base: str) -> None:
        task_from_app(app("stage", "same"), tracker_base=tracker_base)

    def pipeline(tracker_base: str) -> None:
        inner(tracker_base=tracker_base)
        inner(tracker_base=tracker_base)
        with dsl.ParallelFor([1, 2]), dsl.ParallelFor([1, 2]):
            task_from_app(app("stage", "same"), tracker_base=tracker_base)
        task_from_app(app("stage", "same"), tracker_base=tracker_base)

    result = run_pipeline(pipeline, tmp_path)
    run_ids = {stage.run_id for stage in result.stages}
    assert len(run_ids) == len(result.stages) == 7
    assert all(run_id and run_id.startswith(f"{result.run_id}/stage/") for run_id in run_ids)
    assert sorted(FsspecResultTracker(tmp_path / "results").keys()) == sorted(map(str, run_ids))


def test_a_retry_has_a_run_id_of_its_own(tmp_path: Path) -> None:
    program = (
        PROGRAM
        + f"\npath = {str(tmp_path / 'tried')!r}\nif not os.path.exists(path): open(path, 'w').close(); sys.exit(3)"
    )

    def pipeline(tracker_base: str) -> None:
        role = Role("role", "image", entrypoint="python", args=["-c", program, "x"])
        first = task_from_app(AppDef("flaky", [role]), tracker_base=tracker_base)
        first.set_retry(num_retries=1, backoff_duration="0s")
        task_from_app(app("read"), tracker_base=tracker_base, reads=first)

    result = run_pipeline(pipeline, tmp_path)
    assert result.state is State.SUCCEEDED
    keys = FsspecResultTracker(tmp_path / "results").keys(f"{result.run_id}/flaky")
    assert len(keys) == 2
    flaky = next(stage for stage in result.stages if stage.name == "flaky")
    assert (flaky.attempts, flaky.run_id) == (2, max(keys))
    assert json.loads(recorded(result, "read")["read"]) == {"flaky": '["x"]'}


def test_fan_ins(tmp_path: Path) -> None:
    def pipeline(tracker_base: str) -> None:
        stage = functools.partial(task_from_app, tracker_base=tracker_base)
        with dsl.ParallelFor(["c", "a", "b"]) as letter, dsl.ParallelFor([1, 2]) as number:
            trial = stage(app("trial", f"{letter}{number}"))
        one, two = stage(app("one", "1")), stage(app("two", "2"))
        stage(
            app("read"),
            reads={
                "trials": dsl.Collected(trial.outputs["run_id"]),
                "listed": [two, one],
                "one": one,
            },
        )

    result = run_pipeline(pipeline, tmp_path)
    assert json.loads(recorded(result, "read")["read"]) == {
        "trials": [json.dumps([f"{letter}{number}"]) for letter in "cab" for number in (1, 2)],
        "listed": ['["2"]', '["1"]'],
        "one": '["1"]',
    }


@pytest.mark.parametrize(("mode", "taken"), [("a", "left"), ("b", "right")])
def test_one_of_two_branches_is_read(tmp_path: Path, mode: str, taken: str) -> None:
    def pipeline(tracker_base: str, mode: str) -> None:
        stage = functools.partial(task_from_app, tracker_base=tracker_base)
        with dsl.If(mode == "a"):
            left = stage(app("left", "left"))
        with dsl.Else():
            right = stage(app("right", "right"))
        either = dsl.OneOf(left.outputs["run_id"], right.outputs["run_id"])
        stage(app("read", either), reads={"either": either})

    result = run_pipeline(pipeline, tmp_path, mode=mode)
    assert json.loads(recorded(result, "read")["read"]) == {"either": json.dumps([taken])}
    assert argv(result, "read")[0].split("/")[1] == taken


def test_a_stage_of_an_earlier_run_is_read(tmp_path: Path) -> None:
    def first(tracker_base: str) -> None:
        task_from_app(app("train", "earlier"), tracker_base=tracker_base)

    def second(tracker_base: str, run_id: str) -> None:
        task_from_app(app("read"), tracker_base=tracker_base, reads={"train": run_id})

    earlier = run_pipeline(first, tmp_path).stages[0].run_id
    result = run_pipeline(second, tmp_path, run_id=earlier)
    assert json.loads(recorded(result, "read")["read"]) == {"train": '["earlier"]'}


def test_components_and_component_files(tmp_path: Path) -> None:
    train = component_from_app(app("train", "$$", "{{workflow.name}}"), tracked=True)
    read = components.load_component_from_text(component_spec_from_app(app("read"), reads=["model"]))

    def pipeline(tracker_base: str) -> None:
        model = train(tracker_base=tracker_base)
        again = read(tracker_base=tracker_base, model=model.outputs["run_id"])
        task_from_app(app("last"), tracker_base=tracker_base, reads=[again, model])

    result = run_pipeline(pipeline, tmp_path)
    assert argv(result, "train") == ["$$", "{{workflow.name}}"]
    assert json.loads(recorded(result, "read/read-stage")["read"]) == {"model": '["$$", "{{workflow.name}}"]'}
    assert list(json.loads(recorded(result, "last")["read"])) == ["read", "train"]


def test_names_that_kfp_would_change(tmp_path: Path) -> None:
    names = ["漢字", "a/b ../c", "x" * 200, "UPPER_case.1", "quo\"te'"]

    def pipeline(tracker_base: str) -> None:
        tasks = [task_from_app(app(name, str(number)), tracker_base=tracker_base) for number, name in enumerate(names)]
        task_from_app(app("read"), tracker_base=tracker_base, reads=tasks)

    result = run_pipeline(pipeline, tmp_path)
    assert json.loads(recorded(result, "read")["read"]) == {name: json.dumps([str(n)]) for n, name in enumerate(names)}


def test_what_a_failed_stage_recorded_stays(tmp_path: Path) -> None:
    def pipeline(tracker_base: str) -> None:
        role = Role("role", "image", entrypoint="python", args=["-c", PROGRAM + "\nsys.exit(4)", "until then"])
        failed = task_from_app(AppDef("train", [role]), tracker_base=tracker_base)
        task_from_app(app("read"), tracker_base=tracker_base, reads=failed)

    result = run_pipeline(pipeline, tmp_path)
    assert argv(result, "train") == ["until then"]
    with pytest.raises(
        StageFailedError, match=says("1 of 2 stages", "train ended with exit code 4", "Not run", "read")
    ):
        result.raise_for_failure()


@pytest.mark.versions
def test_an_app_that_knows_only_torchx(tmp_path: Path) -> None:
    program = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "from torchx.runtime.tracking import FsspecResultTracker\n"
        "tracker = FsspecResultTracker(os.environ['TORCHX_TRACKER_BASE'])\n"
        "loss = tracker[os.environ['TORCHX_PARENT_RUN_ID']]['loss'] if 'TORCHX_PARENT_RUN_ID' in os.environ else 1.0\n"
        "tracker[os.environ['TORCHX_JOB_ID']] = {'loss': loss / 2}\n"
    )

    def pipeline(tracker_base: str) -> None:
        def plain(name: str) -> AppDef:
            return AppDef(name, [Role("role", "image", entrypoint="python", args=["-c", program])])

        stage = functools.partial(task_from_app, tracker_base=tracker_base)
        stage(plain("third"), reads=stage(plain("second"), reads=stage(plain("first"))))

    result = run_pipeline(pipeline, tmp_path)
    assert math.isclose(recorded(result, "third")["loss"], 0.125)


def test_a_hundred_stages_in_a_chain(tmp_path: Path) -> None:
    """They run in the shell, to be quick: each one appends to the output of the one before it."""
    script = (
        'mkdir -p "$TORCHX_TRACKER_BASE/${TORCHX_JOB_ID%/*}"; n=0; [ -z "$TORCHX_PARENT_RUN_ID" ] || '
        'n=$(sed "s/[^0-9]//g" "$TORCHX_TRACKER_BASE/$TORCHX_PARENT_RUN_ID"); '
        'printf "{\\"n\\": %d}" $((n + 1)) >"$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID"'
    )

    def pipeline(tracker_base: str) -> None:
        previous = None
        for number in range(100):
            role = Role("role", "image", entrypoint="sh", args=["-c", script])
            previous = task_from_app(AppDef(f"stage-{number}", [role]), tracker_base=tracker_base, reads=previous)

    result = run_pipeline(pipeline, tmp_path)
    assert recorded(result, "stage-99") == {"n": 100}


# Results as outputs of KFP

RECORD = """
import json, os, sys
from torchx_kfp.tracking import current_run
current_run().put(json.loads(sys.argv[1]))
os.system(sys.argv[2])
"""


def record(name: str, results: str, then: str = "true") -> AppDef:
    return AppDef(name, roles=[Role(name, image="image", entrypoint="python", args=["-c", RECORD, results, then])])


@pytest.mark.versions
def test_outputs_in_conditions_arguments_fan_ins_and_nested_pipelines(tmp_path: Path) -> None:
    @dsl.container_component
    def collect(values: List[float], out: dsl.OutputPath(str)):
        return dsl.ContainerSpec(image="image", command=["sh", "-c", 'printf %s "$1" >"$0"', out, values])

    @dsl.pipeline(name="inner")
    def inner(tracker_base: str, rate: float) -> float:
        results = {"rate": float}
        return task_from_app(
            record("inside", f'{{"rate": {rate}}}'), tracker_base=tracker_base, results=results
        ).outputs["rate"]

    def pipeline(tracker_base: str, rate: float = 0.5) -> None:
        first = task_from_app(
            record("first", '{"accuracy": 0.75, "uri": "s3://m/1", "l2norm/mean": 2, "good": true}'),
            tracker_base=tracker_base,
            results={"accuracy": float, "uri": str, "l2norm/mean": float, "good": bool},
        )
        with dsl.If(first.outputs["accuracy"] >= 0.7), dsl.If(first.outputs["good"] == True):  # noqa: E712
            use = app("use", "--uri", f"{first.outputs['uri']}", f"{first.outputs['l2norm_mean']}")
            task_from_app(use, tracker_base=tracker_base)
        with dsl.Else():
            task_from_app(app("never"), tracker_base=tracker_base)
        with dsl.ParallelFor([0.25, 0.5]) as item:
            trial = task_from_app(record("trial", f'{{"x": {item}}}'), tracker_base=tracker_base, results={"x": float})
        collect(values=dsl.Collected(trial.outputs["x"]))
        nested = inner(tracker_base=tracker_base, rate=rate)
        task_from_app(app("after", f"{nested.output}"), tracker_base=tracker_base)

    result = run_pipeline(pipeline, tmp_path)
    assert result.state is State.SUCCEEDED
    stages = {stage.name: stage for stage in result.stages}
    assert argv(result, "use") == ["--uri", "s3://m/1", "2"]
    assert stages["never"].state is State.SKIPPED
    assert stages["collect"].outputs["out"] == "[0.25,0.5]"
    assert argv(result, "after") == ["0.5"]
    assert stages["first"].artifacts["metrics"].metadata == {"accuracy": 0.75, "l2norm/mean": 2}


@pytest.mark.parametrize(
    ("results", "then", "code", "last"),
    [
        (
            '{"loss": 1}',
            "true",
            1,
            "torchx-kfp: train declares the result 'accuracy' as float but recorded loss",
        ),
        ('{"accuracy": "x"}', "true", 1, "the result 'accuracy' as float but recorded 'x'"),
        ('{"accuracy": 1}', "echo no >&2; kill -9 $PPID", 137, "no"),
        ('{"accuracy": 1}', "echo no >&2; kill -TERM $PPID", 143, "no"),
    ],
)
def test_stages_that_fail(tmp_path: Path, results: str, then: str, code: int, last: str) -> None:
    def pipeline(tracker_base: str) -> None:
        task_from_app(record("train", results, then), tracker_base=tracker_base, results={"accuracy": float})

    result = run_pipeline(pipeline, tmp_path)
    (stage,) = result.stages
    assert (stage.state, stage.exit_code, stage.outputs) == (State.FAILED, code, {})
    assert last in stage.last_lines()[-1]
    assert recorded(result, "train") == json.loads(results), "what was recorded is there"


def test_a_retry_publishes_what_it_recorded_itself(tmp_path: Path) -> None:
    once = f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; kill -9 $PPID; }}"

    def pipeline(tracker_base: str) -> None:
        made = record("train", '{"accuracy": 0.5}', once)
        task_from_app(made, tracker_base=tracker_base, results={"accuracy": float}).set_retry(1)

    (stage,) = run_pipeline(pipeline, tmp_path).stages
    assert (stage.state, stage.attempts, stage.outputs["accuracy"]) == (State.SUCCEEDED, 2, 0.5)
    assert stage.outputs["run_id"] == stage.run_id
    assert str(stage.run_id).rpartition("/")[2] == stage.pod_name == "train-1"


#: Records the results, and the artifacts by name and path, that its arguments describe.
REGISTER = """
import json, sys
from torchx_kfp.tracking import current_run
run = current_run()
run.put(json.loads(sys.argv[1]))
for name, path in json.loads(sys.argv[2]).items():
    run.add_artifact(name, path, rate=1e-7)
"""


def register(name: str, results: dict[str, Any], artifacts: dict[str, str]) -> AppDef:
    arguments = ["-c", REGISTER, json.dumps(results), json.dumps(artifacts)]
    return AppDef(name, [Role("role", image="image", entrypoint="python", args=arguments)])


def test_the_runner_says_what_a_stage_declares_and_has_not_recorded(tmp_path: Path) -> None:
    def pipeline(tracker_base: str) -> None:
        task_from_app(
            register("train", {"accuracy": 0.5, "loss": 1, "l2norm/mean": 2}, {"model": "s3://m/1"}),
            tracker_base=tracker_base,
            results={"acuracy": float, "loss": str, "l2norm/mean": float},
            artifacts={"modle": dsl.Model},
        )
        task_from_app(register("none", {}, {}), tracker_base=tracker_base, results={"accuracy": float})

    result = run_pipeline(pipeline, tmp_path)
    reasons = {stage.name: stage.reason for stage in result.stages}
    assert reasons == {
        "train": "declares the result 'acuracy' as float but recorded accuracy, loss, l2norm/mean. "
        "Did you mean 'accuracy'? It declares the result 'loss' as str but recorded 1. "
        "It declares the artifact 'modle' but recorded model. Did you mean 'model'?",
        "none": "declares the result 'accuracy' as float but recorded nothing",
    }
    with pytest.raises(StageFailedError) as caught:
        result.raise_for_failure()
    lines = str(caught.value).splitlines()
    assert any(line.startswith("train declares the result 'acuracy'") and line.endswith("'model'?") for line in lines)
    assert "none declares the result 'accuracy' as float but recorded nothing." in lines


def test_an_application_that_fails_by_itself_is_not_blamed_for_what_it_has_not_recorded(tmp_path: Path) -> None:
    def pipeline(tracker_base: str) -> None:
        made = AppDef("train", [Role("role", image="image", entrypoint="sh", args=["-c", "exit 1"])])
        task_from_app(made, tracker_base=tracker_base, results={"accuracy": float})

    (stage,) = run_pipeline(pipeline, tmp_path).stages
    assert stage.reason == "ended with exit code 1"


@dsl.component(base_image="python:3.11")
def describe(model: dsl.Input[dsl.Model]) -> str:
    with open(model.path) as file:
        return f"{model.metadata['location']} {model.metadata['rate']} {file.read()}"


def test_an_artifact_that_is_elsewhere_is_handed_on_as_a_file_that_names_it(tmp_path: Path) -> None:
    """This is like on a backend, where a component that takes an artifact from other storage fails."""

    def pipeline(tracker_base: str) -> str:
        train = task_from_app(
            register("train", {"loss": 1e-7}, {"model": "s3://models/7"}),
            tracker_base=tracker_base,
            artifacts={"model": dsl.Model},
        )
        return describe(model=train.outputs["model"]).output

    pipeline.__annotations__["return"] = str
    result = run_pipeline(pipeline, tmp_path)
    content = json.dumps({"path": "s3://models/7", "metadata": {"rate": 1e-7}})
    assert result.outputs == {"Output": f"s3://models/7 1e-07 {content}"}
    (train,) = [stage for stage in result.stages if stage.name == "train"]
    model = train.artifacts["model"]
    assert isinstance(model, Artifact)
    assert model.location == "s3://models/7"
    assert Path(model.uri).is_relative_to(result.folder / train.pod_name)
    assert train.artifacts["metrics"].metadata == {"loss": "1e-07"}
    assert train.artifacts["metrics"].facts == {"loss": 1e-7}
    assert dataclasses.replace(train, results=None).measures == {"loss": 1e-7}, "also where the tracker is out of reach"


@pytest.mark.s3
def test_variables_of_the_application_say_how_the_storage_is_reached(
    tmp_path: Path, s3_server: Any, s3_base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    for name in credentials:
        monkeypatch.delenv(name)

    def pipeline(tracker_base: str) -> None:
        made = record("train", '{"accuracy": 0.5}')
        made.roles[0].env = dict(credentials)
        task_from_app(made, tracker_base=tracker_base, results={"accuracy": float})

    (stage,) = run_pipeline(pipeline, tmp_path, tracker_base=s3_base).stages
    assert stage.outputs.get("accuracy") == 0.5, stage.last_lines()
