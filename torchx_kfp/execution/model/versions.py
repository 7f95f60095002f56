"""Differences between KFP's versions: ``CHANGES`` is the table; ``of_version`` applies it to a pipeline.

All other findings hold for each version from ``OLDEST`` to ``NEWEST``. A version is that of the host's API server,
which reads the compiled pipeline, and of the driver and the launcher that come with it. (kubeflow/pipelines, the tags
2.14.4, 2.15.0, 2.16.1 and 2.17.0; pipelines were run on 2.14.4 and 2.17.0.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchx_kfp.common.text import joined
from torchx_kfp.execution.model.findings import Finding, Kind
from torchx_kfp.execution.pipeline.placeholders import is_conditional, parameters_in
from torchx_kfp.execution.pipeline.spec import CHANNEL, Constant, Pipeline, is_volume_task
from torchx_kfp.execution.pipeline.values import defaults_of, driver_text, to_text
from torchx_kfp.execution.pipeline.walk import ScopedTask


class Version(NamedTuple):
    """A version of KFP; patches of one minor version do the same."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


#: The versions between which pipelines are checked; an unknown one is judged as the newest.
OLDEST, NEWEST = Version(2, 14), Version(2, 17)


def parse_version(text: str) -> Version | None:
    """Return the version in a text such as ``2.14.4``; None if it has none."""
    match = re.match(r"v?(\d+)\.(\d+)", text)
    return Version(int(match[1]), int(match[2])) if match else None


def address_of_store(version: Version) -> str:
    """Return the address of KFP's own store in its cluster, for S3 clients.

    On 2.15, the service ``seaweedfs`` does not have this port.
    """
    return f"http://{'seaweedfs' if version >= (2, 16) else 'minio-service'}.kubeflow:9000"


@dataclass(frozen=True)
class Checked:
    """The subject of a check: a run of a pipeline, and its tasks."""

    pipeline: Pipeline
    arguments: Mapping[str, Any]
    places: Sequence[ScopedTask]


_Finder = Callable[[Checked], Iterator[Finding]]
_Found = Iterator[tuple[Kind, str]]


@dataclass(frozen=True)
class Change:
    """A change of KFP in a version: ``before`` finds affected parts on older versions, ``after`` on others."""

    since: Version
    before: _Finder | None = None
    after: _Finder | None = None


def of_version(checked: Checked, version: Version) -> Iterator[Finding]:
    """Yield the findings that hold for this version of KFP, and not for all."""
    for change in CHANGES:
        find = change.after if version >= change.since else change.before
        if find is not None:
            yield from find(checked)


def _of_tasks(find: Callable[[ScopedTask], _Found]) -> _Finder:
    """Return a finder that looks at each task."""

    def find_all(checked: Checked) -> Iterator[Finding]:
        for place in checked.places:
            for kind, text in find(place):
                yield Finding(kind, f"task {place.path!r}", text)

    return find_all


def _words(place: ScopedTask) -> tuple[str, ...]:
    container = place.component.container
    return container.words if container is not None else ()


@_of_tasks
def _task_config(place: ScopedTask) -> _Found:
    component = place.component
    if component.handed_on or any(its.type == "TASK_CONFIG" for its in component.parameter_inputs.values()):
        yield (
            Kind.WORKS_LOCALLY,
            "takes the settings of its task (dsl.TaskConfig), and KFP before 2.15 rejects such a pipeline. Compile "
            "it with kfp 2.14: pip install 'kfp<2.15' 'kfp-kubernetes<2.15'",
        )


def _workspace(checked: Checked) -> Iterator[Finding]:
    if "workspace" in checked.pipeline.platform:
        yield Finding(
            Kind.WORKS_LOCALLY,
            "the pipeline",
            "has KFP's workspace (dsl.WorkspaceConfig), which KFP before 2.15 does not mount. Mount a volume claim in "
            "each stage (kubernetes.mount_pvc)",
        )


@_of_tasks
def _optional(place: ScopedTask) -> _Found:
    settings = place.component.platform
    if any(one.get("optional") for key in ("secretAsEnv", "configMapAsEnv") for one in settings.get(key) or ()):
        yield (
            Kind.MAY_FAIL,
            "takes variables from an optional secret or config map, without which KFP before 2.15 does not start the "
            "stage. Create it in the namespace of the runs",
        )


def _literals(checked: Checked) -> Iterator[Finding]:
    found = [("the pipeline", "parameters", checked.pipeline.root)]
    found += ((f"task {place.path!r}", "inputs", place.component) for place in checked.places)
    for where, what, component in found:
        if names := [name for name, its in component.parameter_inputs.items() if its.literals]:
            yield Finding(
                Kind.WORKS_LOCALLY,
                where,
                f"has {what} of a Literal type ({joined(names)}), and KFP before 2.16 rejects such a pipeline. "
                "Annotate them as str, int or float",
            )


@_of_tasks
def _times(place: ScopedTask) -> _Found:
    for name, source in place.task.parameters.items():
        if isinstance(source, Constant) and source.value in _TIMES:
            yield (
                Kind.CHANGED,
                f"has {source.value} as its input {name!r}, which KFP before 2.16 does not fill in. Pass the time as a "
                "parameter",
            )


