"""What the public functions refuse: each row is a call, and facts of the message: what is wrong, and the way out."""

# The defaults of KFP pipelines are constants in their signatures.
# ruff: noqa: B006
# No annotations from __future__: KFP reads the annotations of pipeline functions.

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kfp import dsl
from torchx.components import utils
from torchx.specs import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount

from tests.authoring.apps import compile_pipeline, make_app, make_artifact, produce, use
from tests.authoring.engines.apps import app as apps
from tests.authoring.engines.apps import role
from tests.refusals import Row, check_refusal, refused
from torchx_kfp import (
    Stages,
    artifact_from_uri,
    component_from_app,
    component_from_function,
    component_spec_from_app,
    engines,
    publish_results,
    task_from_app,
)
from torchx_kfp.errors import AppDefError, UnknownNameError

pytestmark = pytest.mark.versions

Job, JobSet = engines.Job, engines.JobSet


def app(**fields: Any) -> Callable[[], object]:
    """Return a call that makes a component from an app with these fields."""
    return lambda: component_from_app(make_app(**fields))


def resource(**fields: Any) -> Callable[[], object]:
    return app(resource=Resource(**{"cpu": 1, "gpu": 0, "memMB": 100, **fields}))


def component(**options: Any) -> Callable[[], object]:
    """Return a call that makes a tracked component with these options; its role has the variable SET."""
    return lambda: component_from_app(make_app(env={"SET": "1"}), tracked=True, **options)


def inside(make: Callable[[Any], object]) -> Callable[[], object]:
    """Return a call that compiles a pipeline; the function is given its parameters."""

    def pipeline(
        text: str = "a", n: int = 1, lr: float = 0.1, yes: bool = True, share: float = 2.0, items: list = [1],
        table: dict = {}, named: list = [{"name": "a"}],
    ) -> None:  # fmt: skip
        given = {"text": text, "n": n, "lr": lr, "yes": yes, "share": share, "items": items, "table": table}
        make(SimpleNamespace(**given, named=named))

    return lambda: compile_pipeline(pipeline)


def used(make: Callable[[Any], object], **fields: Callable[[Any], Any]) -> Callable[[], object]:
    """Return a call that compiles a stage with one argument, and fields, that are made from the parameters."""
    return inside(lambda given: use(make(given), **{name: field(given) for name, field in fields.items()}))


def tracked(**options: Any) -> dsl.PipelineTask:
    """Make a task of a tracked stage."""
    return task_from_app(make_app(), **{"tracker_base": "/tmp/results", **options})


def reading(reads: Callable[[Any], Any]) -> Callable[[], object]:
    """Return a call that compiles a stage that reads this."""
    return inside(lambda given: tracked(reads=reads(given), name="read"))


@dsl.container_component
def foreign(accuracy: dsl.OutputPath(float)):
    return dsl.ContainerSpec(image="busybox", command=["true", accuracy])


def looped(make: Callable[[], Any], items: Any = [1]) -> Any:
    """Make something in a loop that is closed afterwards."""
    with dsl.ParallelFor(items):
        return make()


def after_its_loop(items: Any, field: Callable[[Any], Any]) -> Any:
    with dsl.ParallelFor(items) as item:
        use(field(item))
    return field(item)


def item_beside_a_field_called_name(given: Any) -> Any:
    with dsl.ParallelFor([{"name": "a"}]):  # with another field, KFP itself sometimes rejects it
        use(f"{given.lr}")


def field_called_name(given: Any) -> Any:
    with dsl.ParallelFor(given.named) as item:
        use(f"--x={item.name}")


@dsl.pipeline(name="inner")
def inner(base: str) -> str:
    return tracked(tracker_base=base).outputs["run_id"]


MADE_ELSEWHERE: list[dsl.PipelineTask] = []


@dsl.pipeline(name="other")
def other() -> None:
    MADE_ELSEWHERE.append(produce())


def static_channels() -> list[AppDef]:
    """Return an AppDef with a channel of a pipeline that has been compiled."""
    made: list[AppDef] = []
    inside(lambda given: (made.append(make_app(args=[f"{given.lr}"])), use("a")))()
    return made


