"""Prove on a KFP host what only a pod can, with runs that are removed afterwards, and with them what they recorded.

Everything that is begun is in ``Made``, which removes it: at the end, after an error, and after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torchx_kfp.common.text import counted, duration, printable, shorten
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER, Execution
from torchx_kfp.entrypoints.doctor.host_state import artifacts_root
from torchx_kfp.entrypoints.doctor.pod_options import PodOptions
from torchx_kfp.entrypoints.doctor.probe_pipelines import (
    DEFAULT_IMAGE,
    FIRST,
    RETRIED,
    SECOND,
    meeting_pipeline,
    probe_pipeline,
    sleeping_pipeline,
)
from torchx_kfp.entrypoints.doctor.probe_program import SAYS
from torchx_kfp.entrypoints.doctor.verdicts import Verdict, guarded, missing, ok, said, skipped, warning, within
from torchx_kfp.errors import HostAnswerLostError, HostError, HostNotFoundError, TorchxKfpError, UnknownRunError
from torchx_kfp.execution.host.connection import V1BETA1
from torchx_kfp.execution.host.host_runs import Host
from torchx_kfp.execution.host.manifest import manifest_of
from torchx_kfp.execution.host.run import DEFAULT_POLICY, HostRun, PollPolicy
from torchx_kfp.execution.host.settings import Submission
from torchx_kfp.execution.host.submission import check_submission
from torchx_kfp.execution.model.findings import Kind
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.runs.result import RunResult, StageResult
from torchx_kfp.execution.runs.source import RunRecord
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.recorder import Recorder

#: Reasons of the kubelet and the scheduler for which waiting is in vain.
_HOPELESS = re.compile(
    "ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull|CreateContainerConfigError"
    "|.*persistentvolumeclaim .* not found"
)
#: Seconds for which a pod may have such a reason: the kubelet pulls again after 10 and 30 s.
_FORBEARANCE = 45.0
#: Seconds for runs that were asked to end, for the files of a run, and until the host shows a run that it has taken.
_ENDING, _REMOVING, _LOOKING = 120.0, 60.0, 15.0
_IMAGE = "Give one with python3, fsspec and the driver of the storage: --image IMAGE."
_CREDENTIALS = (
    "Give the pods the storage's address and credentials: --env AWS_ENDPOINT_URL=..., "
    "--secret AWS_ACCESS_KEY_ID:SECRET/KEY."
)
_DELETE = "Delete it in KFP's UI, or in the storage."
_NAMESPACE = "Secrets, and their keys, have to be in the namespace of the runs: kubectl -n NAMESPACE get secrets"


@dataclass(frozen=True)
class Wanted:
    """What is proved.

    Attributes:
        base: the tracker base.
        pod: the options of pods.
        engine: an engine whose replicas are to meet; empty for none.
        submission: the service account and the pipeline root of the runs, and their experiment.
        timeout: the seconds that each run may take.
        say: gets sentences about the progress.
        policy: how often runs are looked at.
    """

    base: str
    pod: PodOptions
    engine: str = ""
    submission: Submission = field(default_factory=Submission)
    timeout: float = 600.0
    say: Callable[[str], object] = lambda sentence: None
    policy: PollPolicy = DEFAULT_POLICY


@dataclass
class Made:
    """What has been made: runs on the host, and what they record."""

    host: Host
    recorder: Recorder
    token: str
    policy: PollPolicy
    run_ids: list[str] = field(default_factory=list)
    #: The names of runs that the host may have accepted without saying so.
    lost: list[str] = field(default_factory=list)

    def submit(self, what: str, pipeline: Pipeline, arguments: Mapping[str, Any], wanted: Wanted) -> str:
        """Start a run and return its id. The errors are those of ``Host.submit``."""
        name = f"torchx-kfp doctor {self.token}: {what}"
        self.lost.append(name)  # also if a signal comes before the answer
        try:
            run_id = self.host.submit(pipeline, arguments, Submission(**{**vars(wanted.submission), "name": name}))
        except HostAnswerLostError:
            raise
        except TorchxKfpError:
            self.lost.remove(name)
            raise
        self.lost.remove(name)
        self.run_ids.append(run_id)
        wanted.say(f"{what}: {self.host.connection.link(run_id) or run_id}")
        return run_id

    def remove(self) -> Iterator[Verdict]:
        """Remove everything, and yield a verdict about what could not be removed, or one that all is gone.

        What an interruption leaves is removed by the next call.
        """
        left: list[str] = []
        while self.lost:
            name = self.lost[0]
            try:
                self.run_ids.append(self._find(name))
            except (HostError, UnknownRunError) as error:
                why = "it does not show one so far" if isinstance(error, UnknownRunError) else said(error)
                left.append(f"perhaps a run named {name!r}, which the host may have taken ({why})")
            self.lost.pop(0)
        runs, files = len(self.run_ids), 0
        for run_id in self.run_ids:  # all of them first: each takes the time that its pods may take
            with contextlib.suppress(HostError):
                self.host.terminate(run_id)
        deadline = time.monotonic() + _ENDING
        while self.run_ids:
            run_id = self.run_ids[0]
            try:
                self._wait(run_id, deadline)
                self.host.connection.delete(f"/apis/v2beta1/runs/{run_id}")
            except HostNotFoundError:  # somebody has deleted it
                pass
            except HostError as error:
                left.append(f"the run {run_id} ({said(error)})")
            try:
                files += within(_REMOVING, partial(self._remove_files, run_id))
            except Exception as error:  # of a driver of fsspec
                left.append(f"files below {run_id} of the tracker base ({said(error)})")
            self.run_ids.pop(0)
        if left:
            yield warning("cleaned up", f"Left over: {'; '.join(left)}.", _DELETE)
        elif runs:
            yield ok("cleaned up", f"{counted(runs, 'run')} and {counted(files, 'file')} are removed.")

    def _find(self, name: str) -> str:
        """Return the id of a run that the host may be about to show. The errors are those of ``Host.find``."""
        deadline = time.monotonic() + _LOOKING
        while True:
            try:
                return self.host.find(name)
            except UnknownRunError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(self.policy.shortest)

    def _wait(self, run_id: str, deadline: float) -> None:
        """Wait until a run has ended, so that its pods record nothing later."""
        run = HostRun(self.host.connection, run_id, policy=self.policy, say=lambda sentence: None, reads="none")
        try:
            for _ in run.follow(max(0.0, deadline - time.monotonic())):
                pass
        except (TimeoutError, HostError):  # it is deleted anyway
            pass
        finally:
            run.close()

    def _remove_files(self, run_id: str) -> int:
        store = self.recorder.store
        keys = list(self.recorder.written(run_id))
        for key in keys:
            store.remove(key)
        return len(keys)


def prove(host: Host, wanted: Wanted) -> Iterator[Verdict]:
    """Yield verdicts about runs of a host, which are removed in any case, also after Ctrl-C.

    Args:
        host: the host.
        wanted: what is proved.
    """
    made = Made(host, Recorder.open(wanted.base), secrets.token_hex(4), wanted.policy)
    try:
        yield from guarded("runs", lambda: _proved(made, wanted))
        yield from made.remove()
    except BaseException:
        wanted.say("Removing what was begun ...")
        try:
            for verdict in made.remove():
                wanted.say(str(verdict))
        except (KeyboardInterrupt, SystemExit):
            left = ", ".join([*made.lost, *made.run_ids])
            wanted.say(f"Left over: {left}, and what these runs record. {_DELETE}")
            raise
        raise


def _proved(made: Made, wanted: Wanted) -> Iterator[Verdict]:
    image = wanted.pod.image or DEFAULT_IMAGE
    default = "" if wanted.pod.image else ", in which the stages install what it lacks (--image names another one)"
    yield ok("image", f"The stages use {image}{default}.")
    probes = probe_pipeline(wanted.pod, wanted.base)
    arguments = {TRACKER_BASE_PARAMETER: wanted.base, "token": made.token}
    refused = False
    for finding in check_submission(probes, complete_arguments(probes, arguments)):
        if finding.kind is Kind.CHANGED:  # such as that of retries, which the run itself tells
            continue
        refused = refused or finding.kind is Kind.FAILS
        judge = missing if finding.kind is Kind.FAILS else warning
        hint = "With a volume claim: --volume CLAIM." if "mount_pvc" in finding.text else ""
        hint = hint or ("In doctor: --env AWS_ENDPOINT_URL=..." if "AWS_ENDPOINT_URL" in finding.text else "")
        yield judge("tracker base of pods", str(finding), hint)
    if refused:
        return
    run_id = made.submit("three stages", probes, arguments, wanted)
    canceled = partial(_cancel, made, wanted)
    yield from guarded("cancel", canceled)
    if wanted.engine:
        yield from guarded(f"replicas ({wanted.engine})", partial(_meet, made, wanted))
    first = _wait(made.host, run_id, wanted)
    yield from judge_stages(first, wanted.base)
    yield from guarded("pipeline root", partial(_root, made.host, run_id))
    if any(stage.state is not State.SUCCEEDED for stage in map(first.stage, (FIRST, SECOND))):
        yield skipped("cache", "The stages did not succeed.")
        return
    again = _wait(made.host, made.submit("again, from the cache", probes, arguments, wanted), wanted)
    yield judge_cache(again)


@dataclass(frozen=True)
class Ended:
    """How a run has ended.

    Attributes:
        result: its result, as far as it is known.
        problem: why it was given up before its end, as a sentence; empty if it has ended.
        sentences: what the stages have said to the doctor, by their names.
    """

    result: RunResult
    problem: str = ""
    sentences: Mapping[str, str] = field(default_factory=dict)

    def stage(self, name: str) -> StageResult:
        """Return the result of a stage; one that has not run if the host does not tell it."""
        found = self.result.all(name)
        unknown = StageResult(name, name, State.NOT_RUN, reason="is not among those that KFP reports")
        return found[0] if found else unknown

    def why(self, name: str) -> str:
        """Say why a stage has not succeeded."""
        stage = self.stage(name)
        sentence = self.sentences.get(name) or f"The stage {stage.reason or f'is {stage.state}'}"
        if stage.state is State.NOT_RUN and self.result.reason:  # such as a service account that does not exist
            sentence = f"The run failed: {self.result.reason}".rstrip(".")
        return f"{sentence[0].upper()}{sentence[1:]}."


def _wait(host: Host, run_id: str, wanted: Wanted) -> Ended:
    """Wait for the end of a run, but not for a pod that cannot start."""
    run = HostRun(host.connection, run_id, policy=wanted.policy, say=wanted.say, named=[wanted.base])
    try:
        record, problem = wait_while_useful(run, wanted.timeout)
        result = record.run.result()
        if not result.stages and not problem:  # of a host without v1beta1
            problem = " ".join(record.corrupt) or f"The host names no stage of the run, which is {result.state}."
        failed = [stage for stage in result.stages if stage.log_file is not None]
        run.fetch([stage.name for stage in failed])
        return Ended(result, problem, {stage.name: text for stage in failed if (text := _sentence(stage))})
    finally:
        run.close()


def wait_while_useful(run: HostRun, timeout: float) -> tuple[RunRecord, str]:
    """Wait for the end of a run, and return it with a sentence about why it was given up; empty if it has ended.

    A run is given up if a pod cannot start for want of an image, a secret or a volume claim. It goes on.

    Args:
        run: the run.
        timeout: the seconds that it may take.

    Raises:
        HostError: see ``HostRun.look``.
    """
    stuck_since: float | None = None
    deadline = time.monotonic() + timeout
    while True:
        record = run.look()
        if not record.is_running:
            return record, ""
        stuck = [stage for stage in record.run.stages if stage.is_stuck]
        hopeless = [stage for stage in stuck if _HOPELESS.match(stage.reason)]
        now = time.monotonic()
        stuck_since = (stuck_since or now) if hopeless else None
        if now >= deadline or (stuck_since is not None and now - stuck_since >= _FORBEARANCE):
            why = "; ".join(f"{stage.name} cannot start: {printable(stage.reason)}" for stage in hopeless or stuck)
            return record, f"{why or f'The run has not ended within {duration(timeout)}'}."
        time.sleep(min(run.interval, max(0.0, deadline - now)))


def _sentence(stage: StageResult) -> str:
    """Return the last line of a stage's log that is for the doctor or names missing rights, else its very last one."""
    try:
        assert stage.log_file is not None
        lines = stage.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # it could not be read from the host
        return ""
    for line in reversed(lines):
        if SAYS in line or "torchx-kfp rbac" in line:
            return shorten(printable(line.rpartition(SAYS)[2].strip().rstrip(".")), 600)
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    why = stage.reason or f"is {stage.state}"
    return f"the stage {why}, and its log ends with {shorten(printable(last), 300)!r}" if last else ""


