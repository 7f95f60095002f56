"""Run a pipeline on a KFP host and on this machine, and compare how both end."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml

import components
import torchx_kfp
from tests.cases import Case
from tests.conformance.pipelines import packages
from tests.conformance.place import RUN, Place
from torchx_kfp import local
from torchx_kfp.errors import PipelineError
from torchx_kfp.execution.host.connection import Connection, make_client
from torchx_kfp.execution.host.settings import read_settings
from torchx_kfp.execution.host.submission import version_of
from torchx_kfp.execution.model.findings import REJECTED_ON_KFP, Finding
from torchx_kfp.execution.model.versions import NEWEST, Checked, Version, of_version
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import defaults_of
from torchx_kfp.execution.pipeline.walk import walk_tasks
from torchx_kfp.execution.runs.history import read_run
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.host import HostRun, connect, submit
from torchx_kfp.local import RunResult, StageFinished, StageStarted, State, Watch
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker, pack_folders

#: The seconds after which a run on the host counts as stuck.
PATIENCE = 1800.0
#: Reasons of the kubelet and the scheduler for which waiting is in vain, and the seconds for which a pod may have one:
#: the kubelet pulls again after 10 and 30 s.
_HOPELESS = re.compile(
    "ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull|CreateContainerConfigError"
    "|.*persistentvolumeclaim .* not found"
)
_FORBEARANCE = 45.0
#: States of stages that mean the same: each place has its own cache.
_SAME = {"cached": "succeeded", "failed (allowed)": "succeeded"}


@dataclass(frozen=True)
class Verdict:
    """How a pipeline ended in both places; ``differences`` is empty if they are alike, or is ``expected``."""

    run_id: str
    there: str
    here: str
    differences: list[str] = field(default_factory=list)
    expected: str = ""


def differences(here: RunResult, there: RunResult, varying: Collection[str] = ()) -> list[str]:
    """Return what is not alike: states, reasons, starts and results of stages, and outputs that KFP has.

    Results and outputs whose names are ``varying`` only must be in both places.
    """
    found = [] if here.state == there.state else [f"the run: here {here.state}, there {there.state}"]
    ours, theirs = ({stage.name: stage for stage in result.stages} for result in (here, there))
    for name in sorted({*ours, *theirs}):
        if name not in ours or name not in theirs:
            found.append(f"{name}: only {'here' if name in ours else 'there'}")
            continue
        one, other = ours[name], theirs[name]
        ends_alike = State.FAILED not in (one.state, other.state)
        for what, mine, its in (
            ("task", one.task, other.task),
            ("state", _SAME.get(one.state, one.state), _SAME.get(other.state, other.state)),
            ("reason", one.reason if ends_alike else None, other.reason),
            ("starts", one.starts, other.starts),
            ("results", _plain(one.results, here.run_id, varying), _plain(other.results, there.run_id, varying)),
            # A host does not say which signal has ended a process.
            ("exit code", one.exit_code if (one.exit_code or 0) > 0 else None, other.exit_code),
        ):
            if mine != its and (what == "state" or None not in (mine, its)):
                found.append(f"{name}: {what} here {mine!r}, there {its!r}")
        outputs = {key: value for key, value in other.outputs.items() if value != other.execution_id}
        for key, value in outputs.items():
            if key in one.outputs and one.outputs[key] != value and key not in varying:
                found.append(f"{name}: output {key} here {one.outputs[key]!r}, there {value!r}")
    return found


def different_events(here: RunRecord, there: RunRecord) -> list[str]:
    """Return the stages that do not begin and end equally often. A host may not have seen an attempt."""
    ours, theirs = (
        Counter(
            (type(event).__name__, event.result.name if isinstance(event, StageFinished) else event.name)
            for event in record.events
            if isinstance(event, StageStarted) or (isinstance(event, StageFinished) and not event.again)
        )
        for record in (here, there)
    )
    return [
        f"{name}: {kind} {ours[kind, name]} times here, {theirs[kind, name]} there"
        for kind, name in sorted({*ours, *theirs})
        if ours[kind, name] != theirs[kind, name]
    ]


def _plain(results: Mapping[str, Any] | None, run: str, varying: Collection[str]) -> dict[str, Any] | None:
    """Return the results without what differs in the run ids of executions, and without values that vary."""
    if results is None:
        return None
    run_ids = re.compile(rf"{run}/([^/\s]+)/[^/\s]+")
    kept = {name: None if name in varying else value for name, value in results.items()}
    return {name: run_ids.sub(r"RUN/\1", it) if isinstance(it, str) else it for name, it in kept.items()}


def wait_while_useful(run: HostRun, timeout: float) -> tuple[RunRecord, str]:
    """Wait for the end of a run, and return it with a sentence about why it was given up; empty if it has ended.

    A run is given up if a pod cannot start for want of an image, a secret or a volume claim. It goes on.

    Args:
        run: the run.
        timeout: the seconds that it may take.
    """
    stuck_since: float | None = None
    deadline = time.monotonic() + timeout
    for record in run.follow(closely=True):
        if not record.is_running:
            break
        stuck = [stage for stage in record.run.stages if stage.is_stuck]
        hopeless = [stage for stage in stuck if _HOPELESS.match(stage.reason)]
        now = time.monotonic()
        stuck_since = (stuck_since or now) if hopeless else None
        if now >= deadline or (stuck_since is not None and now - stuck_since >= _FORBEARANCE):
            why = "; ".join(f"{stage.name} cannot start: {stage.reason}" for stage in hopeless or stuck)
            return record, f"{why or f'The run has not ended within {timeout:g} s'}."
    return record, ""


class Suite:
    """Runs cases in both places. ``close`` removes what the suite has made under the tracker base."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place = place
        self.folder = folder
        #: A folder of the suite's own under the tracker base.
        self.base = f"{place.base}/kfp-suite-{RUN}"

    @functools.cached_property
    def code(self) -> Path:
        """The workspace: what applications use of this package, and those of examples: an image needs none of them."""
        made = self.folder / f"code-{uuid.uuid4().hex[:8]}"
        for package in (Path(torchx_kfp.__file__).parent, Path(components.__file__).parent):
            shutil.copytree(package, made / package.name, ignore=shutil.ignore_patterns("__pycache__", "entrypoints"))
        return made

    @functools.cache  # noqa: B019 (one suite a process)
    def stored(self, base: str) -> str:
        """Return the URL of the workspace under a tracker base."""
        packed = pack_folders(RecordTracker(base, patience=SHORT_PATIENCE).store, {str(self.code): ""})
        packed.upload()
        return packed.url

    @functools.cached_property
    def packages(self) -> frozenset[str]:
        """The packages of the image, of those that examples need: a stage looks, once.

        Raises:
            StageFailedError: the stage has failed.
            AssertionError: it cannot start.
        """
        if "KFP_SUITE_PACKAGES" not in os.environ:
            run = self.submit(self.load(packages), {}, "packages")
            result = self.wait(run)
            result.raise_for_failure()
            os.environ["KFP_SUITE_PACKAGES"] = str(result["packages"].measures["packages"])
            self.remove(run.run_id)
        return frozenset(os.environ["KFP_SUITE_PACKAGES"].split())

    @functools.cached_property
    def version(self) -> Version:
        """The version of KFP on the host."""
        return version_of(Connection(read_settings({"host": self.place.host})))

    def of_version(self, pipeline: Pipeline, case: Case) -> list[Finding]:
        """Return what the table of versions says of a pipeline on this host, if its version is not the newest."""
        if self.version >= NEWEST:
            return []
        arguments = {**defaults_of(pipeline), **case.arguments}
        places = list(walk_tasks(pipeline, arguments=arguments))
        return list(of_version(Checked(pipeline, arguments, places), self.version))

    def prove(self, case: Case) -> Verdict:
        """Run a pipeline there and here. What is alike, or differs as expected, is removed from the host."""
        pipeline = self.load(case.pipeline)
        if case.refused:
            return self._refused(case, pipeline)
        found_before = self.of_version(pipeline, case)
        if refused := [each for each in found_before if each.kind in REJECTED_ON_KFP]:
            pytest.skip(f"on KFP {self.version}, {refused[0]}")
        expected = case.expected or "; ".join(map(str, found_before))
        try:
            run = self.submit(pipeline, case.arguments, case.name)
        except PipelineError:
            if not expected:
                raise
            here = self.run(pipeline, case.arguments, case.name)
            return Verdict("", "refused", str(here.state), ["it is refused there"], expected)
        there, here = self.wait(run), self.run(pipeline, case.arguments, case.name)
        assert here.folder is not None
        found = [*differences(here, there, case.varying), *different_events(read_run(here.folder), run.read())]
        for stage, results in case.results.items():
            measured = {name: there[stage].measures.get(name) for name in results if name not in case.varying}
            if measured != {name: results[name] for name in measured}:
                found.append(f"{stage}: recorded {measured!r}, and not {results!r}")
        if there.state != case.state and not expected:
            found.append(f"the run has {there.state} there, and not {case.state}")
        if not found or expected:
            self.remove(run.run_id)
        return Verdict(run.run_id, str(there.state), str(here.state), found, expected)

    def wait(self, run: HostRun) -> RunResult:
        """Wait for the end of a run on the host. One that cannot go on, or takes too long, is ended.

        Raises:
            AssertionError: it was ended.
        """
        record, problem = wait_while_useful(run, PATIENCE)
        if problem:
            run.terminate()
            raise AssertionError(f"{run.link}: {problem} The run was ended.")
        return record.run.result()

    def load(self, pipeline: Any) -> Pipeline:
        """Return the pipeline as it runs at the place."""
        loaded = load_pipeline(pipeline)
        spec, platform = loaded.copy_documents()
        self.place.fit(spec, platform)
        file = self.folder / f"{loaded.name}-{uuid.uuid4().hex[:8]}.yaml"
        # Not JSON, whose escapes of characters above U+FFFF are not YAML.
        file.write_text(yaml.safe_dump_all(filter(None, [spec, platform])), encoding="utf-8")
        return load_pipeline(file)

    def submit(self, pipeline: Pipeline, arguments: Mapping[str, Any], name: str, **options: Any) -> HostRun:
        """Start a run on the host."""
        given = self.arguments(pipeline, arguments, self.base)
        options = {"name": f"suite {name} {uuid.uuid4().hex[:8]}", "cache": False, **options}
        return submit(pipeline, given, host=connect(self.place.host, tracker_base=self.base), **options)

    def run(self, pipeline: Pipeline, arguments: Mapping[str, Any], name: str, **options: Any) -> RunResult:
        """Run the pipeline on this machine, in a new folder with a tracker base."""
        folder = self.folder / f"{name}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        return self.run_in(folder, pipeline, arguments, **options)

    def run_in(self, folder: Path, pipeline: Pipeline, arguments: Mapping[str, Any], **options: Any) -> RunResult:
        """Run the pipeline on this machine, in a folder."""
        given = self.arguments(pipeline, arguments, str(folder / "base"))
        options = {"cache": False, "watch": Watch(), **options}
        return local.run(pipeline, given, output_dir=folder / "runs", directory=str(folder), **options)

    def arguments(self, pipeline: Pipeline, arguments: Mapping[str, Any], base: str) -> dict[str, Any]:
        """Return the arguments with the tracker base and the workspace, where the pipeline has them."""
        given = {name: self.place.image_of(it) if isinstance(it, str) else it for name, it in arguments.items()}
        if "tracker_base" in pipeline.root.parameter_inputs:
            given["tracker_base"] = base
            if "workspace" in pipeline.root.parameter_inputs:
                given["workspace"] = self.stored(base)
        return given

    def remove(self, run_id: str) -> None:
        """Remove a run from the host, and what it has recorded."""
        if not self.place.keeps:
            with warnings.catch_warnings():  # kfp's client calls what urllib3 deprecates
                warnings.simplefilter("ignore", DeprecationWarning)
                make_client(read_settings({"host": self.place.host})).delete_run(run_id)
            self._remove(f"{self.base}/{run_id}", f"{self.base}-artifacts/{run_id}")

    def close(self) -> None:
        """Remove what is under the tracker base."""
        if not self.place.keeps:
            self._remove(self.base, f"{self.base}-artifacts")

    def _refused(self, case: Case, pipeline: Pipeline) -> Verdict:
        found = []
        for place, start in (("there", self.submit), ("here", self.run)):
            with contextlib.suppress(PipelineError):
                start(pipeline, case.arguments, case.name)
                found.append(f"it is not refused {place}")
        return Verdict("", "refused", "refused", found)

    @staticmethod
    def _remove(*urls: str) -> None:
        for url in urls:
            filesystem, path = fsspec.core.url_to_fs(url)
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm(path, recursive=True)