FIELDS: list[Row] = [
    (
        inside(lambda _: Stages(tracker_base=5).task(make_app())),
        "tracker_base is 5 (int)",
        "must be a string or a channel",
    ),
    (app(resource={"memMB": 100}), "{'memMB': 100}", "'trainer'", "Resource(cpu=2, gpu=0, memMB=4096)"),
    (lambda: component_from_app("train"), "'train'", "(str)", "component", "function"),
    (lambda: component_from_app(make_app), "(function)", "make_app(...)", "component_from_function(make_app)"),
    (lambda: component_from_app(AppDef("train")), "'train'", "no roles", "AppDef(name=..., roles=[Role(...)])"),
    (
        lambda: component_from_app(apps(Role("a", "i", entrypoint="e"), Role("b", "i", entrypoint="e"))),
        *("'train'", "2 roles ('a', 'b')", "engine='jobset'", "JobSet controller"),
    ),
    (app(num_replicas=4), "num_replicas=4", "engine='job' needs nothing", "engine='jobset'", "'trainer'"),
    (app(num_replicas=0), "num_replicas=0"),
    (app(min_replicas=2), "min_replicas=2"),
    (app(name=""), "AppDef.name", "''"),
    (app(role=""), "''", "'train'", "role"),
    (lambda: component_from_app(AppDef("train", [Role("r", "image")])), "Role.entrypoint", "'r'", "'train'"),
    (app(entrypoint=""), "no entrypoint"),
    (app(entrypoint=" "), "'trainer'", "no entrypoint", "Set Role.entrypoint"),
    (app(entrypoint="-m"), "'-m'", "Role.args", "'trainer'"),
    (app(image=""), "Role.image", "'trainer'"),
    (app(image="a:{{b}}"), "'a:{{b}}'", "image", "'trainer'"),
    (app(mounts=[BindMount("/a", "/b")]), "BindMount(src_path='/a'", "VolumeMount", "engine='job'", "'trainer'"),
    (app(mounts=[DeviceMount("/dev/fuse", "/dev/fuse")]), "DeviceMount(", "engine='job'", "'trainer'"),
    (app(mounts=[VolumeMount("a", "/b", read_only=True)]), "read_only=False", "ReadOnlyMany", "engine='job'"),
    (app(metadata={"kubernetes": {"spec": {}}}), "'kubernetes'", "kfp.kubernetes", "engine='job'", "'trainer'"),
    (app(max_retries=-1), "max_retries", "'trainer'", "-1"),
    (app(max_retries=float("nan")), "max_retries", "'trainer'", "nan", "(float)"),
    (resource(gpu=2, devices={"nvidia.com/gpu": 1}), "gpu=2", "'nvidia.com/gpu': 1", "one of them"),
    *(
        (resource(memMB=memory), f"memMB of role 'trainer' is {memory},", "KFP's launcher", "64 MB", "Add 64", "at -1")
        for memory in (1, 32, 63)
    ),
    (resource(gpu=0.5), "0.5", "nvidia.com/gpu", "'trainer'"),
    (resource(gpu=1, devices={"vpc.amazonaws.com/efa": 1}), "nvidia.com/gpu", "vpc.amazonaws.com/efa", "engine='job'"),
    (resource(devices={"a/b": 1, "c/d": 1}), "2 types", "(a/b, c/d)", "engine='job'"),
    (
        resource(capabilities={"gpu_type": "a100"}),
        *("'gpu_type'", "'a100'", "kfp.kubernetes.add_node_selector", "'node.kubernetes.io/instance-type'"),
    ),
    (app(args="abc"), "'abc'", "list", "'trainer'"),
    (app(mounts=["x"]), "'x'", "VolumeMount", "'trainer'"),
    (app(args=["--epochs", 3]), "args[1]", "'trainer'", "3 (int)", "must be a string"),
    (app(env={"A": 1}), "env['A']", "'trainer'", "1 (int)", "must be a string"),
    (app(env={"": "x"}), "'trainer'", "''", "role"),
    (app(env={"A=B": "x"}), "'A=B'", "variable", "'trainer'"),
    (app(env={"-i": "x"}), "has the name '-i'"),
    (app(entrypoint="./a=b", env={"A": "x"}), "'='", "'./a=b'", "'trainer'", "`env`", "Call"),
    (app(args=["a\0b"]), "args[0]", "'trainer'", "NUL", "Remove"),
    (app(args=["\ud800"]), "args[0]", "'trainer'", "Unicode"),
    (app(args=["x" * 131072]), "args[0]", "'trainer'", "131072", "131071", "Put"),
    (inside(lambda _: tracked() and use("{" * 30_000)), "149996 bytes", "131071 bytes in one argument", "Put"),
    (app(env={"X": "x" * 131_071}), "env['X']", "131073", "'trainer'", "Put"),
    (inside(lambda _: task_from_app(make_app(), name="")), "''", "stage"),
    (used(lambda _: produce()), "'produce'", "task.outputs['...']", "reads=", "'trainer'"),
    (used(lambda given: given.lr > 0), "(ConditionOperation)", "must be a string or a channel", "'trainer'"),
    (
        inside(lambda given: task_from_app(make_app(entrypoint=f"/opt/a=b/{given.text}"))),
        *("'='", "'/opt/a=b/<text>'", "'trainer'", "`env`", "Call"),
    ),
    (lambda: task_from_app(make_app()), "decorated", "component_from_app", "task_from_app", "kfp.dsl.pipeline"),
    (inside(lambda _: component_spec_from_app(make_app())), "component_spec_from_app", "task_from_app", "function"),
    *(
        (lambda name=name: component_from_app(make_app(env={name: "mine"}), tracked=True), "env", "'trainer'", name)
        for name in ("TORCHX_TRACKER_BASE", "TORCHX_JOB_ID", "TORCHX_PARENT_RUN_ID", "TORCHX_PARENT_RUN_IDS")
    ),
]


