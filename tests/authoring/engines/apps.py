"""Distributed applications, and what a pipeline that runs one says of it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx.specs import AppDef, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount

from tests.authoring.apps import compile_pipeline, load
from torchx_kfp import engines, task_from_app

EFA = "vpc.amazonaws.com/efa"
INSTANCE = "node.kubernetes.io/instance-type"
#: An overlay without operators, which all versions of TorchX apply in the same way.
OVERLAY = {
    "metadata": {"annotations": {"team": "vision"}},
    "spec": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    },
}


def app(*roles: Role, name: str = "train") -> AppDef:
    """Return an AppDef with these roles."""
    return AppDef(name, list(roles))


def role(name: str = "trainer", **fields: Any) -> Role:
    """Return a role with three replicas and these fields."""
    return Role(name, **{"image": "app:1", "entrypoint": "python3", "num_replicas": 3, **fields})


@dataclass(frozen=True)
class Distributed:
    """A distributed stage of a compiled pipeline: its task, and the launcher's input."""

    image: str
    spec: dict[str, Any]
    words: list[str]
    task: dict[str, Any] = field(default_factory=dict)
    component: dict[str, Any] = field(default_factory=dict)
    platform: dict[str, Any] = field(default_factory=dict)

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the engine's object, with markers for the launcher."""
        manifest: dict[str, Any] = self.spec["object"]
        return manifest

    def pods(self) -> list[dict[str, Any]]:
        """Return the template of each role's pods."""
        return [one["pod"] for one in self.spec["roles"]]


def distributed(make: Callable[..., AppDef] | AppDef, engine: Any = "job", **options: Any) -> Distributed:
    """Compile a pipeline with one distributed stage.

    Args:
        make: the application, or a function that makes it from the channels ``lr`` (float), ``image`` (str) and ``n``
            (int).
        engine: the engine.
        options: further options of ``task_from_app``; functions of ``n`` make those that are channels.
    """

    def pipeline(lr: float = 0.1, image: str = "app:2", n: int = 2) -> None:
        made = make if isinstance(make, AppDef) else make(lr, image, n)
        called = {name: option(n) if callable(option) else option for name, option in options.items()}
        task_from_app(made, engine=engine, **called)

    return found_in(compile_pipeline(pipeline))


def found_in(compiled: str) -> Distributed:
    """Return the only stage of a compiled pipeline, which is a distributed one."""
    spec, platform = load(compiled)
    (executor,) = spec["deploymentSpec"]["executors"].values()
    (task,) = spec["root"]["dag"]["tasks"].values()
    (component,) = spec["components"].values()
    command = executor["container"]["command"]
    place = command.index("{{$}}")
    text, words = command[place - 1], command[place + 1 :]
    return Distributed(
        executor["container"]["image"], json.loads(text), words, task, component, *(platform.values() or [{}])
    )


def _every_field(*_: Any) -> AppDef:
    return app(
        role(
            min_replicas=2,
            args=["-m", "train", "--index=${replica_id}", "$${${rank0_env}:=localhost}", "a $$ $(HOME) {{b}} é"],
            env={"MODE": "fast", "ME": "replica ${replica_id}", "APP": "${app_id}"},
            max_retries=2,
            resource=Resource(cpu=4, gpu=2, memMB=8000, devices={EFA: 1}, capabilities={INSTANCE: "p5"}),
            port_map={"c10d": 29500, "My Metrics!": 9090, "8080": 8080},
            metadata={"kubernetes": OVERLAY},
            mounts=[
                VolumeMount("claim", "/data"),
                VolumeMount("shared", "/shared", read_only=True),
                BindMount("/mnt/fast", "/fast"),
                BindMount("/etc/keys", "/keys", read_only=True),
                DeviceMount("/dev/fuse", "/dev/fuse"),
                DeviceMount("/dev/null", "/dev/zero", permissions="r"),
            ],
        )
    )


