"""``engine`` and ``replicas`` of each authoring function, and the options of engines: what they do, what is wrong."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035
# No annotations from __future__: KFP reads the annotations of pipeline functions.

import dataclasses
import functools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest
import yaml
from kfp import components, dsl
from torchx.specs import AppDef

from tests.authoring.apps import compile_pipeline, load, make_app, unresolved_inputs
from tests.authoring.engines.apps import OPTIONS, app, distributed, role
from tests.authoring.kfp_engines import container_of
from tests.facts import says
from torchx_kfp import (
    Stages,
    component_from_app,
    component_from_function,
    component_spec_from_app,
    engines,
    task_from_app,
)
from torchx_kfp.authoring.engines import ENGINES, Job, JobSet, Volcano
from torchx_kfp.authoring.options import StageSettings, read_settings
from torchx_kfp.authoring.plan import plan_stage
from torchx_kfp.contract.carried.programs import LAUNCHER
from torchx_kfp.errors import AppDefError, ChannelError, OutputsError, ReadsError

pytestmark = pytest.mark.versions

GIVEN: dict[str, Any] = {"engine": "jobset", "replicas": 2}


def command(compiled: str) -> list[str]:
    """Return the command of the only container."""
    spec, _ = load(compiled)
    (executor,) = spec["deploymentSpec"]["executors"].values()
    words: list[str] = executor["container"]["command"]
    return words


def train(lr: float) -> AppDef:
    """A TorchX component.

    Args:
        lr: the learning rate
    """
    return app(role(args=["--lr", str(lr)]))


# The same option everywhere


def test_every_authoring_function_takes_an_engine() -> None:
    made = app(role())

    def by_task() -> None:
        task_from_app(made, **GIVEN)

    def by_stages() -> None:
        Stages().task(made, **GIVEN)

    def by_component() -> None:
        component_from_app(made, **GIVEN)()

    def by_shared_component() -> None:
        Stages().component(made, **GIVEN)()

    expected = command(compile_pipeline(by_task))
    assert LAUNCHER in expected
    for pipeline in (by_stages, by_component, by_shared_component):
        assert command(compile_pipeline(pipeline)) == expected
    assert command(component_spec_from_app(made, **GIVEN)) == expected


def test_components_of_functions_take_an_engine() -> None:
    component = component_from_function(train, **GIVEN)
    assert set(component.component_spec.inputs) - {"task_config"} == {"lr"}
    words = command(compile_pipeline(functools.partial(_call, component)))
    assert words[-4:] == ["python3", "--lr", "{{$.inputs.parameters['lr']}}", "2"]
    shared = Stages().component_from_function(train, **GIVEN)
    assert command(compile_pipeline(functools.partial(_call, shared))) == words


def _call(component: Any) -> None:
    component(lr=0.5)


def test_a_name_is_an_engine_with_its_default_options() -> None:
    for name, kind in ENGINES.items():
        for same in (kind, kind()):
            assert distributed(app(role()), same).spec == distributed(app(role()), name).spec
    assert set(engines.__all__) >= {kind.__name__ for kind in ENGINES.values()}


def test_the_package_has_its_engines_without_kfp_and_torchx() -> None:
    program = "import sys, torchx_kfp; torchx_kfp.engines.Job(); print({'kfp', 'torchx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_without_an_engine_nothing_changes() -> None:
    assert plan_stage(make_app(), StageSettings(engine=None)) == plan_stage(make_app())


@pytest.mark.parametrize(
    "options", [{}, {"tracked": True}, {"results": {"loss": float}, "reads": ["data"]}, {"inline": False}]
)
def test_a_component_file_is_loaded_and_used(options: dict[str, Any]) -> None:
    text = component_spec_from_app(app(role(max_retries=2)), engine="job", secrets={"s3": {"k": "KEY"}}, **options)
    loaded = components.load_component_from_text(text)
    inputs = {"tracker_base": "/tmp/results", "data": "a/b/c"}
    given = {name: inputs[name] for name in loaded.component_spec.inputs or ()}
    assert "task_config" not in given, "KFP fills it in for the task inside"

    def pipeline() -> None:
        with dsl.ParallelFor([1, 2]):
            loaded(**given)
        loaded(**given)

    spec, platform = load(compile_pipeline(pipeline))
    optional = {
        f"{scope}/{task}: {name} is not passed"
        for scope, component in {"root": spec["root"], **spec["components"]}.items()
        for task, called in component.get("dag", {}).get("tasks", {}).items()
        for name, declared in spec["components"][called["componentRef"]["name"]]
        .get("inputDefinitions", {})
        .get("parameters", {})
        .items()
        if declared.get("isOptional")
    }
    assert set(unresolved_inputs(spec)) <= optional
    for name, executor in spec["deploymentSpec"]["executors"].items():
        paths = {entry["name"]: entry["fieldPath"] for entry in platform[name]["fieldPathAsEnv"]}
        assert paths["KFP_ARGO_NODE"] == "metadata.annotations['workflows.argoproj.io/node-name']"
        assert paths["KFP_SERVICE_ACCOUNT"] == "spec.serviceAccountName"
        assert paths["KFP_RUN_ID"] == "metadata.labels['pipeline/runid']"
        assert platform[name]["secretAsEnv"], "the launcher's publisher may need them"
        assert (LAUNCHER in executor["container"]["command"]) == options.get("inline", True)
    tasks = [task for one in spec["components"].values() for task in one.get("dag", {}).get("tasks", {}).values()]
    assert tasks
    assert not any("retryPolicy" in task for task in tasks), "the launcher starts replicas again"


def test_an_image_that_has_torchx_kfp() -> None:
    compiled = component_spec_from_app(app(role()), engine="job", inline=False)
    assert LAUNCHER not in compiled
    words = command(compiled)
    assert words[words.index("python3") + 1] == "-c"
    assert "from torchx_kfp import launcher" in words[words.index("python3") + 2]


@pytest.mark.parametrize("results", [None, {"loss": float}])
def test_an_image_without_python_is_told_what_the_launcher_needs(tmp_path: Path, results: Any) -> None:
    """Not to publish results in another way: the replicas would not start, either."""

    def pipeline(tracker_base: str = "/tmp/results") -> None:
        task_from_app(app(role()), engine="job", tracker_base=tracker_base, results=results)

    only = tmp_path / "bin"
    only.mkdir()
    for program in ("env", "mkdir", "sh"):
        (only / program).symlink_to(str(shutil.which(program)))
    compiled = compile_pipeline(pipeline)
    outputs = {name: str(tmp_path / "out" / name) for name in ("run_id", "loss")}
    artifacts = {"metrics": str(tmp_path / "metrics")}
    inputs = {"tracker_base": "/tmp/results"}
    stage = container_of(compiled, "train", inputs=inputs, outputs=outputs, artifacts=artifacts)
    done = dataclasses.replace(stage, environ={"PATH": str(only)}).run()
    assert done.returncode == 125
    assert done.stderr.decode().splitlines()[-1] == (
        "torchx-kfp: a distributed stage needs python3 in the image, or a launcher_image"
    )


# Sizes


def size(**options: Any) -> int:
    def pipeline(tracker_base: str = "/tmp/results") -> None:
        made = app(role(num_replicas=1 if "engine" not in options else 3))
        task_from_app(made, tracker_base=tracker_base, results={"loss": float}, **options)

    return len(compile_pipeline(pipeline))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_adds_to_a_stage(engine: str) -> None:
    """Argo allows 1 MiB for a run, and a stage in a loop is stored once."""
    assert len(LAUNCHER) < 12_200
    without = size(engine=engine, inline=False) - size(inline=False)
    assert without < 2_700, "bytes of YAML: what the launcher must know, its variables, the task's settings"
    assert size(engine=engine) - size() - without < len(LAUNCHER) + 200, "the program"


# What is rejected

ENGINES_GIVEN: list[tuple[object, tuple[str, ...]]] = [
    ("jobsets", ("engine is 'jobsets'", "Did you mean 'jobset'?", "'job', 'jobset', 'volcano'", "Job(queue='gpus')")),
    ("Job", ("engine is 'Job'", "Did you mean 'job'?")),
    ("", ("engine is ''",)),
    ("kueue", ("engine is 'kueue'", "Kueue is a queue", "engines.Job(queue='...')")),
    ("trainer", ("engine is 'trainer'", "Kubeflow Trainer", "'jobset'")),
    (True, ("engine is True",)),
    (5, ("engine is 5", "torchx_kfp.engines")),
    (["job"], ("engine is ['job']",)),
    (dict, ("engine is <class 'dict'>",)),
]


@pytest.mark.usual
@pytest.mark.parametrize(("engine", "facts"), ENGINES_GIVEN, ids=repr)
def test_what_is_no_engine(engine: object, facts: tuple[str, ...]) -> None:
    with pytest.raises(AppDefError, match=says(*facts)):
        read_settings({"engine": engine}, None, {})


TWO = app(role("Trainer"), role("server", num_replicas=2))
REPLICAS: list[tuple[AppDef, Any, tuple[str, ...]]] = [
    (app(role()), 0, ("replicas of role 'trainer'", "0", "1 or more")),
    (app(role()), 4, ("replicas of role 'trainer' is 4", "num_replicas", "3")),
    (app(role(min_replicas=2)), 1, ("replicas of role 'trainer' is 1", "min_replicas", "is 2", "j='1:3x")),
    (app(role()), True, ("replicas of role 'trainer'", "True", "whole number, 1 or more")),
    (app(role()), "2", ("replicas of role 'trainer'", "'2'", "(str)", "whole number, 1 or more")),
    (app(role()), 2.5, ("replicas of role 'trainer'", "2.5", "whole number")),
    (app(role()), [2], ("replicas of role 'trainer'", "[2]", "whole number, 1 or more")),
    (app(role()), float("nan"), ("replicas of role 'trainer'", "nan")),
    (app(role()), {"trainr": 2}, ("'trainr'", "Did you mean 'trainer'?", "Its roles: 'trainer'")),
    (app(role()), {5: 2}, ("the role 5", "Its roles: 'trainer'")),
    (TWO, 2, ("replicas is 2", "2 roles", "{role: number}", "'Trainer', 'server'")),
    (TWO, {"trainer": 2}, ("'trainer'", "Did you mean 'Trainer'?")),
    (TWO, {"Trainer": 1, "server": 3}, ("replicas of role 'server' is 3", "2")),
]


@pytest.mark.usual
@pytest.mark.parametrize(("made", "replicas", "facts"), REPLICAS, ids=[repr(case[1]) for case in REPLICAS])
def test_numbers_of_replicas_that_cannot_be(made: AppDef, replicas: Any, facts: tuple[str, ...]) -> None:
    with pytest.raises(AppDefError, match=says(*facts)):
        plan_stage(made, StageSettings(engine=JobSet(), replicas=replicas))


def test_numbers_of_replicas() -> None:
    assert distributed(app(role()), replicas=2).words[-1] == "2"
    assert distributed(app(role()), replicas={"trainer": 2}).words[-1] == "2"
    found = distributed(TWO, "jobset", replicas=lambda n: {"server": n, "Trainer": 1})
    counts = {described["name"]: found.words[described["count"]] for described in found.spec["roles"]}
    assert counts == {"trainer": "1", "server": "{{$.inputs.parameters['n_int']}}"}


@pytest.mark.parametrize(("fields", "least"), [({}, 1), ({"min_replicas": 2}, 2), ({"min_replicas": None}, 1)])
def test_the_launcher_knows_the_fewest_replicas(fields: dict[str, Any], least: int) -> None:
    (described,) = distributed(app(role(**fields)), replicas=lambda n: n).spec["roles"]
    assert described["least"] == least
    (fixed,) = distributed(app(role(**fields))).spec["roles"]
    assert "least" not in fixed


def pipeline_of(replicas: Any, made: AppDef | None = None, **options: Any) -> str:
    def pipeline(items: list, pairs: dict, n: int = 1, text: str = "1", yes: bool = True, share: float = 2.0) -> None:
        channels = {"n": n, "text": text, "yes": yes, "items": items, "pairs": pairs, "share": share}
        task_from_app(made or app(role()), replicas=replicas(channels), **{"engine": "jobset", **options})

    return compile_pipeline(pipeline)


@pytest.mark.parametrize(
    "replicas",
    [
        lambda given: given["yes"],
        lambda given: given["text"],
        lambda given: given["share"],
        lambda given: given["items"],
        lambda given: given["pairs"],
        lambda given: f"{given['n']}0",
        lambda given: {"trainer": given["yes"]},
        lambda given: [given["n"]],
    ],
)
def test_channels_that_are_no_number(replicas: Any) -> None:
    with pytest.raises(ChannelError, match=says("replicas of role 'trainer'", "number")):
        pipeline_of(replicas)


def test_a_channel_for_one_of_several_roles() -> None:
    with pytest.raises(AppDefError, match=says("a pipeline channel", "2 roles", "{role: number}")):
        pipeline_of(lambda given: given["n"], TWO)
    pipeline_of(lambda given: {"server": given["n"]}, TWO)


def test_items_may_be_numbers() -> None:
    """To KFP, the items of a list of an unknown type are text. They are checked when the stage starts."""

    def pipeline(unknown: list, numbers: List[int]) -> None:
        made = app(role())
        with dsl.ParallelFor(unknown) as item:
            task_from_app(made, engine="job", replicas=item)
        with dsl.ParallelFor(unknown) as item:
            task_from_app(made, engine="job", replicas=item.nodes)
        with dsl.ParallelFor(numbers) as item:
            task_from_app(made, engine="job", replicas=item)
        with dsl.ParallelFor([{"nodes": 1}, {"nodes": 2}]) as item:
            task_from_app(made, engine="job", replicas=item.nodes)

    compile_pipeline(pipeline)


@pytest.mark.parametrize("items", [["1", "2"], [1, 0.5], [{"n": "1"}]])
def test_items_that_are_no_numbers(items: list[Any]) -> None:
    def pipeline() -> None:
        with dsl.ParallelFor(items) as item:
            task_from_app(app(role()), engine="job", replicas=item.n if isinstance(items[0], dict) else item)

    with pytest.raises(ChannelError, match=says("replicas of role 'trainer'", "whole number")):
        compile_pipeline(pipeline)


def test_replicas_without_an_engine() -> None:
    with pytest.raises(AppDefError, match=says("replicas", "no engine", "engine='job'")):
        plan_stage(make_app(), StageSettings(replicas=2))


def test_a_job_runs_one_role() -> None:
    with pytest.raises(AppDefError, match=says("engine='job'", "one role", "2 ('Trainer', 'server')", "'jobset'")):
        plan_stage(TWO, StageSettings(engine=Job()))


def test_a_component_is_static() -> None:
    with pytest.raises(ChannelError, match=says("replicas", "'n_int'", "task_from_app")):
        compile_pipeline(_component_with_a_channel)


def _component_with_a_channel(n: int = 2) -> None:
    component_from_app(app(role()), engine="job", replicas=n)


def test_an_engine_is_not_shared() -> None:
    with pytest.raises(TypeError, match=says("Stages()", "'engine'", "give it to task()", "tracker_base")):
        Stages(engine="job")


def test_options_of_an_engine_are_not_those_of_a_stage() -> None:
    with pytest.raises(TypeError, match=says("Stages.task()", "'logs'", "engine=engines.Job(logs='first')")):
        Stages().task(app(role()), engine="job", logs="first")
    with pytest.raises(TypeError, match=says("'succeeds_with'", "engine=engines.JobSet(succeeds_with='a')")):
        component_from_app(app(role()), engine="job", succeeds_with="a")


def test_a_misspelled_engine() -> None:
    with pytest.raises(AttributeError, match=says("authoring.engines", "'Jobset'", "Did you mean 'JobSet'?")):
        _ = engines.Jobset


@pytest.mark.parametrize("option", [field.name for field in dataclasses.fields(Volcano)])
def test_an_option_of_an_engine_is_no_channel(option: str) -> None:
    def pipeline(text: str) -> None:
        values: dict[str, Any] = {"labels": {"a": f"{text}"}, "annotations": {"a": text}, "succeeds_with": [text]}
        Volcano(**{option: values.get(option, text)})

    with pytest.raises(ChannelError, match=says("Volcano", option, "channel", "when the pipeline is compiled")):
        compile_pipeline(pipeline)


def test_results_need_a_tracker_base() -> None:
    def pipeline() -> None:
        task_from_app(app(role()), engine="job", results={"loss": float})

    with pytest.raises(ReadsError, match=says("results", "tracker_base=...")):
        compile_pipeline(pipeline)


# Options of engines

WRONG: list[tuple[str, Any, tuple[str, ...]]] = [
    ("queue", "My Queue", ("queue='My Queue'", "name", "small letters, digits")),
    ("queue", "", ("queue=''",)),
    ("queue", 5, ("queue=5",)),
    ("priority_class", "High", ("priority_class='High'",)),
    ("service_account", "ns/name", ("service_account='ns/name'",)),
    ("launcher_image", "", ("launcher_image=''", "python3")),
    ("launcher_image", 5, ("launcher_image=5",)),
    ("logs", "some", ("logs='some'", "'all', 'first', 'none'")),
    ("logs", None, ("logs=None",)),
    ("ttl", 899, ("ttl=899", "900 or more")),
    ("ttl", True, ("ttl=True",)),
    ("ttl", "1h", ("ttl='1h'", "seconds")),
    ("labels", ["a"], ("labels=['a']", "dict")),
    ("labels", {"a b": "c"}, ("'a b': 'c' in labels",)),
    ("labels", {"a": "b c"}, ("'a': 'b c' in labels", "63")),
    ("labels", {"a": "x" * 64}, ("labels", "63")),
    ("labels", {"a": 1}, ("'a': 1 in labels", "Give text", "'1'")),
    ("annotations", {"a": 1}, ("'a': 1 in annotations", "Give text", "'1'")),
    ("annotations", {5: "c"}, ("5: 'c' in annotations",)),
    ("annotations", {"a": None}, ("'a': None in annotations",)),
]


@pytest.mark.usual
@pytest.mark.parametrize(("option", "value", "facts"), WRONG)
def test_options_that_kubernetes_would_reject(option: str, value: Any, facts: tuple[str, ...]) -> None:
    for kind in ENGINES.values():
        with pytest.raises(AppDefError, match=says(kind.__name__, *facts)):
            kind(**{option: value})


@pytest.mark.usual
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2"])
def test_numbers_that_volcano_cannot_wait_for(value: Any) -> None:
    with pytest.raises(AppDefError, match=says("Volcano", f"min_available={value!r}", "1 or more")):
        Volcano(min_available=value)


@pytest.mark.usual
@pytest.mark.parametrize("value", [5, None, [5], {"a": 1}])
@pytest.mark.parametrize("kind", [JobSet, Volcano])
def test_names_of_roles_that_end_a_stage(kind: Any, value: Any) -> None:
    with pytest.raises(AppDefError, match=says(kind.__name__, f"succeeds_with={value!r}", "names of roles")):
        plan_stage(TWO, StageSettings(engine=kind(succeeds_with=value)))


@pytest.mark.parametrize("engine", ENGINES)
def test_options_of_all_engines(engine: str) -> None:
    kind: Any = ENGINES[engine]
    found = distributed(app(role(mounts=[])), kind(**OPTIONS))
    assert found.image == "python:3.12-slim"
    assert found.spec["logs"] == "first"
    assert found.manifest["spec"]["ttlSecondsAfterFinished"] == 3600
    metadata = found.manifest["metadata"]
    queue = {} if engine == "volcano" else {"kueue.x-k8s.io/queue-name": "gpus"}
    assert {**OPTIONS["labels"], **queue}.items() <= metadata["labels"].items()
    assert ("queue" in found.manifest["spec"]) == (engine == "volcano")
    assert metadata["annotations"] == OPTIONS["annotations"]
    (pod,) = found.pods()
    assert pod["spec"]["serviceAccountName"] == "trainer"
    assert pod["spec"]["priorityClassName"] == "high"
    assert OPTIONS["labels"].items() <= pod["metadata"]["labels"].items()
    assert OPTIONS["annotations"].items() <= pod["metadata"]["annotations"].items()
    text = yaml.safe_dump(found.manifest)
    assert "torchx-kfp/stage" in text


# The input for what is set on the task


def test_a_channel_may_have_the_name_of_that_input() -> None:
    def pipeline(task_config: str = "text") -> None:
        task_from_app(app(role(args=[f"{task_config}"])), engine="job")

    spec, _ = load(compile_pipeline(pipeline))
    assert unresolved_inputs(spec) in ([], ["root/train: task_config is not passed"])
    (task,) = spec["root"]["dag"]["tasks"].values()
    assert task["inputs"]["parameters"] == {"task_config_2": {"componentInputParameter": "task_config"}}


def test_other_inputs_and_outputs_have_other_names() -> None:
    def configured(task_config: str) -> AppDef:
        """Has a parameter of that name.

        Args:
            task_config: text
        """
        return app(role(args=[task_config]))

    with pytest.raises(AppDefError, match=says("input", "'task_config'", "engine", "rename")):
        component_from_function(configured, engine="job")
    with pytest.raises(AppDefError, match=says("'task_config'", "engine", "rename")):
        component_from_app(app(role()), engine="job", reads=["task_config"])
    for declared in ({"results": {"task_config": float}}, {"artifacts": {"task_config": dsl.Model}}):
        with pytest.raises(OutputsError, match=says("'task_config'", "already")):
            component_from_app(app(role()), engine="job", **declared)
    component_from_app(make_app(), reads=["task_config"])
