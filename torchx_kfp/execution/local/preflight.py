"""Find problems of a run, locally and on KFP's backend (``model``), before it starts."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchx_kfp.common.text import joined
from torchx_kfp.contract.protocol import workspace_digest
from torchx_kfp.contract.specification import RoleSpec
from torchx_kfp.errors import ArgumentError, MissingCredentialsError, TrackerError
from torchx_kfp.execution.local import kubernetes
from torchx_kfp.execution.local.executors.container import Containers
from torchx_kfp.execution.local.executors.mounts import Mount
from torchx_kfp.execution.local.given_keys import GivenKeys, missing_variables
from torchx_kfp.execution.local.gpus import Gpus, accelerators, asked, visible_gpus
from torchx_kfp.execution.local.run_options import RunOptions
from torchx_kfp.execution.model import checks as backend
from torchx_kfp.execution.model.findings import REJECTED_LOCALLY, Finding, Kind, merge, refuse
from torchx_kfp.execution.model.versions import NEWEST, Version
from torchx_kfp.execution.pipeline.conditions import is_field_selector, is_true
from torchx_kfp.execution.pipeline.endpoints import described, own_endpoints
from torchx_kfp.execution.pipeline.load import pipeline_errors
from torchx_kfp.execution.pipeline.placeholders import is_gpu, with_names
from torchx_kfp.execution.pipeline.pod_settings import FILES, VARIABLES, entries
from torchx_kfp.execution.pipeline.python_components import (
    names_executor,
    parse_command,
)
from torchx_kfp.execution.pipeline.spec import Component, FromInput, FromTask, Other, Pipeline, is_volume_task
from torchx_kfp.execution.pipeline.values import FROM_KFP, TYPE_NAMES, defaults_of
from torchx_kfp.execution.pipeline.walk import ScopedTask, known_bases, known_stages, walk_tasks
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker, absolute_base, check_tracker_base

_ON_KFP = "Run the pipeline on KFP"
# The characters that the name of an input or output may have, since a file's name may have 255 bytes.
_LONGEST_NAME = 100


def check_pipeline(
    pipeline: Pipeline, arguments: Mapping[str, Any], *, in_containers: bool = False, version: Version = NEWEST
) -> list[Finding]:
    """Return all findings about a run of a pipeline.

    Args:
        pipeline: the pipeline.
        arguments: the values of its parameters. A check may omit some that a run needs.
        in_containers: whether its stages run in containers, not as processes.
        version: the version of KFP.
    """
    with pipeline_errors(f"The pipeline {pipeline.name!r}"):
        findings = list(backend.of_run(pipeline, arguments, version))
        for scoped in walk_tasks(pipeline):
            problems = _task_problems(scoped, in_containers)
            findings += [Finding(Kind.NOT_LOCAL, f"task {scoped.path!r}", text) for text in problems]
    return merge(findings)


def check_supported(
    pipeline: Pipeline, arguments: Mapping[str, Any] | None = None, *, in_containers: bool = False
) -> list[Finding]:
    """Return the findings about a run that can start locally. By default, its arguments are the pipeline's defaults.

    Raises:
        PipelineError: the pipeline cannot run locally, or fails on KFP's backend.
    """
    values = defaults_of(pipeline) if arguments is None else arguments
    findings = check_pipeline(pipeline, values, in_containers=in_containers)
    refuse(pipeline.name, [finding for finding in findings if finding.kind in REJECTED_LOCALLY])
    return findings


def find_not_applied(
    pipeline: Pipeline,
    arguments: Mapping[str, Any] | None = None,
    given: GivenKeys | None = None,
    mounts: Sequence[Mount] = (),
    gpus: Gpus | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> tuple[str, ...]:
    """Return the kinds of Kubernetes settings in the pipeline that have no effect in local runs.

    Args:
        pipeline: the pipeline.
        arguments: the values of its parameters.
        given: its secrets and config maps, and whether its stages run in containers.
        mounts: the mounts of its containers.
        gpus: the GPUs that its stages share. Default: none.
        environ: the local variables.
    """
    arguments, given, gpus = arguments or {}, given or GivenKeys(), gpus or Gpus()
    with pipeline_errors(f"The pipeline {pipeline.name!r}"):
        kinds = set(kubernetes.pipeline_not_applied(pipeline.platform))
        if any(own_endpoints(environ, in_container=False)):
            for stage in known_stages(pipeline, arguments):
                kinds.add(described(stage.variables, environ, in_container=given.in_containers))
            kinds.discard("")
        for scoped in walk_tasks(pipeline, arguments=arguments):
            kinds.update(stage_not_applied(scoped, given, mounts, gpus))
        return tuple(sorted(kinds))


def stage_not_applied(scoped: ScopedTask, given: GivenKeys, mounts: Sequence[Mount], gpus: Gpus) -> Iterator[str]:
    """Yield settings that a stage lacks in a local run: see ``find_not_applied``."""
    component, inputs = scoped.component, scoped.scope_inputs
    yield from missing_variables(component, given, inputs)
    yield from kubernetes.not_applied(component, gpus, in_container=given.in_containers)
    yield from kubernetes.missing_volumes(component, given, inputs, [mount.target for mount in mounts])


def _task_problems(scoped: ScopedTask, in_container: bool) -> Iterator[str]:
    task, component = scoped.task, scoped.component
    if component.kind not in ("dag", "container", "importer"):
        yield f"has an executor of the kind {component.kind!r}. {_ON_KFP}"
        return
    unknown = [name for name, source in task.artifacts.items() if isinstance(source, Other)]
    if unknown:
        yield f"takes an artifact that does not come from a task ({joined(unknown)}). {_ON_KFP}"
    for name, source in task.parameters.items():
        if isinstance(source, Other):
            yield f"takes {source.kind} as its input {name!r}. {_ON_KFP}"
        elif isinstance(source, (FromInput, FromTask)) and source.selector and not is_field_selector(source.selector):
            yield f"has the expression {source.selector!r} for its input {name!r}. {_ON_KFP}"
    for parameter in component.parameter_inputs.values():
        if parameter.type not in (*TYPE_NAMES, *FROM_KFP) and not isinstance(
            task.parameters.get(parameter.name), Other
        ):
            yield f"has the input {parameter.name!r} of the type {parameter.type}. {_ON_KFP}"
    if task.loop is not None and component.dag is None:
        yield f"is a loop that does not contain a pipeline. {_ON_KFP}"
    if task.loop is not None and task.loop.raw is None and task.loop.from_input is None:
        yield f"loops over items that come from neither a constant nor an input. {_ON_KFP}"
    if component.container is not None:
        yield from _container_problems(component, in_container)


def _container_problems(component: Component, in_container: bool) -> Iterator[str]:
    container = component.container
    assert container is not None
    words = container.words
    if in_container:
        yield from _image_problems(container.image, component.decoded.replica_roles)
    elif parse_command(words) is None and names_executor(words):
        yield (
            f"is a Python component (dsl.component) whose code is not in its command. Run it in its image "
            f"{container.image!r} (--docker), or, without target_image, compile it with kfp 2.14 or newer"
        )
    elif not container.command and not is_volume_task(component):
        yield (
            f"has no command, so it runs the default command of the image {container.image!r}, and images are not used "
            "locally. Give the component a command, or run the stage in its image (--docker)"
        )
    names = [("output", name) for name in (*component.parameter_outputs, *component.artifact_outputs)]
    for what, name in [*names, *(("input", name) for name in component.artifact_inputs)]:
        # The name is also that of a file in the stage's folder.
        if name in ("", ".", "..") or "/" in name or not name.isprintable() or len(name) > _LONGEST_NAME:
            yield f"has the {what} {name!r}, which cannot be the name of a file. Rename the {what}"


def _image_problems(image: str, roles: Sequence[RoleSpec[str]]) -> Iterator[str]:
    """Describe a distributed stage with replicas that cannot share a container."""
    # An image with placeholders is that of the first role: the image of a launcher cannot have them.
    launcher = [("its launcher", image)] if roles and "{{$" not in image else []
    images = [*launcher, *((f"the role {role.name!r}", role.image) for role in roles)]
    if len({image for _, image in images}) > 1:
        # The launcher's is named only if it differs.
        different = images[1:] if launcher and image == roles[0].image else images
        named = ", ".join(f"{who} in '{with_names(image)}'" for who, image in different)
        yield (
            f"runs {named}, but locally one container runs all replicas of a stage. Run the stage as processes "
            "(without --docker), or use one image for all of them"
        )


def find_gpus(stages: Iterable[ScopedTask], containers: Containers | None = None) -> Gpus:
    """Return the GPUs that the stages of a run share; none if no stage needs any.

    Args:
        stages: the stages.
        containers: what runs them in containers, if it does.
    """
    if not any(is_gpu(kind) for stage in stages for kind in accelerators(stage.component)):
        return Gpus()
    if containers is None:
        return visible_gpus()
    engine = containers.engine
    if not engine.has_gpus:
        return Gpus(lacks="the container engine has none")
    address = engine.other_machine()
    gpus = Gpus(lacks=f"it is on another machine, {address}") if address else visible_gpus()
    how = "containers get none of the engine's" if engine.is_podman else "all containers share the engine's first ones"
    return gpus if gpus.known else replace(gpus, lacks=f"{how}: {gpus.lacks}")


def check_gpus(stages: Iterable[ScopedTask], gpus: Gpus) -> list[Finding]:
    """Return a finding for each stage that needs more GPUs than the machine has.

    On a machine without GPUs, stages run without them.
    """
    found = []
    for stage in stages:
        with contextlib.suppress(ValueError):  # its limit is known only when the pipeline runs
            asks = asked(stage.component, stage.decoded.words, stage.resolved.known)
            if (too_many := gpus.too_many(asks)) and not _is_skipped(stage):
                found.append(Finding(Kind.NOT_LOCAL, f"task {stage.path!r}", f"{too_many}, or run the pipeline on KFP"))
    return merge(found)


def _is_skipped(stage: ScopedTask) -> bool:
    """Return whether a condition of the stage, or of a branch around it, is known to be false."""
    for place in stage.around:
        with contextlib.suppress(ValueError):
            if place.task.condition is not None and not is_true(place.task.condition, place.resolved.known):
                return True
    return False


def check_bases(stages: Iterable[ScopedTask], options: RunOptions) -> None:
    """Write, read and remove a small file in each known tracker base.

    Args:
        stages: the stages of the pipeline that is going to run, with the values of all its parameters.
        options: the run's options. A base inside a mount with another local path is not checked.

    If this process has no credentials for a base, stages that may have their own are not checked: containers, and
    stages whose AppDef sets variables or takes secrets.

    Raises:
        MissingCredentialsError: neither this process nor a stage has credentials for a base.
        TrackerError: a base cannot be written or read. Failing to remove it is not an error.
    """
    for base, using in known_bases(stages).items():
        if any(f"{base}/".startswith(f"{one.target}/") and one.source != one.target for one in options.mounts):
            continue
        try:
            path = absolute_base(check_tracker_base(base), options.directory)
            RecordTracker(path, patience=SHORT_PATIENCE).verify_writable()
        except MissingCredentialsError:
            # A stage may get what this process does not have: variables, secrets or config maps.
            if not any(
                options.docker or stage.variables or entries(stage.component.platform, (*VARIABLES, *FILES))
                for stage in using
            ):
                raise
        except TrackerError as error:
            raise type(error)(f"No result could be recorded under the tracker base {base!r}: {error}") from error


def check_code(stages: Iterable[ScopedTask], options: RunOptions) -> None:
    """Raise ArgumentError if a stage's process would start in a workspace outside its local directory."""
    for url in {stage.workspace for stage in stages} if not options.docker else ():
        path = os.path.join(options.directory, url)
        if url and os.path.isdir(path):
            raise ArgumentError(f"The workspace {url!r} is a folder, which is sent as --workspace {shlex.quote(url)}.")
        if workspace_digest(url) and "://" not in url and not os.path.exists(path):
            raise ArgumentError(
                f"The code of this run, {url}, was removed. Give the pipeline and the folder with its code: "
                "PIPELINE --workspace DIR."
            )