@dataclasses.dataclass
class LaterRole(Role):
    """The role of a TorchX that is newer than those that are known."""

    pod_deadline: int = 0
    sidecars: list[str] = dataclasses.field(default_factory=list)


def later(**fields: Any) -> Any:
    """Return a call with such a role."""
    role = LaterRole("trainer", image="app:1", entrypoint="true", **fields)
    return inside(lambda _: task_from_app(AppDef("app", [role])))


FIELDS += [
    (later(pod_deadline=600), "'trainer'", "pod_deadline=600", "does not know", "newer torchx-kfp"),
    (later(sidecars=["a"]), "'trainer'", "sidecars=['a']", "does not know"),
]
if any(field.name == "base_image" for field in dataclasses.fields(Role)):
    FIELDS.append((app(base_image="old:1"), "base_image='old:1'", "deprecated", "'trainer'"))

VARIABLE = "'AWS_ACCESS_KEY_ID'"
SECRETS: list[Row] = [
    (component(secrets={"": {"a": "A"}}), "''", "secrets=", VARIABLE),
    (component(secrets={"s3": {"": "A"}}), "secrets['s3']", "''", "key", VARIABLE),
    (component(secrets={"s3": {"a": ""}}), "secrets['s3']", "'a'", "''", VARIABLE),
    (component(secrets={"s3": {"a": "my-var"}}), "'my-var'", "ASCII", "'_'", "'s3'", "'a'"),
    (component(secrets={"s3": {"a": "A"}, "hub": {"b": "A"}}), "secrets['hub']", "'b'", "'A'", "'a'", "'s3'", "Remove"),
    (component(secrets={"s3": {"a": "A", "b": "A"}}), "secrets['s3']", "'b'", "'A'", "'a'", "Remove"),
    (component(secrets={"s3": {"a": "SET"}}), "'SET'", "'trainer'", "'s3'", "'a'", "Remove"),
    (inside(lambda given: tracked(secrets={given.text: {"k": "K"}})), "channel", "kfp.kubernetes.use_secret_as_env"),
    *(
        (make(name), f"{name}'", "tracked", "Rename")
        for name in ("TORCHX_JOB_ID", "TORCHX_PARENT_RUN_IDS", "TORCHX_TRACKER_BASE", "KFP_RUN_ID", "KFP_POD_NAME")
        for make in (
            lambda name: component(secrets={"s": {"k": name}}),
            lambda name: inside(
                lambda _: publish_results("a/b/c", image="i", tracker_base="/tmp", secrets={"s": {"k": name}})
            ),
        )
    ),
    (
        component(trackers={"mlflow": "x"}, secrets={"mlflow": {"uri": "TORCHX_TRACKER_MLFLOW_CONFIG"}}),
        *("'TORCHX_TRACKER_MLFLOW_CONFIG'", "tracked", "'mlflow'", "'uri'", "Rename"),
    ),
]
TRACKERS: list[Row] = [
    (component(trackers={"": None}), "''", "torchx.tracker", "'module:function'", "Name"),
    (component(trackers={"a,b": None}), "'a,b'", "Name"),
    (component(trackers={"Torchx_Kfp": None}), "'Torchx_Kfp'", "Remove"),
    (component(trackers={"a": None, "A": "x"}), "'a'", "'A'", "TORCHX_TRACKER_A_CONFIG", "Use"),
    (component(trackers={"a": 5}), "trackers['a']", "5 (int)", "string"),
    (component(trackers={"a": "x\0"}), "trackers['a'] contains a NUL character"),
    (component(trackers={"my-tracker": "x"}), "'my-tracker'", "ASCII", "'TORCHX_TRACKER_MY-TRACKER_CONFIG'", "None"),
    (component(trackers={"größe": "x"}), "ASCII", "'größe'", "'TORCHX_TRACKER_GRÖSSE_CONFIG'", "None"),
    (inside(lambda given: tracked(trackers={given.text: None})), "{{channel", "'module:function'", "Name"),
    (
        lambda: component_from_app(
            make_app(env={"TORCHX_TRACKER_MLFLOW_CONFIG": "x"}), tracked=True, trackers={"mlflow": "http://mlflow:5000"}
        ),
        *("TORCHX_TRACKER_MLFLOW_CONFIG", "'x'", "tracked", "'trainer'"),
    ),
]