_TIMES = ("{{$.pipeline_job_create_time_utc}}", "{{$.pipeline_job_schedule_time_utc}}")
#: What a macro in an argument looks like.
_MACRO = re.compile(r"\[\[(?:RunUUID|CurrentTime|ScheduledTime|Index)\b[^\]]*\]\]")


def _macros(checked: Checked) -> Iterator[Finding]:
    defaults = defaults_of(checked.pipeline)
    for name, value in checked.arguments.items():
        if isinstance(value, str) and value != defaults.get(name) and (macro := _MACRO.search(value)):
            yield Finding(
                Kind.CHANGED,
                f"the argument {name!r}",
                f"contains {macro[0]}. KFP 2.16 and newer replaces [[RunUUID]] and [[CurrentTime]] in arguments, and "
                "no other macros. A task's argument works everywhere: dsl.PIPELINE_JOB_ID_PLACEHOLDER, "
                "dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER",
            )


@_of_tasks
def _pod_settings(place: ScopedTask) -> _Found:
    platform = place.component.platform
    if platform.get("securityContext"):
        yield Kind.CHANGED, "has a security context, which KFP before 2.16 ignores. Set the user in the image"
    if any(mount.get("subPath") for mount in platform.get("pvcMount") or ()):
        yield (
            Kind.CHANGED,
            "mounts a part of a volume claim (sub_path), and KFP before 2.16 mounts the whole claim. Put the folder "
            "into the paths of the application",
        )


@_of_tasks
def _source_of_a_claim(place: ScopedTask) -> _Found:
    if is_volume_task(place.component) and "data_source" in place.task.parameters:
        yield (
            Kind.CHANGED,
            "fills a volume claim from another one or a snapshot (data_source), and KFP before 2.17 creates it empty. "
            "Create the claim with kubectl, and pass its name to mount_pvc",
        )


def _limits_of_the_run(checked: Checked) -> Iterator[Finding]:
    if names := [name for name in _LIMITS if name in checked.pipeline.platform]:
        yield Finding(
            Kind.WORKS_LOCALLY,
            "the pipeline",
            f"sets {joined(names)} (dsl.PipelineConfig), and KFP before 2.17 rejects such a pipeline. Leave them out",
        )


_LIMITS = ("activeDeadlineSeconds", "resourceTtlOnCompletion", "resourceTtlOnFailure", "resourceTtlOnSuccess")


@_of_tasks
def _numbers(place: ScopedTask) -> _Found:
    words = [word for word in _words(place) if "$.outputs" not in word]
    known = [inputs.known for inputs in (place.resolved, *place.iterations())]
    for name in dict.fromkeys(name for word in words for name in parameters_in(word)):
        candidates = [values[name] for values in known if name in values]
        numbers = [each for each in candidates if isinstance(each, (int, float)) and not isinstance(each, bool)]
        if changed := [each for each in numbers if driver_text(each) != to_text(each)]:
            yield (
                Kind.CHANGED,
                f"gets {name.removeprefix(CHANNEL)!r} as the text {driver_text(changed[0])} locally and on KFP from "
                f"2.17 on, and as {to_text(changed[0])} on KFP before 2.17. Have the application parse it as a "
                "number, or pass it as text",
            )


@_of_tasks
def _conditional_words(place: ScopedTask) -> _Found:
    if any(is_conditional(word) and "$.outputs" not in word for word in _words(place)):
        yield (
            Kind.CHANGED,
            "contains dsl.IfPresentPlaceholder, which KFP before 2.17 passes on as JSON. Give the input a default, "
            "which the application treats as not given",
        )


@_of_tasks
def _unset(place: ScopedTask) -> _Found:
    resolved = place.resolved
    for text in _words(place):
        unset = [name for name in parameters_in(text) if name not in {**resolved.values, **resolved.problems}]
        if unset and not is_conditional(text) and "$.outputs" not in text:
            yield (
                Kind.MAY_FAIL,
                f"is not given the input {unset[0]!r}, which its command contains: the driver of KFP 2.17 and newer "
                "does not find a value for it, even if it has a default. Pass the value",
            )


@_of_tasks
def _retries(place: ScopedTask) -> _Found:
    if place.task.retry is not None and place.is_stage:
        yield (
            Kind.CHANGED,
            "is retried locally when its application fails, but not on a standard installation of KFP 2.17: the "
            "controller's templateDefaults set the retry policy OnError. A cluster's administrator can remove "
            "templateDefaults.retryStrategy from the ConfigMap workflow-controller-configmap",
        )


CHANGES = (
    Change(Version(2, 15), before=_task_config),
    Change(Version(2, 15), before=_workspace),
    Change(Version(2, 15), before=_optional),
    Change(Version(2, 16), before=_literals),
    Change(Version(2, 16), before=_times),
    Change(Version(2, 16), after=_macros),
    Change(Version(2, 16), before=_pod_settings),
    Change(Version(2, 17), before=_source_of_a_claim),
    Change(Version(2, 17), before=_limits_of_the_run),
    # Since then, the driver fills in the inputs of a command, and Argo's policy of retries is in the stock manifests.
    Change(Version(2, 17), before=_numbers),
    Change(Version(2, 17), before=_conditional_words),
    Change(Version(2, 17), after=_unset),
    Change(Version(2, 17), after=_retries),
)