def judge_stages(run: Ended, base: str) -> Iterator[Verdict]:
    """Yield verdicts about the run of three stages: what they recorded, and how they were started."""
    first, second, retried = map(run.stage, (FIRST, SECOND, RETRIED))
    if first.state is not State.SUCCEEDED:
        yield missing("first stage", run.problem or run.why(FIRST), _way_out(first, run))
        yield skipped("results between stages, label, KFP_POD_UID and retries", "The first stage did not succeed.")
        return
    recorded = first.results
    if not recorded or "token" not in recorded:
        yield missing(
            "results between stages",
            f"The first stage has recorded its result, which cannot be read here below {base!r}.",
            "Pods and this machine have to use the same storage: compare the addresses (AWS_ENDPOINT_URL).",
        )
        return
    if second.results and second.results.get("read") == recorded["token"]:
        yield ok("results between stages", "One stage has read what another one recorded, and so has this machine.")
    else:
        yield missing("results between stages", run.problem or run.why(SECOND), _way_out(second, run))
    yield from _of_pod(first, recorded, run.result.run_id)
    yield _of_retries(run, retried)


def _way_out(stage: StageResult, run: Ended) -> str:
    said_so = f"{run.sentences.get(stage.name, '')} {run.problem} {stage.reason}"
    if "image lacks" in said_so or stage.exit_code in (125, 127) or "Image" in said_so or "python3" in said_so:
        return _IMAGE
    if "CreateContainerConfigError" in said_so:
        return _NAMESPACE
    return _CREDENTIALS if "tracker base" in said_so else ""


