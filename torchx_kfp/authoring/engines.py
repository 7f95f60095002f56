"""Engines that run the replicas of a distributed stage on the cluster: ``Job``, ``JobSet`` and ``TrainJob``.

A stage with several replicas or roles is more than the one pod of a KFP task. With ``engine=``, the stage's pod is a
launcher (``torchx_kfp.contract.carried.launcher``), which creates one object of the engine, follows it, and deletes
it::

    from torchx_kfp import engines

    stages.task(dist.ddp(script="train.py", j="4x8"), engine=engines.Job(queue="gpus"))

An engine is pure data: its options, and a function from roles to manifests.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torchx_kfp.common.text import describe_unknown, did_you_mean
from torchx_kfp.contract.specification import DEFAULT_TTL, QUEUE_LABEL
from torchx_kfp.errors import AppDefError

if TYPE_CHECKING:  # `torchx_kfp.engines` is imported without TorchX
    from torchx import specs

__all__ = ["ENGINES", "Engine", "Job", "JobSet", "TrainJob", "named_engine"]

#: A JSON object for the launcher's ``fill``.
Manifest = dict[str, Any]
Logs = Literal["all", "first", "none"]

_LOGS = ("all", "first", "none")
#: The job and the container of a training runtime that run the replicas, and the kinds of runtimes.
_NODE = "node"
_RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_IN_RUNTIME = "Put it into the runtime"
#: Trainer makes the JobSet by a request in YAML, whose text cannot have these characters. It takes 128 variables, and
#: 128 words of this many characters; the launcher adds three variables and four words.
_NOT_YAML = re.compile("[\x7f-\x9f\ufffe\uffff]")
_MOST_VARIABLES, _MOST_WORDS, _LONGEST_WORD = 125, 124, 65_536
#: The fields of a pod and its container that a TrainJob's patches can change.
_OF_METADATA = ("labels", "annotations")
_OF_POD = (
    "serviceAccountName", "volumes", "imagePullSecrets", "securityContext", "nodeSelector", "affinity", "tolerations",
    "schedulingGates",
)  # fmt: skip
_OF_CONTAINER = ("volumeMounts", "securityContext")
#: The lowest ``ttl``: an object that has vanished before the launcher has seen its success would be made again. The
#: launcher waits for the API server for 10 minutes.
_SHORTEST_TTL = 900
#: The labels by which the launcher finds the pods of its object, and their roles.
STAGE_LABEL = "torchx-kfp/stage"
ROLE_LABEL = "torchx-kfp/role"


@dataclass(frozen=True)
class Engine(ABC):
    """The options that all engines have.

    Attributes:
        queue: the LocalQueue of Kueue that admits the object.
        priority_class: the PriorityClass of the replicas.
        service_account: the service account of the replicas. The default is the one with which the stage runs.
        launcher_image: the image of the launcher. It needs python3 (3.8 or newer); with results or artifacts, also
            fsspec. The default is the first role's image.
        logs: the replicas whose output goes to the stage's log: ``"all"``, the ``"first"``, or ``"none"``.
    """

    NAME: ClassVar[str]
    #: The requirements of the cluster, for messages.
    NEEDS: ClassVar[str]
    #: The API version, kind and resource of the object that the launcher creates.
    OBJECT: ClassVar[tuple[str, str, str]]
    #: The API groups and resources of what the object owns.
    COMPANIONS: ClassVar[Sequence[tuple[str, str]]] = ()
    #: The condition of an object that has succeeded. A failed one has ``Failed``.
    SUCCEEDED: ClassVar[str]
    #: Fields of the pods that are the engine's.
    POD: ClassVar[Mapping[str, Any]] = {}
    #: The host of replica 0 of the first role, as a format.
    HOST: ClassVar[str]
    #: Whether KFP's stock service account has the permissions that the launcher needs.
    STOCK_RIGHTS: ClassVar[bool] = False
    #: How the engine treats fields, by the classes of TorchX that have them, where that differs from engine to engine.
    FIELDS: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    queue: str | None = None
    priority_class: str | None = None
    service_account: str | None = None
    launcher_image: str | None = None
    logs: Logs = "all"

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            # Text of kfp: this module is imported without it.
            if "{{channel:" in f"{value}":
                raise AppDefError(
                    f"{option.name} of {type(self).__name__} is or contains a pipeline channel. It must be known "
                    "when the pipeline is compiled: give a constant."
                )
            if option.type == "str | None" and not isinstance(value, str | None):
                raise self._error(f"{option.name}={value!r}. Give a name")
        if self.logs not in _LOGS:
            raise self._error(f"logs={self.logs!r}. Give {', '.join(map(repr, _LOGS))}")
        ttl = getattr(self, "ttl", _SHORTEST_TTL)
        if type(ttl) is not int or ttl < _SHORTEST_TTL:
            raise self._error(f"ttl={ttl!r}. Give seconds, {_SHORTEST_TTL} or more")

    def workload(self, roles: Mapping[str, specs.Role], pods: Sequence[Manifest]) -> dict[str, Any]:
        """Return the engine's part of the ``LauncherSpec``: the object, and how to follow it.

        Args:
            roles: the roles by their names in Kubernetes: DNS labels, which name replicas in logs.
            pods: the template of each role's pods.

        Raises:
            AppDefError: the engine cannot run these roles.
        """
        success, retries = self._success(roles), _retries(self, roles)
        spec, more = self._spec(roles, pods, success)
        version, kind, resource = self.OBJECT
        own = _metadata({QUEUE_LABEL: self.queue})
        return {
            "api": f"apis/{version}",
            "plural": resource,
            "object": {"apiVersion": version, "kind": kind, "metadata": own, "spec": spec},
            "succeeded": self.SUCCEEDED,
            "host": self.HOST % {"name": "%(name)s", "role": next(iter(roles))},
            "retries": retries,
            "success": success,
            **more,
        }

    @abstractmethod
    def _spec(
        self, roles: Mapping[str, specs.Role], pods: Sequence[Manifest], success: Sequence[str]
    ) -> tuple[Manifest, Mapping[str, Any]]:
        """Return the spec of the object, and other fields of the ``LauncherSpec``.

        ``success`` names the roles that must succeed.
        """

    def _success(self, roles: Mapping[str, specs.Role]) -> list[str]:
        known = {role.name: name for name, role in roles.items()}
        names = getattr(self, "succeeds_with", ())
        given = dict.fromkeys([names] if isinstance(names, str) else names)
        for name in given:
            if name not in known:
                owner = f"{type(self).__name__} has succeeds_with={names!r}, but the AppDef"
                raise AppDefError(describe_unknown(owner, "role", name, known))
        return [known[name] for name in given or known]

    def check_text(  # noqa: B027 (optional to override)
        self, role: specs.Role, words: Sequence[str], values: Iterable[str], variables: int
    ) -> None:
        """Reject text of a role's command line and variables that the engine cannot pass on; most pass on all of it.

        Args:
            role: the role.
            words: its command line, without text that is known only at run time.
            values: those of its variables, likewise.
            variables: the number of all its variables, with those of the stage and of secrets.
        """

    def _only_role(self, roles: Mapping[str, specs.Role]) -> specs.Role:
        if len(roles) > 1:
            names = ", ".join(repr(role.name) for role in roles.values())
            raise AppDefError(
                f"engine={self.NAME!r} runs one role, but the AppDef has {len(roles)} ({names}). Use engine='jobset', "
                "which runs several."
            )
        return next(iter(roles.values()))

    def _error(self, what: str) -> AppDefError:
        return AppDefError(f"{type(self).__name__} has {what}.")


def marker(name: str) -> Manifest:
    """Return an object that the launcher replaces with a value: see ``fill`` in ``carried.replica_roles``."""
    return {"@": name}


def restarts_alone(role: specs.Role) -> int:
    """Return how often the engine restarts a failed replica of the role."""
    return int(role.max_retries) if role.retry_policy == "REPLICA" else 0


def _retries(engine: Engine, roles: Mapping[str, specs.Role]) -> int:
    """Return how often the launcher replaces a failed object."""
    counts = {role.name: int(role.max_retries) - restarts_alone(role) for role in roles.values()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name!r}: {count}" for name, count in counts.items())
        raise AppDefError(
            f"The roles differ in how often all of them restart ({told}), "
            f"but {type(engine).__name__} has one number. Give all roles the same max_retries and retry_policy."
        )
    return next(iter(counts.values()))


def _metadata(labels: Mapping[str, str | None]) -> Manifest:
    """Return the metadata of the engine's object; empty labels are omitted."""
    own = {"app.kubernetes.io/managed-by": "torchx-kfp", STAGE_LABEL: marker("name")}
    given = {key: value for key, value in labels.items() if value}
    return {"name": marker("name"), "labels": {**own, **given}, "annotations": {}}


