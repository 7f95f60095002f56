"""The outputs of an attempt at a stage: its report, parameters, artifacts, and recorded results.

A stage in a container may have left any kind of file. Its outputs are only read beneath the one folder that its
container could write to (see ``safe_files``), and its artifacts must be there or on other storage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchx_kfp import safe_files
from torchx_kfp.carried.publisher import missing, output_text
from torchx_kfp.errors import explain
from torchx_kfp.pipeline.artifacts import Artifact, check_places, is_remote, read_report
from torchx_kfp.pipeline.values import TYPE_NAMES, convert, from_output
from torchx_kfp.tracking import FsspecResultTracker, Result
from torchx_kfp.tracking.statements.artifacts import ARTIFACTS, METADATA
from torchx_kfp.tracking.statements.artifacts import Artifact as Registered

if TYPE_CHECKING:
    from torchx_kfp.local.engines.engine import AttemptPlan

#: The largest output parameter, and the largest report, in bytes. KFP's database accepts less.
_LONGEST_OUTPUT = 16 << 20
_LONGEST_REPORT = 64 << 20


def read_run_id(attempt: AttemptPlan) -> str | None:
    """Return the run id of a tracked stage, which exists even if the stage failed afterwards."""
    path = attempt.output_files.get("run_id")
    if path is None or attempt.tracker_base is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        return safe_files.read_text(path, attempt.root, limit=_LONGEST_OUTPUT) or None
    return None


def read_outputs(attempt: AttemptPlan) -> tuple[dict[str, Any], dict[str, Artifact]]:
    """Return the stage's output parameters, and its artifacts in their final places.

    Raises:
        ValueError: something is missing, has the wrong type, or is not a file; the message continues a sentence that
            begins with the stage's name.
    """
    reported, artifacts = _read_report(attempt)
    outputs = {name: _read_output(attempt, name, type_, reported) for name, type_ in attempt.output_types.items()}
    return outputs, {name: _store(attempt, artifact) for name, artifact in artifacts.items()}


def _read_report(attempt: AttemptPlan) -> tuple[dict[str, Any], dict[str, Artifact]]:
    try:
        text = safe_files.read_text(attempt.report, attempt.root, limit=_LONGEST_REPORT)
    except FileNotFoundError:
        text = ""
    except (OSError, ValueError) as error:
        raise ValueError(f"left its report {attempt.report} unreadable: {error}") from None
    try:
        reported, artifacts = read_report(text, attempt.artifacts)
        check_places(artifacts, attempt.artifacts)
        return reported, artifacts
    except ValueError as error:
        raise ValueError(f"wrote a report that {error}: {attempt.report}") from None


def _read_output(attempt: AttemptPlan, name: str, type_: str, reported: Mapping[str, Any]) -> Any:
    if name in reported:
        return convert(reported[name], type_)
    path = attempt.output_files[name]
    try:
        text = safe_files.read_text(path, attempt.root, limit=_LONGEST_OUTPUT)
    except FileNotFoundError:
        if attempt.function:
            raise ValueError(
                f"did not give its output {name!r} a value: the function {attempt.function!r} returned None, and "
                f"the file {path} is missing"
            ) from None
        raise ValueError(
            f"did not write its output {name!r}: the file {path} is missing, though the process ended with exit code 0"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"wrote its output {name!r} in an encoding other than UTF-8: {path}") from None
    except OSError as error:
        raise ValueError(f"left its output {name!r} unreadable: {error}") from None
    try:
        return from_output(text, type_)
    except ValueError as error:
        raise ValueError(f"wrote something into its output {name!r} that {error}") from None


def _store(attempt: AttemptPlan, artifact: Artifact) -> Artifact:
    """Copy a file from the artifact's custom path to its final place, as KFP's launcher uploads it."""
    stored = dataclasses.replace(artifact, custom_path="")
    if not stored.is_here:
        if attempt.container is not None and not is_remote(stored.uri):
            raise ValueError(f"reported the artifact {artifact.name!r} at {stored.uri}, which is not object storage")
        return stored
    root = attempt.root
    try:
        if artifact.custom_path:
            _copy_custom(attempt, artifact.custom_path, stored.path)
        safe_files.verify_tree(stored.path, root)
        if root is None and stored.path.startswith(os.path.join(attempt.made, "")):
            safe_files.verify_content(stored.path)
    except OSError as error:
        raise ValueError(f"left the artifact {artifact.name!r} unusable: {explain(error)}") from None
    return stored


def _copy_custom(attempt: AttemptPlan, path: str, target: str) -> None:
    if attempt.container is None:
        with contextlib.suppress(FileNotFoundError):
            safe_files.copy(path, target)
        return
    found = attempt.container.mount_of(path)
    if found is None:
        raise safe_files.UnfitFileError(
            f"{path} is gone with the container. Write to the artifact's own path, or to a folder that is mounted"
        )
    mount, source = found
    with contextlib.suppress(FileNotFoundError):
        safe_files.copy(source, target, source_root=mount.source, target_root=attempt.root)


def registered_files(attempt: AttemptPlan, registered: Mapping[str, Registered]) -> tuple[str, ...]:
    """Return the paths on this machine of the files and folders that the stage has registered, if they exist."""
    paths = [artifact.path.removeprefix("file://") for artifact in registered.values()]
    if attempt.container is not None:
        mounted = map(attempt.container.mount_of, paths)
        paths = [found[1] for found in mounted if found is not None]
    return tuple(path for path in paths if os.path.isabs(path) and os.path.exists(path))


def describe_missing(
    attempt: AttemptPlan, tracker: FsspecResultTracker, run_id: str, results: Mapping[str, Result]
) -> str:
    """Describe the declared results that a stage did not record, or that KFP cannot pass on.

    They made it fail after its application succeeded.

    Return an empty text if the application itself failed: the stage's publisher writes its report only after the
    application has succeeded.

    Args:
        attempt: the attempt, which has ended.
        tracker: the tracker of the stage's results.
        run_id: the stage's run id.
        results: the results that it has recorded.

    Raises:
        TrackerError: the store failed.
    """
    if not os.path.isfile(attempt.report):
        return ""
    text = ""
    for sentence in _missing(attempt, tracker, run_id, results):
        text += f"{' It ' if text.endswith('?') else '. It ' if text else ''}{sentence}"
    return text


def _missing(
    attempt: AttemptPlan, tracker: FsspecResultTracker, run_id: str, results: Mapping[str, Result]
) -> Iterator[str]:
    absent = {
        name: kind for name, kind in attempt.output_types.items() if not os.path.exists(attempt.output_files[name])
    }
    recorded: dict[str, Any] = {}
    if "LIST" in absent.values() or "STRUCT" in absent.values():
        recorded |= METADATA.read(tracker.store, run_id)
    recorded |= results
    for name, kind in absent.items():
        try:
            output_text(TYPE_NAMES.get(kind, kind), name, recorded)
        except ValueError as error:
            yield str(error)
    lost = [name for name, artifact in attempt.artifacts.items() if not os.path.exists(artifact.path)]
    registered = ARTIFACTS.read(tracker.store, run_id) if lost else {}
    for name in lost:
        yield missing("artifact", name, registered)