SPLIT = "channel", "'trainer'", "Split"
COLLECTED = "dsl.Collected", "'produce'", "'trainer'", "reads=", "'trials'", "Read"
CHANNELS: list[Row] = [
    (
        used(lambda given: f"--lr={given.lr}".upper()),
        "'{{CHANNEL:'",
        "'--LR={{CHANNEL:TASK=;NAME=LR;TYPE=",
        "application",
    ),
    (used(lambda given: f"{given.lr}"[:5]), "args[0]", "'{{cha'", "application"),
    (used(lambda given: f"{given.lr}"[5:]), ";}}'", "application"),
    (used(lambda _: f"--a={dsl.Collected(looped(produce).outputs['text'])}"), "args[0]", *COLLECTED, "'run_id'"),
    (used(lambda _: f"{after_its_loop([1], str)}"), "loop", "items", "'trainer'", "Use"),
    (used(lambda given: after_its_loop(given.named, lambda item: item.a)), "named-loop-item-subvar-a", "Use"),
    (inside(item_beside_a_field_called_name), "dsl.ParallelFor", "'name'", "'trainer'"),
    (inside(field_called_name), "'--x=named-loop-item'", "'trainer'", "full_name", "Rename"),
    (used(lambda _: f"{make_artifact().outputs['data']}"), "'make-artifact-data'", "'trainer'", "Pass"),
    (used(lambda given: f"$$ {given.lr}"), "'$$'", *SPLIT),
    (used(lambda given: f"{{{given.lr}}}"), "'{{'", *SPLIT),
    (used(lambda given: f"\x7f{given.lr}"), "'\\x7f'", *SPLIT),
    (used(lambda _: "a", env=lambda given: {"A$(HOME)": f"{given.lr}"}), "env['A$(HOME)']", "'$('", *SPLIT),
    (inside(lambda given: tracked(tracker_base="{" + f"{given.text}")), "tracker_base", "'{{'", "channel", "Split"),
    (inside(lambda given: tracked(trackers={"a": f"$${given.text}"})), "trackers['a']", "'$$'", "channel", "Split"),
    (used(lambda _: f"--name={dsl.PIPELINE_JOB_NAME_PLACEHOLDER}"), "{{$.pipeline_job_name}}", "'trainer'"),
    (used(lambda _: MADE_ELSEWHERE[0].outputs["text"]), "'text'", "'produce'", "'trainer'", "Pass"),
    (used(lambda _: f"--model={produce()}"), "reads=task", "outputs", "--model", "PipelineTask", "'trainer'"),
    (used(lambda given: f"{given.lr > 0}"), "dsl.If", "comparison", "'trainer'"),
    (
        inside(lambda given: task_from_app(make_app(), name=f"stage-{given.lr}")),
        "name is a pipeline channel",
        "compiled",
    ),
    (used(lambda _: "{{channel:task=nowhere;name=x;type=String;}}"), "channel:task=nowhere;", "'trainer'", "Use"),
    *(
        (lambda make=make: make(static_channels()[0]), "task_from_app", "'trainer'", "AppDefs")
        for make in (component_from_app, component_spec_from_app)
    ),
    (inside(lambda given: component_from_app(make_app(args=[f"{given.lr}"]))), "'lr_float'", "task_from_app"),
    (
        inside(lambda given: component_from_app(make_app(), tracked=True, trackers={"mlflow": f"{given.text}"})),
        *("'text'", "channel", "task_from_app"),
    ),
    (
        inside(lambda given: component_from_function(utils.touch, file=f"{given.text}")),
        "contains the pipeline channel",
    ),
    *(
        (used(lambda _: "a", **{field: make}), field, word, "'trainer'")
        for field, word, make in [
            ("num_replicas", "'use'", lambda given: given.n),
            ("max_retries", "channel", lambda given: given.n),
            ("port_map", "channel", lambda given: {"http": given.n}),
            ("mounts", "channel", lambda given: [VolumeMount(f"{given.n}", "/x")]),
            ("metadata", "pipeline", lambda given: {"a": [f"{given.n}"]}),
            ("env", "channel", lambda given: {f"{given.n}": "x"}),
        ]
    ),
    (
        used(lambda _: "a", resource=lambda given: Resource(cpu=given.n, gpu=0, memMB=100)),
        *("set_cpu_limit(channel)", "set_memory_limit", "'trainer'"),
    ),
    (
        used(lambda _: "a", mounts=lambda given: [VolumeMount(f"{given.text}", "/x")]),
        "mount_pvc(task, pvc_name=channel, mount_path=...)",
    ),
    (inside(lambda given: task_from_app(make_app(f"train-{given.n}"))), "AppDef.name", "channel"),
    (inside(lambda given: task_from_app(make_app(role=f"{given.n}"))), "role", "pipeline", "'train'"),
    (
        inside(lambda given: artifact_from_uri(f"{given.text}/model")),
        *("uri is '{{channel:task=;name=text;type=String;}}/model'", "the whole URI", "Give"),
    ),
    (inside(lambda given: artifact_from_uri(given.n)), "NUMBER_INTEGER", "name=n;"),
    (inside(lambda _: artifact_from_uri("")), "''", "URI", "'s3://models/7'"),
    (used(lambda _: produce() and MADE_ELSEWHERE[0].outputs["text"]), "'produce'", "a task of another pipeline"),
]