def _indexed_job(role: specs.Role, position: int) -> Manifest:
    """Return the spec of a Job whose pods are the role's replicas.

    A replica is replaced only after its end: two running pods would share its name.
    """
    return {
        "podReplacementPolicy": "Failed",
        "completionMode": "Indexed",
        "completions": marker(f"{position}.replicas"),
        "parallelism": marker(f"{position}.replicas"),
        "backoffLimit": restarts_alone(role),
        "template": marker(f"{position}.pod"),
    }


@dataclass(frozen=True)
class Job(Engine):
    """An Indexed Job of Kubernetes. It runs one role.

    Attributes:
        ttl: the seconds for which the Job is kept after it has succeeded, at least 900. A failed one is deleted when
            its logs have been read.

    Replicas are scheduled one by one, unless Kueue admits them together. If a replica fails, the Job fails; with
    ``RetryPolicy.REPLICA``, it starts up to ``max_retries`` failed replicas again. With ``RetryPolicy.APPLICATION``,
    the stage creates another Job when one has failed.
    """

    NAME: ClassVar[str] = "job"
    NEEDS: ClassVar[str] = "Kubernetes 1.24 or newer"
    OBJECT: ClassVar[tuple[str, str, str]] = ("batch/v1", "Job", "jobs")
    SUCCEEDED: ClassVar[str] = "Complete"
    HOST: ClassVar[str] = "%(name)s-0.%(name)s"
    COMPANIONS: ClassVar[Sequence[tuple[str, str]]] = (("", "services"),)
    POD: ClassVar[Mapping[str, Any]] = {"subdomain": {"@": "name"}}
    STOCK_RIGHTS: ClassVar[bool] = True
    FIELDS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "AppDef": {"roles": "rejected unless it is one: the pods of a Job are of one kind"},
        "Role": {
            "max_retries": "mapped: the stage makes the Job again; with REPLICA, the Job's backoffLimit",
        },
    }

    ttl: int = DEFAULT_TTL

    def _spec(
        self, roles: Mapping[str, specs.Role], pods: Sequence[Manifest], success: Sequence[str]
    ) -> tuple[Manifest, Mapping[str, Any]]:
        role = self._only_role(roles)
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata({}),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {STAGE_LABEL: marker("name")},
            },
        }
        spec = {**_indexed_job(role, 0), "ttlSecondsAfterFinished": self.ttl}
        return spec, {"companions": [("api/v1", "services", service)]}


