"""What engines refuse: each row is a call, and facts of the message: what is wrong, and the way out."""

# No annotations from __future__: KFP reads the annotations of pipeline functions.

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import AppDef, RetryPolicy, Role

from tests.authoring.apps import make_app
from tests.authoring.engines.apps import app, role
from tests.authoring.test_refusals import inside
from tests.refusals import Row, check_refusal, refused
from torchx_kfp import component_from_app, component_from_function, engines, task_from_app
from torchx_kfp.errors import AppDefError

pytestmark = pytest.mark.versions

Job, JobSet, TrainJob = engines.Job, engines.JobSet, engines.TrainJob


def engine(value: Any, *roles: Role, **options: Any) -> Callable[[], object]:
    """Return a call that makes a distributed component of these roles, or of one with three replicas."""
    return lambda: component_from_app(app(*(roles or [role()])), engine=value, **options)


def replicas(number: Any, *roles: Role) -> Callable[[], object]:
    return engine("jobset", *roles, replicas=number)


def counted(number: Callable[[Any], Any], *roles: Role) -> Callable[[], object]:
    """Return a call that compiles a stage whose number of replicas is made from the parameters."""
    made = app(*(roles or [role()]))
    return inside(lambda given: task_from_app(made, engine="jobset", replicas=number(given)))


def item_as_number(items: list[Any], field: str = "") -> Callable[[], object]:
    def make(_: Any) -> None:
        with dsl.ParallelFor(items) as item:
            task_from_app(app(role()), engine="job", replicas=getattr(item, field) if field else item)

    return inside(make)


def configured(task_config: str) -> AppDef:
    """Has a parameter of that name.

    Args:
        task_config: text
    """
    return app(role(args=[task_config]))