def _of_pod(stage: StageResult, recorded: Mapping[str, Any], run_id: str) -> Iterator[Verdict]:
    label, uid = recorded.get("label"), recorded.get("uid")
    if label == run_id:
        yield ok("label of pods", "pipeline/runid is the run's id, and reaches the stage as KFP_RUN_ID.")
    else:
        yield missing(
            "label of pods",
            f"KFP_RUN_ID is {label!r} in the stage, and not the run's id.",
            "Results cannot be found by the run. Does something change the pods' labels or variables?",
        )
    if uid and Execution.parse(stage.run_id or "").uid == str(uid)[:8]:
        yield ok("KFP_POD_UID", "It is set, and part of the run id of the stage.")
    else:
        yield warning(
            "KFP_POD_UID",
            "It is not set in the stage."
            if not uid
            else f"It is {uid!r}, and not part of the run id {stage.run_id!r}.",
            "If KFP retries a run, a stage may read results of its failed attempt.",
        )


def _of_retries(run: Ended, retried: StageResult) -> Verdict:
    attempts = (retried.results or {}).get("attempts")
    if retried.state is State.SUCCEEDED and isinstance(attempts, int) and attempts > 1:
        return ok("retries of the cluster", f"The stage with set_retry(1) was started {attempts} times.")
    if retried.exit_code == 5 or "this attempt fails" in run.sentences.get(RETRIED, ""):
        return warning(
            "retries of the cluster",
            "The stage with set_retry(1) was not started again after its application failed.",
            "Use max_retries of the role, or remove templateDefaults.retryStrategy from workflow-controller-configmap.",
        )
    return warning("retries of the cluster", run.problem or run.why(RETRIED))