@dataclass(frozen=True)
class JobSet(Engine):
    """A JobSet, with one Indexed Job for each role.

    Attributes:
        ttl: the seconds for which the JobSet is kept after it has succeeded, as for ``Job``.
        succeeds_with: the roles that must succeed; then the others, such as a parameter server, are stopped. The
            default is all.

    With ``RetryPolicy.APPLICATION``, the stage makes another JobSet after a failed one, up to ``max_retries`` times: a
    restart by the JobSet itself would keep the execution id, and mix what both attempts record. With
    ``RetryPolicy.REPLICA``, only the failed replica is started again.
    """

    NAME: ClassVar[str] = "jobset"
    NEEDS: ClassVar[str] = "the JobSet controller (Kubeflow Trainer brings it)"
    OBJECT: ClassVar[tuple[str, str, str]] = ("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
    #: JobSets of all versions have this condition; `terminalState` came later.
    SUCCEEDED: ClassVar[str] = "Completed"
    HOST: ClassVar[str] = "%(name)s-%(role)s-0-0.%(name)s"
    FIELDS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "Role": {
            "max_retries": "mapped: another JobSet; with REPLICA, the Jobs' backoffLimit",
        },
    }

    ttl: int = DEFAULT_TTL
    succeeds_with: Sequence[str] = ()

    def _spec(
        self, roles: Mapping[str, specs.Role], pods: Sequence[Manifest], success: Sequence[str]
    ) -> tuple[Manifest, Mapping[str, Any]]:
        jobs = [
            {"name": name, "replicas": 1, "template": {"spec": _indexed_job(role, position)}}
            for position, (name, role) in enumerate(roles.items())
        ]
        spec: Manifest = {
            "network": {"enableDNSHostnames": True, "subdomain": marker("name"), "publishNotReadyAddresses": True},
            "replicatedJobs": jobs,
            "ttlSecondsAfterFinished": self.ttl,
        }
        if len(success) < len(roles):
            spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": success}
        return spec, {}