RESERVED = "already has", "Rename"
ITSELF = "Pass the task itself: reads=task.", "alias", "reads={'train': ...}", "execution id"
BOTH = component_from_app, component_spec_from_app
READS: list[Row] = [
    (reading(lambda _: [tracked(), tracked()]), "'train'", "reads={'train_1'", "other_task", "'train_2'"),
    (reading(lambda _: task_from_app(make_app())), "'train'", "'run_id'", "task_from_app", "tracker_base", "Give"),
    (inside(lambda _: task_from_app(make_app(), may_fail=True)), "may_fail", "tracker base", "task_from_app"),
    (reading(lambda _: {"x": foreign()}), "reads['x']", "'foreign'", "'run_id'", "tracker_base", "channels"),
    (reading(lambda _: {"x": foreign().outputs["accuracy"]}), "reads['x']", "'foreign-accuracy'", "NUMBER_DOUBLE"),
    (
        reading(lambda _: {"x": dsl.Collected(looped(foreign).outputs["accuracy"])}),
        *("'foreign-accuracy'", "NUMBER_DOUBLE", "dsl.Collected(task.outputs['run_id'])", "'x'"),
    ),
    (reading(lambda given: given.text), "the channel 'text'", *ITSELF),
    (reading(lambda _: foreign().outputs["accuracy"]), "the channel 'foreign-accuracy'", *ITSELF),
    (reading(lambda _: inner(base="/b")), "'inner'", "'run_id'", "nested pipeline", "reads={'inner': task.output}"),
    (reading(lambda _: ["run/train/1"]), "'run/train/1'", *ITSELF),
    (reading(lambda _: {"x": 3}), "reads['x']", "(int)", "dsl.Collected"),
    (reading(lambda given: {"x": f"{given.text}/train/1"}), "channel", "'x'", "Pass"),
    (reading(lambda _: {"x": 'a"b'}), "reads['x']", "'a\"b'", "'run/stage/execution'"),
    (reading(lambda _: {"t": "train"}), "reads['t']", "'train'", "not an execution id", "task", "reads=train"),
    (
        reading(lambda _: {"x": dsl.PIPELINE_JOB_ID_PLACEHOLDER}),
        "reads['x']",
        "'{{$.pipeline_job_uuid}}'",
        "not an execution id",
    ),
    (
        reading(lambda _: {"x": make_artifact().outputs["data"]}),
        "reads['x']",
        "ARTIFACT",
        "not an execution id",
        "Give a task",
    ),
    (reading(lambda _: {"": "a/b/c"}), "''", "'train'", "alias"),
    (reading(lambda given: {f"{given.text}": "a/b/c"}), "'{{channel", "alias", "'train'"),
    (reading(lambda given: {"x": [given.items]}), "list", "fan-in", "'x'"),
    *(
        (call, *("Stages(tracker_base=...).task(app, reads=...)", "task_from_app(app, tracker_base=..., reads=...)"))
        for call in (
            inside(lambda _: task_from_app(make_app(), reads={"x": "a/b/c"})),
            inside(lambda _: Stages().task(make_app(), reads=Stages().task(make_app("first")))),
        )
    ),
    *(
        (
            call,
            "trackers needs a tracker base",
            "Stages(tracker_base=...)",
            "component_from_app(app, tracked=True, trackers",
        )
        for call in (
            inside(lambda _: task_from_app(make_app(), trackers={"mlflow": None})),
            lambda: component_from_app(make_app(), trackers={"mlflow": None}),
        )
    ),
    (inside(lambda _: tracked(tracker_base="")), "tracker_base", "''", "directory", "Use"),
    (inside(lambda _: tracked(tracker_base="s3:/bucket")), "tracker_base", "'s3:/bucket'", "'s3://bucket'"),
    (inside(lambda given: tracked(tracker_base=given.n)), "tracker_base", "'n'", "NUMBER_INTEGER"),
    (inside(lambda _: tracked(tracker_base="s3://$(BUCKET)/x")), "tracker_base", "'s3://$(BUCKET)/x'", "'$('"),
    *(
        (lambda make=make, reads=reads: make(make_app(), reads=reads), *facts)
        for make in BOTH
        for reads, *facts in [
            ("train", "reads=['train']", "component", "list"),
            (["tracker_base"], "'tracker_base'", "alias", "input", "'run_id'"),
            (["run_id"], "'tracker_base'", "'run_id'", "'self'"),
            (None, "None", "component", "list", "reads="),
            (["my-train"], "'my-train'", "alias", "input"),
            (["a", "a"], "the alias 'a'", "unique Python identifiers"),
            ([""], "the alias ''"),
        ]
    ),
    (lambda: component_from_app(apps(role()), engine="job", reads=["task_config"]), "'task_config'", *RESERVED),
    (lambda: component_from_app(make_app(), reads=["metrics"], results={}), "the alias 'metrics'", *RESERVED),
    *(
        (lambda make=make: make(Stages(tracker_base="s3://b/r")), "component(tracker_base=...)", "'s3://b/r'")
        for make in (
            lambda stages: stages.component(make_app()),
            lambda stages: stages.component_from_function(utils.booth, image="i"),
        )
    ),
    *(
        (
            inside(lambda _, what=what: task_from_app(make_app(), **{what: {}})),
            *(what, f"Stages(tracker_base=...).task(app, {what}=...)", "task_from_app(app, tracker_base="),
        )
        for what in ("results", "artifacts")
    ),
    (
        inside(lambda _: task_from_app(apps(role()), engine="job", results={"loss": float})),
        *("results", "tracker_base=..."),
    ),
    (
        inside(lambda given: publish_results(given.text, {}, image="i")),
        "task_from_app",
        "tracker base",
        "publish_results",
    ),
    (inside(lambda _: publish_results(task_from_app(make_app("no")), {}, image="i")), "'run_id'", "'stage'", "'no'"),
    (inside(lambda _: publish_results([tracked(), tracked()], {}, image="i")), "publish_results publishes one stage"),
    (inside(lambda _: publish_results(5, {}, image="i", tracker_base="/tmp")), "reads['stage'] is 5 (int)"),
]