def judge_cache(run: Ended) -> Verdict:
    """Return a verdict about the run that did the same again."""
    states = {name: run.stage(name).state for name in (FIRST, SECOND)}
    if set(states.values()) == {State.CACHED}:
        return ok("cache", "A second run took the outputs of the first one.")
    if run.problem:
        return warning("cache", run.problem)
    found = ", ".join(f"{name} {state}" for name, state in states.items())
    return warning("cache", f"A second run did the same work again ({found}).", "Is KFP's cache switched off?")


def _cancel(made: Made, wanted: Wanted) -> Iterator[Verdict]:
    run_id = made.submit("to cancel", sleeping_pipeline(wanted.pod), {}, wanted)
    run = HostRun(made.host.connection, run_id, policy=wanted.policy, say=wanted.say, reads="none")
    try:
        run.terminate()
        result = list(run.follow(_ENDING))[-1].run.result()
    except TimeoutError:
        yield warning("cancel", f"The run was asked to end, and has not ended within {_ENDING:g} s.")
        return
    finally:
        run.close()
    if result.state is State.CANCELED:
        yield ok("cancel", "A run was ended.")
    else:
        yield warning("cancel", f"The run was asked to end, and is {result.state}.")


def _meet(made: Made, wanted: Wanted) -> Iterator[Verdict]:
    subject = f"replicas ({wanted.engine})"
    port = random.randrange(20_000, 30_000)
    pipeline = meeting_pipeline(wanted.pod, wanted.engine, made.token, port)
    run = _wait(made.host, made.submit(f"two replicas of {wanted.engine}", pipeline, {}, wanted), wanted)
    (stage,) = run.result.stages or (StageResult("", "", State.NOT_RUN),)
    if stage.state is State.SUCCEEDED:
        yield ok(subject, "The rights suffice, and two replicas have met.")
    else:
        yield missing(subject, run.problem or run.why(stage.name), _way_out(stage, run))


def _root(host: Host, run_id: str) -> Iterator[Verdict]:
    root = ""
    with contextlib.suppress(HostNotFoundError):  # a host without v1beta1
        root = artifacts_root(manifest_of(host.connection.get(f"{V1BETA1}/runs/{run_id}")), run_id)
    if root:
        yield ok("pipeline root", f"{root}, as the run has it.")