@dataclass(frozen=True)
class TrainJob(Engine):
    """A TrainJob of Kubeflow Trainer 2.2 or newer, which runs one role under a training runtime of the platform.

    Attributes:
        runtime: the name of the runtime. Its trainer must be the job ``node`` with the container ``node``, as in
            Trainer's own ``torch-distributed``.
        kind: ``"ClusterTrainingRuntime"``, or ``"TrainingRuntime"`` for one of the stage's namespace.

    The role's image, command, variables, resources, volumes and scheduling replace those of the runtime. Everything
    else is the runtime's, such as the scheduler that starts all replicas together and the PriorityClass; with Trainer
    2.3, also the amounts of resources that the role does not ask for. The first replica that fails ends the stage,
    whatever restarts the runtime has; then the stage creates another TrainJob, up to ``max_retries`` times. The
    TrainJob is deleted with the run's Workflow.
    """

    NAME: ClassVar[str] = "trainjob"
    NEEDS: ClassVar[str] = "Kubeflow Trainer 2.2 or newer"
    OBJECT: ClassVar[tuple[str, str, str]] = ("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs")
    SUCCEEDED: ClassVar[str] = "Complete"
    HOST: ClassVar[str] = "%(name)s-node-0-0.%(name)s"
    FIELDS: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "AppDef": {"roles": "rejected unless it is one: a TrainJob has one trainer"},
        "Role": {
            "args": "mapped: up to 123 words, of the characters that YAML has",
            "env": "mapped: up to 125 variables, with those of the stage, of the characters that YAML has",
            "port_map": "mapped: on one machine, stages with the same port take turns. A TrainJob has no ports",
            "max_retries": "mapped: another TrainJob",
            "retry_policy": "rejected if it is REPLICA and there are retries: the first replica that fails ends a "
            "TrainJob. Every other policy starts all replicas again",
            "metadata": "mapped: `kubernetes` is applied to the pods; what a TrainJob cannot set is rejected",
        },
    }

    runtime: str = "torch-distributed"
    kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.runtime, str) or not self.runtime:
            raise self._error(f"runtime={self.runtime!r}. Give the name of a runtime")
        if self.kind not in _RUNTIMES:
            raise self._error(f"kind={self.kind!r}. Give {' or '.join(map(repr, _RUNTIMES))}")
        if self.priority_class:
            raise self._error(
                f"priority_class={self.priority_class!r}, which a TrainJob cannot set. {_IN_RUNTIME}, or use "
                "engine=JobSet(...)"
            )

    def _spec(
        self, roles: Mapping[str, specs.Role], pods: Sequence[Manifest], success: Sequence[str]
    ) -> tuple[Manifest, Mapping[str, Any]]:
        role = self._only_role(roles)
        if restarts_alone(role):
            raise AppDefError(
                f"role {role.name!r} has max_retries={role.max_retries} with RetryPolicy.REPLICA, but the first "
                "replica that fails ends a TrainJob. Use RetryPolicy.APPLICATION, or engine='jobset'."
            )
        if lost := list(_not_patchable(pods[0])):
            raise AppDefError(
                f"metadata['kubernetes'] of role {role.name!r} sets {', '.join(lost)}, which a TrainJob cannot set. "
                f"{_IN_RUNTIME}, or use engine='jobset'."
            )

        def of_pod(path: str) -> Manifest:
            return marker(f"0.pod.{path}")

        container = {"name": _NODE, **{field: of_pod(f"spec.containers.0.{field}") for field in _OF_CONTAINER}}
        pod = {"containers": [container], **{field: of_pod(f"spec.{field}") for field in _OF_POD}}
        metadata = {field: of_pod(f"metadata.{field}") for field in _OF_METADATA}
        node = {"name": _NODE, "template": {"spec": {"template": {"metadata": metadata, "spec": pod}}}}
        spec = {
            "runtimeRef": {"name": self.runtime, "kind": self.kind},
            "trainer": {
                "numNodes": marker("0.replicas"),
                "resourcesPerNode": of_pod("spec.containers.0.resources"),
                **{field: of_pod(f"spec.containers.0.{field}") for field in ("image", "command", "env")},
            },
            "runtimePatches": [
                {
                    "manager": "torchx-kfp/stage",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}},
                }
            ],
        }
        return spec, {"container": _NODE, "ends": True}

    def check_text(self, role: specs.Role, words: Sequence[str], values: Iterable[str], variables: int) -> None:
        if variables > _MOST_VARIABLES:
            raise AppDefError(
                f"Role {role.name!r} has {variables} variables, with those of the stage, but a TrainJob takes "
                f"{_MOST_VARIABLES}. Pass some in a file, or use engine='jobset'."
            )
        if len(words) > _MOST_WORDS:
            raise AppDefError(
                f"The command of role {role.name!r} has {len(words)} words, but a TrainJob takes {_MOST_WORDS}. Pass "
                "arguments in a file, or use engine='jobset'."
            )
        for word in words:
            if len(word) > _LONGEST_WORD:
                raise AppDefError(
                    f"args of role {role.name!r} have a word of {len(word):,} characters, but a TrainJob of "
                    f"Kubeflow Trainer 2.2 takes {_LONGEST_WORD:,}. Pass the text in a file, or use engine='jobset'."
                )
        for text in (*words, *values):
            if found := _NOT_YAML.search(text):
                raise AppDefError(
                    f"args or env of role {role.name!r} has the character {found[0]!r}, which Kubeflow Trainer cannot "
                    "pass on. Use engine='jobset'."
                )