EXAMPLE = "results={'accuracy'", "Write"
IMAGES = "python3", "fsspec", "components/publisher"
OUTPUTS: list[Row] = [
    *(
        (make(options), *facts)
        for make in (
            lambda options: inside(lambda _: tracked(**options)),
            lambda options: lambda: component_from_app(make_app(), **options),
        )
        for options, *facts in [
            ({"results": {"accuracy": tuple}}, "results has 'accuracy'", "'tuple'", "list or dict", *EXAMPLE),
            ({"results": {"accuracy": "float"}}, "results has 'accuracy'", "'float'", "results=", "Write"),
            ({"results": {"": float}}, "results has ''", "'accuracy'", "Write"),
            ({"results": {1: float}}, "results has 1", *EXAMPLE),
            ({"results": ["a"]}, "results is ['a']", *EXAMPLE),
            ({"artifacts": ["a"]}, "artifacts is ['a']", "artifacts={'model': dsl.Model}", "Write"),
            ({"results": {"//": float}}, "results has '//'", "Write"),
            ({"results": {"run_id": str}}, "'run_id'", "stage", "input", "Record"),
            ({"results": {"metrics": float}}, "'metrics'", "stage", "Record"),
            ({"artifacts": {"metrics": dsl.Metrics}}, "'metrics'", "artifacts", "stage", "Record"),
            ({"results": {"a/b": float, "a.b": float}}, "'a.b'", "'a/b'", "'a_b'", "'_'", "Record"),
            ({"results": {"model": str}, "artifacts": {"model": dsl.Model}}, "'model'", "'_'", "Record"),
            ({"artifacts": {"model": str}}, "artifacts has 'model'", "'str'", "artifacts={'model'", "dsl.Model"),
        ]
    ),
    (lambda: component_from_app(make_app(), reads=["p"], results={"p": float}), "'p'", "stage", "input", "Record"),
    (lambda: component_from_app(make_app(), results={"tracker_base": str}), "'tracker_base'", "input", "Record"),
    *(
        (lambda given=given: component_from_app(apps(role()), engine="job", **given), "'task_config'", "already")
        for given in ({"results": {"task_config": float}}, {"artifacts": {"task_config": dsl.Model}})
    ),
    (inside(lambda _: publish_results(tracked(), {"a": tuple}, image="i")), "results has 'a': <class 'tuple'>"),
    (inside(lambda given: artifact_from_uri("s3://m/1", metadata={"from": f"{given.text}"})), "'from'", "Give"),
]
PUBLISHERS: list[Row] = [
    (
        inside(lambda _: publish_results("a/b/c", {}, image="", tracker_base="/b")),
        "publish_results has no image",
        *IMAGES,
    ),
    (
        lambda: publish_results("a/b/c", {}, image="x", tracker_base="/b"),
        "publish_results",
        "kfp.dsl.pipeline",
        "must be called",
    ),
    (lambda: artifact_from_uri("s3://m/1"), "artifact_from_uri", "kfp.dsl.pipeline", "must be called"),
]


