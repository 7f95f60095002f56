"""``engine`` and ``replicas`` of each authoring function, and the options of engines: what they do, what is wrong."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035
# No annotations from __future__: KFP reads the annotations of pipeline functions.

import dataclasses
import functools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, List

import pytest
from kfp import components, dsl
from torchx.specs import AppDef, RetryPolicy, Role

from tests.authoring.apps import compile_pipeline, load, make_app, unresolved_inputs
from tests.authoring.engines.apps import app, distributed, role
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


TWO = app(role("Trainer"), role("server", num_replicas=2))


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


# What is rejected


def planned(*roles: Role, engine: Any = None, **options: Any) -> Callable[[], object]:
    """Return a call that plans a stage with these roles, or with one of three replicas."""
    made = app(*(roles or [role()]))
    return lambda: plan_stage(made, StageSettings(engine=engine or Job(), **options))


def replicas(number: Any, *roles: Role) -> Callable[[], object]:
    return planned(*roles, engine=JobSet(), replicas=number)


def engine(value: Any) -> Callable[[], object]:
    return lambda: read_settings({"engine": value}, None, {})


def pipeline(make: Callable[[Any], object]) -> Callable[[], object]:
    """Return a call that compiles a pipeline with a channel."""

    def define(n: int = 2) -> None:
        make(n)

    return lambda: compile_pipeline(define)


ONE = "replicas of role 'trainer'"
TWO_ROLES = role("Trainer"), role("server", num_replicas=2)
A, B = role("A", max_retries=1), role("B")
B_ALONE = role("B", max_retries=1, retry_policy=RetryPolicy.REPLICA)
HINTS = ("'A': 1", "'B': 0", "JobSet", "max_retries and retry_policy")
#: What is refused, and facts in the message.
REFUSED: list[tuple[Any, ...]] = [
    (engine("jobsets"), "'jobsets'", "Did you mean 'jobset'?", "'job', 'jobset', 'volcano'", "Job(queue='gpus')"),
    (engine("Job"), "engine is 'Job'", "Did you mean 'job'?"),
    (engine(""), "engine is ''"),
    (engine("kueue"), "engine is 'kueue'", "Kueue is a queue", "engines.Job(queue='...')"),
    (engine("trainer"), "engine is 'trainer'", "Kubeflow Trainer", "'jobset'"),
    (engine(True), "engine is True"),
    (engine(5), "engine is 5", "torchx_kfp.engines"),
    (engine(dict), "engine is <class 'dict'>"),
    (replicas(0), ONE, "0", "1 or more"),
    (replicas(4), f"{ONE} is 4", "num_replicas", "3"),
    (replicas(1, role(min_replicas=2)), f"{ONE} is 1", "min_replicas", "is 2", "j='1:3x"),
    (replicas(True), ONE, "True", "whole number, 1 or more"),
    (replicas("2"), ONE, "'2'", "(str)", "whole number, 1 or more"),
    (replicas(2.5), ONE, "2.5", "whole number"),
    (replicas(float("nan")), ONE, "nan"),
    (replicas({"trainr": 2}), "'trainr'", "Did you mean 'trainer'?", "Its roles: 'trainer'"),
    (replicas({5: 2}), "the role 5", "Its roles: 'trainer'"),
    (replicas(2, *TWO_ROLES), "replicas is 2", "2 roles", "{role: number}", "'Trainer', 'server'"),
    (replicas({"trainer": 2}, *TWO_ROLES), "'trainer'", "Did you mean 'Trainer'?"),
    (replicas({"Trainer": 1, "server": 3}, *TWO_ROLES), "replicas of role 'server' is 3", "2"),
    (lambda: plan_stage(make_app(), StageSettings(replicas=2)), "replicas", "no engine", "engine='job'"),
    (pipeline(lambda n: task_from_app(TWO, engine="jobset", replicas=n)), "a pipeline channel", "2 roles"),
    (lambda: Job(queue="My Queue"), "Job", "queue='My Queue'", "name", "small letters, digits"),
    (lambda: Job(queue=""), "queue=''"),
    (lambda: Job(queue="q" * 64), "at most 63"),
    (lambda: Job(priority_class="High"), "priority_class='High'"),
    (lambda: Job(service_account="ns/name"), "service_account='ns/name'"),
    (lambda: Job(launcher_image=""), "launcher_image=''", "python3"),
    (lambda: Job(launcher_image=5), "launcher_image=5"),
    (lambda: JobSet(logs="some"), "JobSet", "logs='some'", "'all', 'first', 'none'"),
    (lambda: Job(ttl=899), "ttl=899", "900 or more"),
    (lambda: Job(ttl=True), "ttl=True"),
    (lambda: Job(ttl="1h"), "ttl='1h'", "seconds"),
    (lambda: Job(shared_memory="8 GB"), "shared_memory='8 GB'", "'8Gi'"),
    (lambda: Job(labels=["a"]), "labels=['a']", "dict"),
    (lambda: Job(labels={"a b": "c"}), "'a b': 'c' in labels"),
    (lambda: Job(labels={"a": "b c"}), "'a': 'b c' in labels", "63"),
    (lambda: Job(labels={"a": "x" * 64}), "labels", "63"),
    (lambda: Job(annotations={"a": 1}), "'a': 1 in annotations", "Give text", "'1'"),
    (lambda: Job(annotations={5: "c"}), "5: 'c' in annotations"),
    *((lambda each=each: Volcano(min_available=each), "Volcano", f"{each!r}", "1 or more") for each in (0, True, "2")),
    (planned(engine=Volcano(min_available=4)), "Volcano", "min_available=4", "3 replicas"),
    (planned(*TWO_ROLES, engine=JobSet(succeeds_with=5)), "JobSet", "succeeds_with=5", "names of roles"),
    (planned(*TWO_ROLES, engine=Volcano(succeeds_with=[5])), "Volcano", "succeeds_with=[5]", "names of roles"),
    (planned(*TWO_ROLES, engine=JobSet(succeeds_with="Trainr")), "'Trainr'", "Did you mean 'Trainer'?", "'server'"),
    (planned(A, B, role(), engine=Volcano(succeeds_with=["A", "B"])), "succeeds_with=['A', 'B']", "JobSet"),
    (planned(A, B, engine=JobSet()), *HINTS),
    (planned(A, B_ALONE, engine=JobSet()), *HINTS),
    (planned(B_ALONE, engine=Volcano()), "'B'", "max_retries=1", "RetryPolicy.APPLICATION", "engine='jobset'"),
    (planned(*TWO_ROLES), "engine='job'", "one role", "2 ('Trainer', 'server')", "'jobset'"),
]
OPTION: dict[str, Callable[[Any], Any]] = {
    "labels": lambda n: {"a": f"{n}"},
    "annotations": lambda n: {"a": n},
    "succeeds_with": lambda n: [n],
}
#: The same for other kinds of errors.
OTHERS: list[tuple[type[Exception], Callable[[], object], tuple[object, ...]]] = [
    (
        ChannelError,
        pipeline(lambda n: component_from_app(app(role()), engine="job", replicas=n)),
        ("replicas", "'n_int'", "task_from_app"),
    ),
    (TypeError, lambda: Stages(engine="job"), ("Stages()", "'engine'", "give it to task()", "tracker_base")),
    (
        TypeError,
        lambda: Stages().task(app(role()), engine="job", logs="first"),
        ("Stages.task()", "'logs'", "engine=engines.Job(logs='first')"),
    ),
    (
        TypeError,
        lambda: component_from_app(app(role()), engine="job", succeeds_with="a"),
        ("'succeeds_with'", "engine=engines.JobSet(succeeds_with='a')"),
    ),
    (AttributeError, lambda: engines.Jobset, ("authoring.engines", "'Jobset'", "Did you mean 'JobSet'?")),
    (
        ReadsError,
        pipeline(lambda _: task_from_app(app(role()), engine="job", results={"loss": float})),
        ("results", "tracker_base=..."),
    ),
    *(
        (
            ChannelError,
            pipeline(lambda n, name=each.name: Volcano(**{name: OPTION.get(name, lambda n: n)(n)})),
            ("Volcano", each.name, "channel", "when the pipeline is compiled"),
        )
        for each in dataclasses.fields(Volcano)
    ),
]
CASES = [*((AppDefError, call, facts) for call, *facts in REFUSED), *OTHERS]


@pytest.mark.usual
@pytest.mark.parametrize(("error", "call", "facts"), CASES, ids=[" ".join(map(str, facts))[:60] for *_, facts in CASES])
def test_a_refusal_shows_the_value_and_the_way_out(error: Any, call: Callable[[], object], facts: Any) -> None:
    with pytest.raises(error, match=says(*facts)):
        call()


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