def _not_patchable(pod: Manifest) -> Iterator[str]:
    """Yield the fields of a role's pod that the overlay sets and a TrainJob does not support."""
    (container, *more), spec = pod["spec"]["containers"], pod["spec"]
    yield from (f"metadata.{field}" for field in pod["metadata"].keys() - _OF_METADATA)
    # The engine's own: replicas of a TrainJob end with their first failure.
    own = {"containers", *({"restartPolicy"} if spec.get("restartPolicy") == "Never" else ())}
    yield from (f"spec.{field}" for field in spec.keys() - {*_OF_POD, *own})
    kept = {"name", "image", "command", "env", "resources", "ports", *_OF_CONTAINER}
    yield from (f"spec.containers[0].{field}" for field in container.keys() - kept)
    yield from (f"spec.containers[{number}]" for number, _ in enumerate(more, 1))


#: The engines by name. A name stands for the engine with its default options.
ENGINES: Mapping[str, type[Engine]] = {kind.NAME: kind for kind in (Job, JobSet, TrainJob)}


def named_engine(engine: object) -> Engine | None:
    """Return the engine that the option ``engine`` names; None if there is none.

    Raises:
        AppDefError: it is neither an engine nor the name of one.
    """
    if engine is None or isinstance(engine, Engine):
        return engine
    if isinstance(engine, str) and engine in ENGINES:
        return ENGINES[engine]()
    raise AppDefError(
        f"engine is {engine!r}.{did_you_mean(engine, ENGINES)} Give {', '.join(map(repr, ENGINES))}, or one of "
        "torchx_kfp.engines with options, such as Job(queue='gpus')."
    )