def _ddp(*_: Any) -> AppDef:
    """Return an application as ``dist.ddp`` of TorchX 0.7.0 makes it."""
    program = "torchrun --rdzv_backend c10d --rdzv_endpoint $${${rank0_env}:=localhost}:29500 --rdzv_id '${app_id}'"
    arguments = ["-c", f"{program} --nnodes 2 --nproc_per_node 4 --tee 3 --role '' train.py --lr 0.1"]
    env = {"LOGLEVEL": "WARNING", "TORCHX_TRACKING_EXPERIMENT_NAME": "default-experiment"}
    resource = Resource(cpu=2, gpu=4, memMB=8000)
    fields: dict[str, Any] = {"entrypoint": "bash", "num_replicas": 2, "port_map": {"c10d": 29500}}
    return app(role("train", args=arguments, env=env, resource=resource, **fields))


def _channels(lr: Any, image: Any, n: Any) -> AppDef:
    made = role(image=f"{image}", args=["--lr", f"{lr}", "--seed=${replica_id}"], env={"RATE": f"x{lr}"})
    return app(made, name="tuned")


def _several(lr: Any, image: Any, n: Any) -> AppDef:
    resource = Resource(cpu=1, gpu=0, memMB=500)
    return app(
        role("Trainer", args=["train.py"], num_replicas=4, resource=Resource(cpu=8, gpu=1, memMB=4000)),
        role("parameter-server-of-the-team", image="ps:3", entrypoint="serve", num_replicas=2, resource=resource),
        role("読者", image=f"{image}", args=["read", f"{lr}"], num_replicas=1, env={"N": "${replica_id}"}),
        name="Actors & learners",
    )


@dataclass(frozen=True)
class Case:
    """An application, the engines that run it, and its options."""

    make: Callable[..., AppDef]
    engines: tuple[str, ...] = tuple(engines.ENGINES)
    options: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)


#: The options that all engines take, and those of a Job and a JobSet.
OPTIONS: Mapping[str, Any] = {
    "queue": "gpus",
    "service_account": "trainer",
    "launcher_image": "python:3.12-slim",
    "logs": "first",
}
OF_JOBS: Mapping[str, Any] = {**OPTIONS, "priority_class": "high", "ttl": 3600}

CASES: Mapping[str, Case] = {
    "one-role": Case(lambda *_: app(role(args=["train.py"]))),
    "one-replica": Case(lambda *_: app(role(num_replicas=1))),
    "ddp": Case(_ddp),
    "every-field": Case(_every_field),
    "options": Case(lambda *_: app(role()), engines=("job", "jobset"), engine=OF_JOBS),
    "runtime": Case(
        lambda *_: app(role()),
        engines=("trainjob",),
        engine={**OPTIONS, "runtime": "torch-of-the-team", "kind": "TrainingRuntime"},
    ),
    "long-names": Case(lambda *_: app(role("Parameter Server " * 5, num_replicas=100_000), name="1. Training " * 7)),
    "secrets": Case(
        lambda *_: app(role(env={"A": "b"})),
        options={"secrets": {"s3": {"id": "AWS_ACCESS_KEY_ID", "key": "AWS_SECRET_ACCESS_KEY"}, "hub": {"t": "TOKEN"}}},
    ),
    "channels": Case(_channels, options={"replicas": lambda n: n}),
    "replica-retries": Case(
        lambda *_: app(role(max_retries=3, retry_policy=RetryPolicy.REPLICA)), engines=("job", "jobset")
    ),
    "several-roles": Case(_several, engines=("jobset",), options={"replicas": lambda n: {"Trainer": n}}),
    "a-server-that-never-ends": Case(
        lambda *_: app(role("Trainer"), role("server", num_replicas=1)),
        engines=("jobset",),
        engine={"succeeds_with": "Trainer"},
    ),
}


def engine_of(case: Case, engine: str) -> Any:
    """Return the engine of a case."""
    kind: Any = engines.ENGINES[engine]
    return kind(**case.engine)
