"""A check of a run's tracker bases, before anything is started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchx_kfp import protocol
from torchx_kfp.errors import TrackerError
from torchx_kfp.local.engines.mounts import Mount
from torchx_kfp.pipeline.placeholders import Facts, resolve_text, resolve_value
from torchx_kfp.pipeline.spec import Component, Constant, FromInput, Pipeline, Task
from torchx_kfp.pipeline.walk import walk
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.stores.keys import PRIVATE

#: A key that results cannot have. All runs use the same one, so that a store that forbids removal keeps only one file.
_PROBE = f"{PRIVATE}/probe"
# Seconds for which requests to a failing store are retried.
_PATIENCE = 5.0


def check_bases(pipeline: Pipeline, arguments: Mapping[str, Any], directory: str, mounts: Sequence[Mount] = ()) -> None:
    """Write a small file to each tracker base that is already known, read it, and remove it.

    Args:
        pipeline: the pipeline that is going to run.
        arguments: the values of all its parameters.
        directory: the directory in which its stages run.
        mounts: the mounts of its containers. A base inside a mount whose path differs here is not checked.

    If this process has no credentials for a base, it is not checked: the stages' AppDefs or secrets may have them.

    Raises:
        TrackerError: a base cannot be written or read. A file that cannot be removed is not an error.
    """
    for base in dict.fromkeys(known_bases(pipeline, arguments)):
        if any(f"{base}/".startswith(f"{mount.target}/") and mount.source != mount.target for mount in mounts):
            continue
        place = base if "://" in base else os.path.join(directory, base)
        try:
            store = FsspecResultTracker(place, patience=_PATIENCE).store
            store.write(_PROBE, b"{}")
            store.read(_PROBE)
        except TrackerError as error:
            if _lacks_credentials(error):
                continue
            raise type(error)(f"No result could be recorded under the tracker base {base!r}: {error}") from error
        with contextlib.suppress(TrackerError):
            store.remove(_PROBE)


def _lacks_credentials(error: BaseException | None) -> bool:
    """Tell whether botocore or google-auth found no credentials at all, judging by their exceptions."""
    while error is not None:
        if type(error).__name__ in ("NoCredentialsError", "DefaultCredentialsError"):
            return True
        error = error.__cause__ or error.__context__
    return False


def known_bases(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tracker bases of the pipeline's stages that depend only on parameters and constants."""
    name = f"{protocol.TRACKER_BASE}="
    inputs: dict[str, Mapping[str, Any]] = {}
    for place in walk(pipeline):
        around = arguments if place.inside is None else inputs[place.inside.path]
        known = inputs[place.path] = _known_inputs(place.task, place.component, around)
        container = place.component.container
        for word in (*container.command, *container.args) if container is not None else ():
            base = resolve_text(word, Facts(parameters=known)).removeprefix(name) if word.startswith(name) else ""
            if base and "{{$" not in base:
                yield base


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
