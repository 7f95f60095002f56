"""A check of a run's tracker bases, before anything is started."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Any

from torchx_kfp import protocol
from torchx_kfp.errors import MissingCredentialsError, TrackerError
from torchx_kfp.local.engines.containers import NO_CONTAINERS, Containers
from torchx_kfp.local.platform.secrets import FILES, VARIABLES
from torchx_kfp.pipeline.placeholders import Facts, resolve_text, resolve_value
from torchx_kfp.pipeline.spec import Component, Constant, FromInput, Pipeline, Task
from torchx_kfp.pipeline.walk import Place, walk
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.stores.calls import SHORT_PATIENCE
from torchx_kfp.tracking.stores.keys import PRIVATE

#: A key that results cannot have. All runs use the same one, so that a store that forbids removal keeps only one file.
_PROBE = f"{PRIVATE}/probe"
#: A variable in the words after ``env``.
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")


def check_bases(
    pipeline: Pipeline, arguments: Mapping[str, Any], directory: str, containers: Containers = NO_CONTAINERS
) -> None:
    """Write a small file to each tracker base that is already known, read it, and remove it.

    Args:
        pipeline: the pipeline that is going to run.
        arguments: the values of all its parameters.
        directory: the directory in which its stages run.
        containers: its containers. A base inside a mount whose path differs here is not checked.

    If this process has no credentials for a base, it is left to stages that may have their own: those in containers,
    and those whose AppDef sets variables or takes secrets.

    Raises:
        MissingCredentialsError: neither this process nor a stage has credentials for a base.
        TrackerError: a base cannot be written or read. A file that cannot be removed is not an error.
    """
    for base, places in known_bases(pipeline, arguments).items():
        mounts = containers.mounts
        if any(f"{base}/".startswith(f"{mount.target}/") and mount.source != mount.target for mount in mounts):
            continue
        place = base if "://" in base else os.path.join(directory, base)
        try:
            store = FsspecResultTracker(place, patience=SHORT_PATIENCE).store
            store.write(_PROBE, b"{}")
            store.read(_PROBE)
        except MissingCredentialsError:
            if any(place.name in containers or _may_have_credentials(place.component) for place in places):
                continue
            raise
        except TrackerError as error:
            raise type(error)(f"No result could be recorded under the tracker base {base!r}: {error}") from error
        with contextlib.suppress(TrackerError):
            store.remove(_PROBE)


def _may_have_credentials(component: Component) -> bool:
    """Tell whether a stage gets anything that this process does not have: variables, secrets or config maps."""
    container = component.container
    if container is None:
        return False
    if container.env or any(component.platform.get(setting) for setting in (*VARIABLES, *FILES)):
        return True
    # The command of a tracked stage sets the variables of its AppDef: env NAME=value program.
    after_env = False
    for word in (*container.command, *container.args):
        found = _ASSIGNMENT.match(word) if after_env else None
        if found and found[1] != protocol.TRACKER_BASE:
            return True
        after_env = word == "env" or found is not None
    return False


def known_bases(pipeline: Pipeline, arguments: Mapping[str, Any]) -> dict[str, list[Place]]:
    """Return the tracker bases that depend only on parameters and constants, with the stages that use them."""
    name = f"{protocol.TRACKER_BASE}="
    inputs: dict[str, Mapping[str, Any]] = {}
    bases: dict[str, list[Place]] = {}
    for place in walk(pipeline):
        around = arguments if place.inside is None else inputs[place.inside.path]
        known = inputs[place.path] = _known_inputs(place.task, place.component, around)
        container = place.component.container
        for word in (*container.command, *container.args) if container is not None else ():
            base = resolve_text(word, Facts(parameters=known)).removeprefix(name) if word.startswith(name) else ""
            if base and "{{$" not in base:
                bases.setdefault(base, []).append(place)
    return bases


def _known_inputs(task: Task, component: Component, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a task that are known before the run; ``scope`` has the inputs of the pipeline around it."""
    known = {name: input.default for name, input in component.inputs.items() if input.has_default}
    constants = {}
    for name, source in task.inputs.items():
        known.pop(name, None)
        if isinstance(source, Constant):
            constants[name] = source.value
        elif isinstance(source, FromInput) and not source.selector and source.name in scope:
            known[name] = scope[source.name]
    # A constant's text may contain placeholders for the other inputs.
    facts = Facts(parameters=dict(known))
    return {**known, **{name: resolve_value(value, facts) for name, value in constants.items()}}
