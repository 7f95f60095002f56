"""The tracker bases of a run, which are checked before anything is started."""

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

#: A key that no result has. It is the same for all runs, so that a store that forbids removal holds it once.
_PROBE = f"{PRIVATE}/probe"
# Seconds for which a failing store is retried.
_PATIENCE = 5.0


def check_bases(pipeline: Pipeline, arguments: Mapping[str, Any], directory: str, mounts: Sequence[Mount] = ()) -> None:
    """Write a small file to each tracker base that is known by now, read it, and remove it.

    Args:
        pipeline: what is to be run.
        arguments: the values of all its parameters.
        directory: in which its stages run.
        mounts: of its containers; a base in one of them is another folder here.

    A base that this process has no credentials for is left to its stages: their AppDefs or secrets may have them.

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
            raise TrackerError(f"No result could be recorded under the tracker base {base!r}: {error}") from error
        with contextlib.suppress(TrackerError):
            store.remove(_PROBE)


def _lacks_credentials(error: BaseException | None) -> bool:
    """Tell whether the store's driver found no credentials at all, by the exceptions of botocore and google-auth."""
    while error is not None:
        if type(error).__name__ in ("NoCredentialsError", "DefaultCredentialsError"):
            return True
        error = error.__cause__ or error.__context__
    return False


def known_bases(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Return the tracker bases of the pipeline's stages that parameters and constants determine."""
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
    """Return the inputs of a task that are known before the run; ``scope`` has those of the pipeline around it."""
    known = {name: input.default for name, input in component.inputs.items() if input.has_default}
    constants = {}
    for name, source in task.inputs.items():
        known.pop(name, None)
        if isinstance(source, Constant):
            constants[name] = source.value
        elif isinstance(source, FromInput) and not source.selector and source.name in scope:
            known[name] = scope[source.name]
    # A constant's text may hold placeholders of the other inputs.
    facts = Facts(parameters=dict(known))
    return {**known, **{name: resolve_value(value, facts) for name, value in constants.items()}}
