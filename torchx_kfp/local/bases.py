"""A check of a run's tracker bases, before anything is started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from torchx_kfp.errors import MissingCredentialsError, TrackerError
from torchx_kfp.local.engines.containers import NO_CONTAINERS, Containers
from torchx_kfp.local.platform.secrets import FILES, VARIABLES
from torchx_kfp.pipeline.known import KnownStage, known_bases
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.stores.calls import SHORT_PATIENCE
from torchx_kfp.tracking.stores.keys import PRIVATE

#: A key that results cannot have. All runs use the same one, so that a store that forbids removal keeps only one file.
_PROBE = f"{PRIVATE}/probe"


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
    for base, stages in known_bases(pipeline, arguments).items():
        mounts = containers.mounts
        if any(f"{base}/".startswith(f"{mount.target}/") and mount.source != mount.target for mount in mounts):
            continue
        place = base if "://" in base else os.path.join(directory, base)
        try:
            store = FsspecResultTracker(place, patience=SHORT_PATIENCE).store
            store.write(_PROBE, b"{}")
            store.read(_PROBE)
        except MissingCredentialsError:
            if any(stage.place.name in containers or _may_have_credentials(stage) for stage in stages):
                continue
            raise
        except TrackerError as error:
            raise type(error)(f"No result could be recorded under the tracker base {base!r}: {error}") from error
        with contextlib.suppress(TrackerError):
            store.remove(_PROBE)


def _may_have_credentials(stage: KnownStage) -> bool:
    """Tell whether a stage gets anything that this process does not have: variables, secrets or config maps."""
    platform = stage.place.component.platform
    return bool(stage.variables) or any(platform.get(setting) for setting in (*VARIABLES, *FILES))