ONE = "replicas of role 'trainer'"
TWO = role("Trainer"), role("server", num_replicas=2)
A, B = role("A", max_retries=1), role("B")
B_ALONE = role("B", max_retries=1, retry_policy=RetryPolicy.REPLICA)
HINTS = "'A': 1", "'B': 0", "JobSet", "max_retries and retry_policy"
ENGINES: list[Row] = [
    (engine("jobsets"), "'jobsets'", "Did you mean 'jobset'?", "'job', 'jobset', 'trainjob'", "Job(queue='gpus')"),
    (engine("Job"), "engine is 'Job'", "Did you mean 'job'?"),
    (engine(""), "engine is ''"),
    (engine(True), "engine is True"),
    (engine(5), "engine is 5", "torchx_kfp.engines"),
    (engine(dict), "engine is <class 'dict'>"),
    (replicas(0), ONE, "0", "1 or more"),
    (replicas(4), f"{ONE} is 4", "num_replicas", "3"),
    (replicas(1, role(min_replicas=2)), f"{ONE} is 1", "min_replicas", "from 2 to 3", "j='1:3x"),
    (replicas(True), ONE, "True", "integer, 1 or more"),
    (replicas("2"), ONE, "'2'", "(str)", "integer, 1 or more"),
    (replicas(2.5), ONE, "2.5", "integer"),
    (replicas(float("nan")), ONE, "nan"),
    (replicas({"trainr": 2}), "'trainr'", "Did you mean 'trainer'?", "Its roles: 'trainer'"),
    (replicas({5: 2}), "no role 5", "Its roles: 'trainer'"),
    (replicas(2, *TWO), "replicas is 2", "2 roles", "{role: number}", "'Trainer', 'server'"),
    (replicas({"trainer": 2}, *TWO), "'trainer'", "Did you mean 'Trainer'?"),
    (replicas({"Trainer": 1, "server": 3}, *TWO), "replicas of role 'server' is 3", "2"),
    (lambda: component_from_app(make_app(), replicas=2), "replicas", "no engine", "engine='job'"),
    (counted(lambda given: given.n, *TWO), "a pipeline channel", "2 roles"),
    (counted(lambda given: [given.n]), ONE, "must be a string or a channel"),
    (lambda: JobSet(logs="some"), "JobSet", "logs='some'", "'all', 'first', 'none'"),
    (lambda: Job(ttl=899), "ttl=899", "900 or more"),
    (engine(JobSet(succeeds_with="Trainr"), *TWO), "'Trainr'", "Did you mean 'Trainer'?", "'server'"),
    (engine("jobset", A, B), *HINTS),
    (engine("jobset", A, B_ALONE), *HINTS),
    (engine("job", *TWO), "engine='job'", "one role", "2 ('Trainer', 'server')", "'jobset'"),
    (engine("job", role(mounts=["x"])), "'trainer'", "'x'", "VolumeMount("),
    (engine("trainjob", *TWO), "engine='trainjob'", "one role", "2 ('Trainer', 'server')", "'jobset'"),
    (lambda: TrainJob(runtime=""), "TrainJob", "runtime=''", "name of a runtime"),
    (lambda: TrainJob(kind="Runtime"), "TrainJob", "kind='Runtime'", "'ClusterTrainingRuntime' or 'TrainingRuntime'"),
    (lambda: TrainJob(priority_class="high"), "priority_class='high'", "runtime", "JobSet"),
    (engine("trainjob", B_ALONE), "'B'", "max_retries=1", "RetryPolicy.APPLICATION", "engine='jobset'"),
    (engine("job", role(retry_policy="replica")), "'trainer'", "'replica'", "REPLICA, APPLICATION"),
    (engine("trainjob", role(args=["x"] * 124)), "'trainer'", "125 words", "124", "'jobset'"),
    (
        engine("trainjob", role(env={f"A{number}": "x" for number in range(120)})),
        "'trainer'",
        "126 variables",
        "125",
        "'jobset'",
    ),
    (engine("trainjob", role(args=["a" * 65_537])), "'trainer'", "65,537 characters", "65,536", "'jobset'"),
    (engine("trainjob", role(args=["a\x7f"])), "'trainer'", "'\\x7f'", "'jobset'"),
    (engine("trainjob", role(env={"A": "\x85"})), "'trainer'", "'\\x85'", "'jobset'"),
    *(
        (engine("trainjob", role(metadata={"kubernetes": overlay})), "'trainer'", text, "runtime", "'jobset'")
        for overlay, text in [
            ({"metadata": {"name": "x"}}, "metadata.name"),
            ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
            ({"spec": {"restartPolicy": "OnFailure"}}, "spec.restartPolicy"),
            ({"spec": {"containers": [{"name": "other"}]}}, "spec.containers[1]"),
            (
                {"spec": {"containers": ({"name": "trainer", "imagePullPolicy": "Always"},)}},
                "containers[0].imagePullPolicy",
            ),
        ]
    ),
    (lambda: component_from_function(configured, engine="job"), "the parameter 'task_config'", "already has", "Rename"),
    *(
        (engine("job", role(metadata={"kubernetes": overlay})), "metadata['kubernetes']", "'trainer'", text)
        for overlay, text in [
            ([{"spec": {}}], "[{'spec': {}}]"),
            ({"VCJob": {"spec": {}}}, "{'VCJob': {'spec': {}}}"),
            ({"V1Pod": {}, "V1Job": {}}, "'V1Job'"),
            ({"V1Pod": ["spec"]}, "['spec']"),
            ({"metadata": None}, "{'metadata': None}"),
            ({"metadata": {"labels": {"torchx-kfp/stage": "x"}}}, "{'torchx-kfp/stage': 'x'}"),
            ({"spec": {"containers": None}}, "{'containers': None}"),
            ({"spec": None}, "{'spec': None}"),
            ({"spec": {"x": object}}, "JSON"),
            ({"spec": {"x": float("nan")}}, "JSON"),
        ]
    ),
]
OPTION: dict[str, Callable[[Any], Any]] = {
    "succeeds_with": lambda n: [n],
}
ENGINE_CHANNELS: list[Row] = [
    *(
        (counted(number), ONE, "integer")
        for number in [
            lambda given: given.yes,
            lambda given: given.share,
            lambda given: given.items,
            lambda given: given.table,
            lambda given: f"{given.n}0",
            lambda given: {"trainer": given.yes},
        ]
    ),
    (
        inside(lambda given: task_from_app(app(role(args=["x", f"$$${{replica_id}}/{given.text}$("])), engine="job")),
        *("args[1] of role 'trainer'", "'$('", "two arguments"),
    ),
    (item_as_number([1, 0.5]), ONE, "integer"),
    (item_as_number([{"n": 0.5}], "n"), ONE, "integer"),
    (
        inside(lambda given: component_from_app(app(role()), engine="job", replicas=given.n)),
        *("replicas", "'n_int'", "task_from_app"),
    ),
    *(
        (
            inside(lambda given, name=each.name: JobSet(**{name: OPTION.get(name, lambda n: n)(given.n)})),
            *("JobSet", each.name, "channel", "when the pipeline is compiled"),
        )
        for each in dataclasses.fields(JobSet)
    ),
]


@refused({AppDefError: [*ENGINES, *ENGINE_CHANNELS]})
def test_a_refusal_shows_the_value_and_the_way_out(error: Any, call: Callable[[], object], facts: Any) -> None:
    check_refusal(error, call, facts)