# Options


OPTIONS: list[Row] = [
    (inside(lambda _: component_from_app(make_app())(tracker_base="/b")), "train()", '"tracker_base"', "unexpected"),
    (inside(lambda _: component_from_app(make_app(), reads=["p"])(tracker_base="/tmp")), "train()", "required"),
]


def of(**fields: Any) -> Callable[[], object]:
    return lambda: component_from_app(make_app(**fields))


def asks(**amounts: Any) -> Callable[[], object]:
    return of(resource=Resource(**{"cpu": 1, "gpu": 0, "memMB": 100, **amounts}))


#: Values that TorchX's dataclasses take, and what the message names.
VALUES: list[Row] = [
    (
        of(entrypoint="python train.py --lr 0.1"),
        "'python train.py --lr 0.1'",
        "'python'",
        "['train.py', '--lr', '0.1']",
    ),
    (inside(lambda _: tracked(trackers={"mlfow": None})), "'mlfow'", "Did you mean 'mlflow'?", "module:function"),
    (of(args=None), "args", "None", "a list"),
    (of(env=None), "env", "None", "'NAME'"),
    (of(env={1: "a"}), "env", "the name 1"),
    (of(mounts=None), "mounts", "None"),
    (of(metadata=None), "metadata", "None"),
    (of(port_map=[80]), "port_map", "[80]", "a dict"),
    (asks(capabilities=None), "capabilities", "None", "a dict"),
    (asks(devices=["efa"]), "devices", "['efa']", "a dict"),
    (lambda: component_from_app(AppDef("a", [None])), "roles of AppDef 'a'", "[None]", "Role(...)"),
    (lambda: component_from_app(AppDef("a", "train")), "roles of AppDef 'a'", "'train'", "Role(...)"),
    (inside(lambda _: artifact_from_uri("s3://m/1", metadata={"a": {1}})), "{'a': {1}}", "JSON"),
    (inside(lambda _: artifact_from_uri("s3://m/1", "Model")), "'Model'", "dsl.Model"),
    (asks(cpu="2"), "cpu", "'2'", "number"),
    (asks(cpu=math.nan), "cpu", "nan"),
    (asks(memMB=None), "memMB", "None"),
    (of(mounts=[VolumeMount("", "/x")]), "mounts", "source"),
    (of(mounts=[VolumeMount("a", "x")]), "mounts", "absolute"),
    (of(mounts=[VolumeMount("a", "/x"), VolumeMount("b", "/x")]), "two mounts at '/x'"),
    (lambda: component_from_app(make_app(mounts=[VolumeMount("a", "/x")] * 2), engine="job"), "two mounts at '/x'"),
    (lambda: Stages(secrets="a"), "secrets is 'a'"),
    (lambda: Stages(secrets={"a": ["b"]}), "secrets['a'] is ['b']"),
    (lambda: Stages(secrets={"hub": {"token": 5}}), "'token'", "5"),
    (lambda: Stages(trackers="mlflow"), "trackers is 'mlflow'", "http://"),
    (lambda: Stages(trackers=["mlflow"]), "trackers is ['mlflow']"),
    (lambda: Stages(inputs=None), "inputs is None"),
    (lambda: engines.Job(ttl="900"), "ttl='900'"),
    (lambda: engines.Job(ttl=900.5), "ttl=900.5"),
    (lambda: engines.Job(queue=5), "queue=5", "name"),
]
REFUSED: dict[type[Exception], list[Row]] = {
    AppDefError: [
        *(*FIELDS, *SECRETS, *TRACKERS, *PUBLISHERS, *READS, *OUTPUTS, *VALUES, *CHANNELS),
        (lambda: Stages().component(make_app(), tracker_base="x"), "tracker base", "component("),
        (lambda: Stages().component_from_function(utils.booth, no=1), "no parameter 'no'"),
        (lambda: component_from_app(make_app(), tracked="no"), "tracked is 'no'", "True or False"),
        (lambda: component_from_function("utils.booth"), "'utils.booth'", "function that returns an AppDef"),
    ],
    TypeError: OPTIONS,
    UnknownNameError: [
        (inside(lambda _: component_from_app(make_app())().outputs["run_id"]), "'run_id'", "tracked=True"),
        (
            inside(lambda _: tracked(results={"accuracy": float, "n/m": int}).outputs["acuracy"]),
            *("'train'", "'acuracy'", "'metrics'", "results={'accuracy': float}", "'run_id'"),
        ),
    ],
}


@refused(REFUSED)
def test_a_refusal_shows_the_value_and_the_way_out(error: Any, call: Callable[[], object], facts: Any) -> None:
    check_refusal(error, call, facts)
